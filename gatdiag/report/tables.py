"""The tables of a page: layers, parameters and laws with their last recorded values, settings, catalogue."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from gatdiag.report.wording import cell, one_line, short

_LONGEST = 80  # characters of a name in a table


@dataclass(frozen=True)
class Column:
    """The head of a column.

    Attributes:
        label: What it says.
        numeric: Whether its cells are numbers.
        explained: A longer text, or "".
    """

    label: str
    numeric: bool = False
    explained: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: What it shows.
        value: What it is sorted by, as JavaScript reads a number; None: by its text.
    """

    text: str | Markup
    value: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with its title.

    Attributes:
        title: Its heading.
        anchor: Its identifier on the page.
        columns: The heads.
        rows: The cells; the first of each row names it.
        note: What to know before reading it.
        sortable: Whether a click on a head sorts it.
        wraps: Whether its cells hold sentences.
    """

    title: str
    anchor: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    sortable: bool = True
    wraps: bool = False


# Sorted behind all numbers, as NaN is.
NOT_MEASURED = Cell("\N{EN DASH}", "NaN")


def words(text: object) -> Cell:
    """A cell of text."""
    return Cell(one_line(str(text)) if str(text) else "")


def called(text: object) -> Cell:
    """A cell with a name from the user's model or logs; the middle of a very long one is left out."""
    return Cell(short(str(text), _LONGEST))


def value(number: object) -> Cell:
    """A cell with a number; empty where nothing was measured.

    Example:
        >>> value(0.25), value(float("inf")), value(None)
        (Cell(text='0.25', value='0.25'), Cell(text='∞', value='Infinity'), Cell(text='', value=None))
    """
    if number is None or number is pd.NA:
        return Cell("")
    real = float(number)  # type: ignore[arg-type]
    return Cell(cell(real), f"{real:.6g}".replace("inf", "Infinity"))


def whole(number: int) -> Cell:
    """A cell with a whole number, all digits shown."""
    return Cell(str(number), str(number))


def pairs(title: str, anchor: str, heads: tuple[str, str], entries: Mapping[str, object]) -> Table:
    """A table of names and what they stand for."""
    rows = tuple((words(name), words(entry)) for name, entry in entries.items())
    return Table(title, anchor, tuple(Column(head) for head in heads), rows, sortable=False, wraps=True)
