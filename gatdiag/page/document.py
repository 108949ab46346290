"""The page: runs -> one HTML file, written atomically, and never over a file that is not a report."""

import base64
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import gatdiag
from gatdiag.diagnosis.wording import number
from gatdiag.errors import InputError
from gatdiag.names import join_names, one_line, replace_invisible, short
from gatdiag.page.sections import RunSection, comparison, run_sections
from gatdiag.page.tables import Table, cell_text, table_of_quantities
from gatdiag.run import Run, load
from gatdiag.run.files import atomic_write

PathLike = str | os.PathLike[str]
Runs = Run | PathLike | Iterable[Run | PathLike]
_HEAD = 4096  # characters that contain the generator tag of a report


def report(runs: Runs, path: PathLike | None = None, *, title: str | None = None, overwrite: bool = False) -> Path:
    """Write one self-contained HTML page about one run, or comparing several.

    The page loads nothing: figures, style and script are inlined. The file is replaced atomically.

    Args:
        runs: A run or its folder, or several of either, in the order in which they are compared.
        path: The file to write; its folder is created if needed. By default `default_name` in the current folder.
        title: Heading of the page; by default the names of the runs.
        overwrite: Replace any existing file. By default only an earlier gatdiag report is replaced.

    Returns:
        The file.

    Raises:
        InputError: There is no run, a folder contains none, or the file exists and is not a gatdiag report.
        OSError: The file cannot be written.

    Example:
        >>> report("no such run")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    if path is not None and not os.fspath(path):
        raise InputError("Expected a file name for the report, got an empty path")
    opened = open_runs(runs)
    target = Path(default_name([run.folder for run in opened]) if path is None else path)
    check_target(target, overwrite=overwrite)
    return write(render_page(opened, title), target)


def default_name(folders: Sequence[Path]) -> str:
    """The name of a page about runs, after their folders: A.html, A-vs-B.html, A-and-2-more.html."""
    first, *others = [folder.name for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    if len(others) == 1:
        return f"{first}-vs-{others[0]}.html"
    return f"{first}-and-{len(others)}-more.html" if others else f"{first}.html"


def write(text: str, target: Path) -> Path:
    """Write a page atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as part:
        part.write_bytes(text.encode("utf-8", "replace"))
    return target


def open_runs(runs: Runs) -> list[Run]:
    """Open the runs, in order, each once and with unique names.

    Raises:
        InputError: There is no run, or a folder contains none.
    """
    given = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    if not given:
        raise InputError("Expected at least one run for the report, got none")
    return unique_labels([run if isinstance(run, Run) else load(run) for run in given])


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise InputError if writing the page would overwrite something other than a gatdiag report."""
    if target.is_dir():
        raise InputError(f"Expected a file name for the report, got the folder {str(target)!r}")
    if target.exists() and not target.is_file():  # a device, for example, must not be replaced by a file
        raise InputError(f"Expected a file name for the report, got {str(target)!r}, which is not a regular file")
    if overwrite or not target.exists():
        return
    with target.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    if '<meta name="generator" content="gatdiag ' not in head:
        raise InputError(
            f"{str(target)!r} exists and is not a gatdiag report: choose another name, or replace it with "
            "overwrite=True (--overwrite)"
        )


def render_page(runs: Sequence[Run], title: str | None = None) -> str:
    """The page about one run or several, as HTML."""
    sections = run_sections(runs)
    names = [short(run.name) for run in runs]
    compared = comparison(runs, sections) if len(runs) > 1 else None
    return render(
        title or join_names(names, most=4),
        _contents(sections),
        comparison=compared,
        sections=sections,
        glossary=table_of_quantities(runs, "quantities-table"),
    )


def render(
    title: str,
    contents: Iterable[tuple[str, str]],
    *,
    treatment: object = None,
    comparison: object = None,
    sections: Sequence[RunSection] = (),
    glossary: Table | None = None,
) -> str:
    """Render a page from its parts; `contents` are the titles and anchors of the table of contents."""
    charts = any(section.chart for section in sections)
    script = (_asset("uplot.js") if charts else "") + _asset("script.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=one_line(title),
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            generator=f"gatdiag {gatdiag.__version__}",
            contents=contents,
            treatment=treatment,
            comparison=comparison,
            sections=sections,
            glossary=glossary,
            style=Markup((_asset("uplot.css") if charts else "") + _asset("style.css")),
            script=Markup(script),
            script_digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        )
    )


def _contents(sections: Sequence[RunSection]) -> Iterator[tuple[str, str]]:
    """The titles and anchors of the table of contents."""
    if len(sections) > 1:
        yield "Comparison", "comparison"
        yield from ((section.name, section.anchor) for section in sections)
        return
    (section,) = sections
    parts = {
        "Verdict": True,
        "Overview": section.overview,
        "Training": section.diagnosis,
        "Figures": section.figures,
        "Tables": section.tables,
        "Settings": True,
    }
    yield from ((name, f"{section.anchor}-{name.lower()}") for name, there in parts.items() if there)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gatdiag.page", "templates"),
        autoescape=True,
        # remove control and direction characters from plain text
        finalize=lambda value: replace_invisible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell_text, "number": number}
    return environment


@cache
def _asset(name: str) -> str:
    return resources.files("gatdiag.page").joinpath("templates", name).read_text(encoding="utf-8")


class Labeled(Run):
    """A run with a name other than that in its meta data."""

    def __init__(self, folder: Path, label: str) -> None:
        super().__init__(folder)
        self._label = label

    @property
    def name(self) -> str:
        """Its label."""
        return self._label


def unique_labels(runs: Sequence[Run]) -> list[Run]:
    """The runs in order, each folder once; runs of equal names are told apart by their paths.

    Warns if a folder is given more than once.
    """
    by_folder: dict[Path, Run] = {}
    for run in runs:
        if by_folder.setdefault(run.folder.resolve(), run) is not run:
            warnings.warn(f"gatdiag: {run.folder} was given more than once: it is shown once", stacklevel=3)
    found = []
    for folder, run in by_folder.items():
        alike = [other for other, named in by_folder.items() if named.name == run.name]
        path = folder.relative_to(os.path.commonpath([other.parent for other in alike])).as_posix()
        label = path if run.name in path else f"{run.name} ({path})"
        found.append(Labeled(run.folder, label) if len(alike) > 1 else run)
    return found
