"""`python -m reports.gallery OUT`: trains what is missing, and writes the gallery."""

from pathlib import Path
from typing import Annotated

import typer

from reports.gallery import write_gallery


def main(out: Annotated[Path, typer.Argument(help="Folder for the page, its pictures and the runs.")]) -> None:
    """Write the gallery of all figures."""
    typer.echo(f"Page: {write_gallery(out)}")


typer.run(main)
