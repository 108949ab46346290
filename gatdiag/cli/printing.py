"""Output on the terminal: text in color, tables and JSON."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gatdiag.names import printable

COLORS: Final = {"error": "red", "warning": "yellow", "note": "default", "healthy": "green", "undetermined": "blue"}
"""Of the titles of findings and headlines, by what they are; see `gatdiag.diagnosis.finding.Part`."""

_STYLES: Final = {"code": "cyan", "heading": "bold"}
_UNBROKEN: Final = 10_000  # columns: wider than any line


def plain_console() -> Console:
    """A console without markup: a layer may be called [red]. What is piped is not wrapped."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBROKEN
    return console


def rows(console: Console, part: str, line: str) -> Iterator[Text]:
    """A line as rows of a terminal, in color, wrapped at spaces and all indented alike; code to paste is not broken.

    Args:
        console: The console, as wide as the terminal.
        part: What the line is, one of `gatdiag.diagnosis.finding.Part`.
        line: The line.
    """
    text = Text(printable(line.lstrip()), _STYLES.get(part, ""))
    indent = " " * (len(line) - len(line.lstrip()))
    if part in COLORS:
        text.stylize(f"bold {COLORS[part]}", 0, _length_of_title(text.plain))
    for row in [text] if part == "code" else text.wrap(console, console.width - len(indent)):
        row.rstrip()
        yield Text(indent).append_text(row)


def _length_of_title(line: str) -> int:
    """Of "failing: Dead units: They stay dead." and of "healthy: No problem found. The network trains."."""
    ends = [place for place in (line.find(": ", line.find(": ") + 1), line.find(". ")) if place > 0]
    return min(ends, default=len(line))


def make_table(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty table with columns of text, then right-aligned columns of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in texts:
        table.add_column(heading, overflow="fold", no_wrap=heading == "layer")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def format_number(value: float | None, form: str) -> str:
    """A number in a format; empty for None and NaN.

    Example:
        >>> format_number(0.25, ".0%"), format_number(float("nan"), ".3g")
        ('25%', '')
    """
    return "" if value is None or math.isnan(value) else format(value, form)


def print_json(document: Any) -> None:
    """Print one strict JSON document on a line; NaN and infinity become null."""
    from gatdiag.run.meta import to_json

    typer.echo(json.dumps(to_json(document), allow_nan=False))
