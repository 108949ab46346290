"""The page: runs -> one HTML file, written whole or not at all, and never over somebody else's file."""

import base64
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from gatdiag.report.equations import equation
from gatdiag.report.sections import MOST_IN_FULL, RunSection, comparison, run_sections
from gatdiag.report.tables import cell_text, sort_key
from gatdiag.run import Run, load
from gatdiag.run.files import atomic_write

PathLike = str | os.PathLike[str]
Runs = Run | PathLike | Iterable[Run | PathLike]
_HEAD = 4096  # characters in which a page of ours has named its maker


def write_report(runs: Runs, path: PathLike, *, title: str | None = None, overwrite: bool = False) -> Path:
    """Writes one self-contained HTML page about one run, or about several and how they compare.

    The page loads nothing from anywhere: figures, style and script are in it. It is written beside its place and then
    put there, so that an older page stays whole until the new one is.

    Args:
        runs: A run or the folder of one, or several of either, in the order in which they are to be compared.
        path: The file to write; its folder is made if it does not exist.
        title: The page's heading; by default the names of the runs.
        overwrite: Replace whatever file is there. Without it only an earlier report of gatdiag is replaced.

    Returns:
        The file.

    Raises:
        InputError: There is no run, a folder holds none, or the file is there and no report of gatdiag.
        OSError: The file cannot be written.

    Example:
        >>> write_report("no such run", "report.html")
        Traceback (most recent call last):
        gatdiag.errors.InputError: ...
    """
    if not os.fspath(path):
        raise InputError("Expected the name of a file for the report, got an empty path")
    target = Path(path)
    opened = open_runs(runs)
    check_target(target, overwrite=overwrite)
    return write(render_page(opened, title), target)


def write(text: str, target: Path) -> Path:
    """The page, beside its place and then put there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as part:
        part.write_bytes(text.encode("utf-8", "replace"))
    return target


def open_runs(runs: Runs) -> list[Run]:
    """All runs opened, in order, each once and under names that differ.

    Raises:
        InputError: There is none, or a folder holds none.
    """
    given = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    if not given:
        raise InputError("A report is about at least one run, got none")
    return unique_labels([run if isinstance(run, Run) else load(run) for run in given])


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raises InputError where writing the page would destroy something that gatdiag did not make."""
    if target.is_dir():
        raise InputError(f"Expected the name of a file for the report, got the folder {str(target)!r}")
    if target.exists() and not target.is_file():  # a file would take the place of the device
        raise InputError(f"Expected the name of a file for the report, got {str(target)!r}, which is no regular file")
    if overwrite or not target.exists():
        return
    with target.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    if '<meta name="generator" content="gatdiag ' not in head:
        raise InputError(
            f"{str(target)!r} exists and is no report of gatdiag: choose another name, or say overwrite=True"
        )


def render_page(runs: Sequence[Run], title: str | None = None) -> str:
    """The page about one run or several, as HTML."""
    sections = run_sections(runs)
    names = [short(run.name) for run in runs]
    compared = comparison(runs, sections) if len(runs) > 1 else None
    if compared:  # whose overviews are not shown twice
        sections = [replace(one, overview=None) for one in sections[:MOST_IN_FULL]] + sections[MOST_IN_FULL:]
    return render(title or join_names(names, most=4), _contents(sections), comparison=compared, sections=sections)


def render(
    title: str,
    contents: Iterable[tuple[str, str]],
    *,
    treatment: object = None,
    comparison: object = None,
    sections: Sequence[RunSection] = (),
    body: str = "",
) -> str:
    """A page of these parts; `contents` has what stands in the table of contents, and the anchor of each.

    The body is escaped unless it is Markup.
    """
    script = _asset("script.js")
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
            body=body,
            style=Markup(_asset("style.css")),
            script=Markup(script),
            script_digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        )
    )


def _contents(sections: Sequence[RunSection]) -> Iterator[tuple[str, str]]:
    """The table of contents: what stands in it, and where that is."""
    if len(sections) > 1:
        yield "Comparison", "comparison"
        yield from ((section.name, section.anchor) for section in sections)
        return
    (section,) = sections
    parts = {
        "Summary": True,
        "Overview": section.overview,
        "Figures": section.figures,
        "Tables": section.tables,
        "Settings": section.settings,
    }
    yield from ((name, f"{section.anchor}-{name.lower()}") for name, there in parts.items() if there)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gatdiag.report", "templates"),
        autoescape=True,
        # plain text without the characters that only act on the text around them
        finalize=lambda value: replace_invisible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell_text, "number": number, "sort_key": sort_key, "equation": equation}
    return environment


@cache
def _asset(name: str) -> str:
    return resources.files("gatdiag.report").joinpath("templates", name).read_text(encoding="utf-8")


class Labeled(Run):
    """A run under another name than that in its meta data."""

    def __init__(self, folder: Path, label: str) -> None:
        super().__init__(folder)
        self._label = label

    @property
    def name(self) -> str:
        """Its label."""
        return self._label


def unique_labels(runs: Sequence[Run]) -> list[Run]:
    """The runs in order, each folder once; those of the same name called by the path that tells them apart.

    Warns where a folder was given more than once.
    """
    by_folder: dict[Path, Run] = {}
    for run in runs:
        if by_folder.setdefault(run.folder.resolve(), run) is not run:
            warnings.warn(f"{run.folder} was given more than once: it is shown once", stacklevel=3)
    found = []
    for folder, run in by_folder.items():
        alike = [other for other, named in by_folder.items() if named.name == run.name]
        path = folder.relative_to(os.path.commonpath([other.parent for other in alike])).as_posix()
        label = path if folder.name == run.name else f"{run.name} ({path})"
        found.append(Labeled(run.folder, label) if len(alike) > 1 else run)
    return found
