"""`gatdiag report`: runs -> the page, and their figures as files."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import typer

from gatdiag.errors import InputError
from gatdiag.figures import figures_for, render, render_document, save_figures
from gatdiag.report import write_report
from gatdiag.report.writing import open_runs
from gatdiag.run import Run
from gatdiag.run.layout import replacing

Picture: TypeAlias = Literal["png", "svg", "pdf"]
PICTURES: tuple[Picture, ...] = ("png", "svg", "pdf")
FORMATS = ("html", *PICTURES)
# Of files that are not written here; other endings may be part of a folder's name.
_FOREIGN: Final = (
    "csv",
    "doc",
    "docx",
    "eps",
    "gif",
    "jpeg",
    "jpg",
    "json",
    "md",
    "ps",
    "tex",
    "txt",
    "xlsx",
    "xml",
    "zip",
)


def make_report(folders: Sequence[Path], out: Path, formats: str | None, title: str | None, *, overwrite: bool) -> None:
    """Write what was asked for, and print where it is.

    Args:
        folders: Of the runs.
        out: NAME.html, with the figures in NAME-figures beside it; NAME.pdf, for all figures in one file; NAME.png or
            NAME.svg, for the first of them alone; or a folder, that gets report.html and the figures.
        formats: One or more of html, png, svg, pdf, separated by commas; by default that of a file, else html.
        title: Of the page.
        overwrite: Replace files that gatdiag did not make.

    Raises:
        InputError: A format is unknown or not that of the file, a folder holds no run, or a file is there already.
    """
    ending = "" if out.is_dir() else out.suffix.lower().removeprefix(".")
    kind = "html" if ending == "htm" else ending
    wanted = _formats(formats or (kind if kind in PICTURES else "html"))
    if kind in _FOREIGN or (out.exists() and kind not in FORMATS and not out.is_dir()):
        raise InputError(f"--out: expected NAME.html, .pdf, .png, .svg or a folder, got {str(out)!r}")
    if kind in PICTURES and wanted != [kind]:
        raise InputError(f"--out: {str(out)!r} is the name of one {kind} file: give a folder, or no --format")
    runs = open_runs(folders)
    try:
        if kind in PICTURES:
            typer.echo(_save_one(runs, out, kind, overwrite=overwrite))
            return
        page, figures = (out, out.with_name(f"{out.stem}-figures")) if kind == "html" else (out / "report.html", out)
        if "html" in wanted:
            typer.echo(write_report(runs, page, title=title, overwrite=overwrite))
        pictures = [name for name in PICTURES if name in wanted]
        if pictures:
            typer.echo(f"{_save(runs, figures, pictures, overwrite=overwrite)} files in {figures}")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror or error}") from error


def _formats(text: str) -> list[str]:
    wanted = list(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    unknown = [part for part in wanted if part not in FORMATS]
    if unknown or not wanted:
        raise InputError(f"--format takes {', '.join(FORMATS)}, separated by commas, got {text!r}")
    return wanted


def _save_one(runs: Sequence[Run], path: Path, kind: Picture, *, overwrite: bool) -> Path:
    """All figures as the pages of a PDF, or the first of them as a picture."""
    if path.exists() and not overwrite:
        raise InputError(f"{str(path)!r} exists: choose another --out or --overwrite")
    content = render_document(runs) if kind == "pdf" else render(figures_for(runs)[0], runs, format=kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_bytes(content)
    return path


def _save(runs: Sequence[Run], folder: Path, formats: Sequence[Picture], *, overwrite: bool) -> int:
    """Draw into a folder of its own first, so that no file is replaced unasked and none is left half written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the figures, got the file {str(folder)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".figures-") as scratch:
        made = save_figures(runs, Path(scratch), formats=formats)
        targets = [folder / path.relative_to(scratch) for path in made]
        taken = [target for target in targets if target.exists()]
        if taken and not overwrite:
            raise InputError(f"{str(taken[0])!r} exists ({len(taken)} such files): choose another --out or --overwrite")
        for path, target in zip(made, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    return len(made)
