"""Output on the terminal: tables and JSON."""

import json
import math
import os
from collections.abc import Iterable
from typing import Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_UNBROKEN: Final = 10_000  # columns: wider than any line


def plain_console() -> Console:
    """A console without markup: a layer may be called [red]. What is piped is not wrapped."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBROKEN
    return console


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
