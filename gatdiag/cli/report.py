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
_FORMATS: Final = ("html", "md", *_PICTURES)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of the runs to report on.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="NAME.html, with figures in NAME-figures beside it; NAME.pdf, with all figures in one file; else a "
            "folder, for the page and the figures. Default: RUN.html.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="Formats, separated by commas: html, md (short, for assistants), png, svg, pdf. Default: that of "
            "--out, or html.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a page about recorded runs.

    It shows what was trained, whether it trained, and what stands out. The page is one self-contained HTML file, named
    after the run; for several, A-vs-B.html or A-and-2-more.html. An earlier report of the same name is replaced.
    """
    from gatdiag.page import report as write_page
    from gatdiag.page.document import default_name, open_runs

    name = default_name(runs)
    out = Path(name) if out is None else out
    kind = "" if out.is_dir() else out.suffix.lower().removeprefix(".")
    wanted = _parse_formats(formats or ("pdf" if kind == "pdf" else "html"))
    if (out.is_file() or kind.isalpha()) and kind not in ("html", "pdf"):
        raise InputError(f"--out: expected a folder, or a name ending in .html or .pdf, got {str(out)!r}")
    if kind == "pdf" and wanted != ["pdf"]:
        raise InputError(f"--out: {str(out)!r} is a single PDF file: give a folder, or leave out --format")
    opened = open_runs(runs)
    if kind == "pdf":
        _save_pdf(opened, out, overwrite=overwrite)
        typer.echo(out)
        return
    page, figures = (out, out.with_name(f"{out.stem}-figures")) if kind == "html" else (out / name, out)
    if "html" in wanted:
        typer.echo(write_page(opened, page, title=title, overwrite=overwrite))
    if "md" in wanted:
        typer.echo(_save_markdown(opened, page.with_suffix(".md"), overwrite=overwrite))
    if pictures := [name for name in _PICTURES if name in wanted]:
        typer.echo(f"{_save_pictures(opened, figures, pictures, overwrite=overwrite)} files in {figures}")


def _parse_formats(formats: str) -> list[str]:
    wanted = list(dict.fromkeys(split_list(formats.lower())))
    if not wanted or not set(wanted) <= set(_FORMATS):
        raise InputError(f"--format: expected some of {', '.join(_FORMATS)}, separated by commas, got {formats!r}")
    return wanted


def _save_pdf(runs: Sequence[Run], path: Path, *, overwrite: bool) -> None:
    from gatdiag.figures import render_document
    from gatdiag.run.files import atomic_write

    _check_free([path] if path.exists() else [], overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_bytes(render_document(runs))


def _save_markdown(runs: Sequence[Run], path: Path, *, overwrite: bool) -> Path:
    from gatdiag.diagnosis import diagnose
    from gatdiag.page.document import write
    from gatdiag.page.markdown import HEADING, markdown

    is_ours = path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(HEADING)
    _check_free([path] if path.exists() and not is_ours else [], overwrite=overwrite)
    return write("\n".join(markdown(run, diagnose(run)) for run in runs), path)


def _save_pictures(runs: Sequence[Run], folder: Path, formats: Sequence[Picture], *, overwrite: bool) -> int:
    from gatdiag.figures import save_figures

    _check_free([path for kind in formats for path in folder.rglob(f"*.{kind}")], overwrite=overwrite)
    return len(save_figures(runs, folder, formats=formats))


def _check_free(taken: Sequence[Path], *, overwrite: bool) -> None:
    if taken and not overwrite:
        raise InputError(f"{str(taken[0])!r} exists: choose another --out, or replace it with --overwrite")
