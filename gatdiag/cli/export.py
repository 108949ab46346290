"""`gatdiag export`: the tables of a run in a format that other programs read."""

from pathlib import Path
from typing import Literal

import typer

from gatdiag.errors import InputError
from gatdiag.run import export, load

FORMATS: dict[str, Literal["csv", "parquet"]] = {"csv": "csv", "parquet": "parquet"}


def export_run(folder: Path, to: str, out: Path | None, *, overwrite: bool) -> None:
    """Write the four tables and meta.json into a folder, and print which.

    Args:
        folder: Of the run.
        to: csv or parquet.
        out: Where to; by default the run's folder name with the format after it, in the current directory.
        overwrite: Replace files of the same names that are there.

    Raises:
        InputError: The format is unknown, there is no run, or files are there already.
    """
    to = to.lower()
    if to not in FORMATS:
        raise InputError(f"--to takes {' or '.join(FORMATS)}, got {to!r}")
    run = load(folder)
    target = out if out is not None else Path(f"{folder.resolve().name}-{to}")
    try:
        typer.echo(export(run, target, FORMATS[to], overwrite=overwrite))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"Cannot write to {target}: {error.strerror or error}") from error
