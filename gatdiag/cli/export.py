"""`gatdiag export`: the tables of a run in a format that other programs read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gatdiag.cli.options import Overwrite


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a recorded run.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="csv or parquet.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write into; RUN-FORMAT if it is not given.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the tables of a run for other programs."""
    from gatdiag import run

    kind: Any = to.lower()  # the run refuses what it does not know
    target = out if out is not None else Path(f"{folder.resolve().name}-{kind}")
    typer.echo(run.export(run.load(folder), target, kind, overwrite=overwrite))
