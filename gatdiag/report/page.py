"""Runs -> the text of one HTML page that needs nothing but itself."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatdiag.names import listed, one_line, short, without_unseen
from gatdiag.report.sections import MOST_IN_FULL, Comparison, RunSection, comparison, run_section
from gatdiag.run import Run

GENERATOR = "gatdiag"


@dataclass(frozen=True)
class Entry:
    """One line of the table of contents."""

    title: str
    anchor: str


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    made: str
    contents: tuple[Entry, ...]
    comparison: Comparison | None
    sections: tuple[RunSection, ...]


def render_page(runs: Sequence[Run], title: str | None = None) -> str:
    """The page about one run or several, as HTML."""
    script = _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=_page(runs, title),
            generator=f"{GENERATOR} {_version()}",
            style=Markup(_asset("style.css")),
            script=Markup(script),
            script_digest=Markup(digest),
        )
    )


def _version() -> str:
    try:
        return metadata.version("gatdiag")
    except metadata.PackageNotFoundError:  # a source tree on the path, never installed
        return "unknown"


def _page(runs: Sequence[Run], title: str | None) -> Page:
    several = len(runs) > 1
    in_full = len(runs) <= MOST_IN_FULL
    sections = tuple(run_section(run, f"run-{place}", in_full=in_full) for place, run in enumerate(runs, start=1))
    return Page(
        title=one_line(title) if title else _title(runs),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        contents=_contents(sections, several=several),
        comparison=comparison(runs) if several else None,
        sections=sections,
    )


def _title(runs: Sequence[Run]) -> str:
    return short(runs[0].name) if len(runs) == 1 else listed((short(run.name) for run in runs), most=4)


def _contents(sections: Sequence[RunSection], *, several: bool) -> tuple[Entry, ...]:
    if several:
        return (Entry("Comparison", "comparison"), *(Entry(section.name, section.anchor) for section in sections))
    section = sections[0]
    parts = {
        "Summary": True,
        "Overview": section.overview is not None,
        "Figures": bool(section.groups),
        "Tables": bool(section.tables),
        "Settings": bool(section.settings),
    }
    return tuple(Entry(name, f"{section.anchor}-{name.lower()}") for name, there in parts.items() if there)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gatdiag.report", "templates"),
        autoescape=True,
        finalize=_seen,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _seen(value: object) -> object:
    """Plain text without the characters that only act on the text around them."""
    return without_unseen(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    return resources.files("gatdiag.report").joinpath("templates", name).read_text(encoding="utf-8")
