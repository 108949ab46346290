"""`gatdiag report`: a page about recorded runs, and their figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from gatdiag.cli.options import Overwrite, split_list
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.run import Run

Picture: TypeAlias = Literal["png", "svg", "pdf"]

_PICTURES: Final[tuple[Picture, ...]] = ("png", "svg", "pdf")
_FORMATS: Final = ("html", *_PICTURES)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of the runs to report on.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            help="NAME.html, with figures in NAME-figures beside it; NAME.pdf, with all figures in one file; or a "
            "folder, for report.html and the figures.",
        ),
    ] = Path("report.html"),
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="Formats, separated by commas: html, png, svg, pdf. Default: that of --out, or html.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a page about recorded runs.

    It shows what was trained, whether it trained, and what stands out. The page is one self-contained HTML file. An
    earlier report of the same name is replaced.
    """
    from gatdiag.report import write_report
    from gatdiag.report.page import open_runs

    ending = "" if out.is_dir() else out.suffix.lower().removeprefix(".")
    kind = "html" if ending == "htm" else ending
    wanted = _parse_formats(formats or ("pdf" if kind == "pdf" else "html"))
    is_file = kind.isalpha() or (out.exists() and not out.is_dir())  # a folder's name may end in .2
    if is_file and kind not in ("html", "pdf"):
        raise InputError(
            f"--out: expected a file name ending in .html or .pdf, or a folder (which must exist if its name looks "
            f"like a file's), got {str(out)!r}"
        )
    if kind == "pdf" and wanted != ["pdf"]:
        raise InputError(f"--out: {str(out)!r} is a single PDF file: give a folder, or leave out --format")
    opened = open_runs(runs)
    if kind == "pdf":
        _save_pdf(opened, out, overwrite=overwrite)
        typer.echo(out)
        return
    page, figures = (out, out.with_name(f"{out.stem}-figures")) if kind == "html" else (out / "report.html", out)
    if "html" in wanted:
        typer.echo(write_report(opened, page, title=title, overwrite=overwrite))
    pictures = [name for name in _PICTURES if name in wanted]
    if pictures:
        typer.echo(f"{_save_pictures(opened, figures, pictures, overwrite=overwrite)} files in {figures}")


def _parse_formats(formats: str) -> list[str]:
    wanted = list(dict.fromkeys(split_list(formats.lower())))
    if not wanted or not set(wanted) <= set(_FORMATS):
        raise InputError(f"--format: expected some of {', '.join(_FORMATS)}, separated by commas, got {formats!r}")
    return wanted


def _save_pdf(runs: Sequence[Run], path: Path, *, overwrite: bool) -> None:
    from gatdiag.figures import render_document
    from gatdiag.run.files import atomic_write

    if path.exists() and not overwrite:
        raise InputError(f"{str(path)!r} exists: choose another --out, or replace it with --overwrite")
    content = render_document(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_bytes(content)


def _save_pictures(runs: Sequence[Run], folder: Path, formats: Sequence[Picture], *, overwrite: bool) -> int:
    from gatdiag.figures import save_figures

    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the figures, got the file {str(folder)!r}")
    taken = [] if overwrite else [path for kind in formats for path in folder.rglob(f"*.{kind}")]
    if taken:
        raise InputError(
            f"{str(taken[0])!r} exists ({len(taken)} such files): choose another --out, or replace them with "
            "--overwrite"
        )
    return len(save_figures(runs, folder, formats=formats))
