"""`gatdiag report`: runs -> the page, and their figures as files."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import typer

from gatdiag.errors import InputError
from gatdiag.figures import save_figures
from gatdiag.report import write_report
from gatdiag.report.writing import open_runs
from gatdiag.run import Run

Picture: TypeAlias = Literal["png", "svg", "pdf"]
PICTURES: tuple[Picture, ...] = ("png", "svg", "pdf")
FORMATS = ("html", *PICTURES)


def make_report(folders: Sequence[Path], out: Path, formats: str, title: str | None, *, overwrite: bool) -> None:
    """Write what was asked for, and print where it is.

    Args:
        folders: Of the runs.
        out: NAME.html, with the figures in NAME-figures beside it; or a folder, that gets report.html and the figures.
        formats: One or more of html, png, svg, pdf, separated by commas.
        title: Of the page.
        overwrite: Replace files that gatdiag did not make.

    Raises:
        InputError: A format is unknown, a folder holds no run, or a file is there already.
    """
    wanted = _formats(formats)
    page, figures = out / "report.html", out
    if out.suffix.lower() in (".html", ".htm"):
        page, figures = out, out.with_name(f"{out.stem}-figures")
    elif out.exists() and not out.is_dir():
        raise InputError(f"--out: expected NAME.html or a folder, got the file {str(out)!r}")
    runs = open_runs(folders)
    pictures = [name for name in PICTURES if name in wanted]
    try:
        if "html" in wanted:
            typer.echo(write_report(runs, page, title=title, overwrite=overwrite))
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
