"""`gatdiag export`: the tables of a run as CSV or Parquet."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gatdiag.cli.options import OUT, Overwrite


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="Format: csv or parquet.")],
    out: Annotated[Path | None, OUT] = None,
    overwrite: Overwrite = False,
) -> None:
    """Export the tables of a run as CSV or Parquet.

    Without --out, into the folder RUN-FORMAT.
    """
    from gatdiag import run

    kind: Any = to.lower()  # checked by export()
    target = out if out is not None else Path(f"{folder.resolve().name}-{kind}")
    typer.echo(run.export(run.load(folder), target, kind, overwrite=overwrite))
