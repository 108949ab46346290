"""The facts of a figure, what of them the catalogue of quantities knows, and the form of its data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import pandas as pd

from gatdiag.figures.axes import not_recorded, note
from gatdiag.figures.style import Canvas
from gatdiag.quantities import Quantity, TableName, quantity
from gatdiag.run import Run

Group = Literal["overview", "training", "gradients", "changes", "balance", "smoothing", "comparison"]
_HEADINGS: Final[dict[Group, str]] = {
    "overview": "Overview",
    "training": "Training",
    "gradients": "Gradients",
    "changes": "Changes of the weights",
    "balance": "Balance laws",
    "smoothing": "Smoothing",
    "comparison": "Runs side by side",
}


@dataclass(frozen=True)
class Figure:
    """One figure. Generic code reads its facts; no figure is special.

    Attributes:
        name: The name it is asked for and saved under.
        title: One line.
        shows: What is drawn.
        reading: How to read it: what a healthy network looks like, and what a sick one does.
        paper: Which figure of which paper it follows; "" if none.
        group: The part of a report it belongs to.
        needs: The columns it draws, as "table.column"; "steps.loss" stands for whatever the loss was logged as.
            It can be drawn without some of them: a note takes their place.
        data: Runs (and options) -> the tidy table that is drawn.
        drawing: That table, not empty -> drawn on a matplotlib Figure or SubFigure; nothing is computed here.
        height: The table and a width in inches -> the height in inches that suits them.
        equation: LaTeX, without dollar signs; "" if there is nothing to define.
        applies: Runs -> True if they have what the figure is about, and differ in what it compares.
        shared: Runs -> the options of `data` with which drawings of them, one each, can be compared by eye.
    """

    name: str
    title: str
    shows: str
    reading: str
    paper: str
    group: Group
    needs: tuple[str, ...]
    data: Callable[..., pd.DataFrame]
    drawing: Callable[[pd.DataFrame, Canvas], None]
    height: Callable[[pd.DataFrame, float], float]
    equation: str = ""
    applies: Callable[[Sequence[Run]], bool] = lambda _: True
    shared: Callable[[Sequence[Run]], dict[str, Any]] = lambda _: {}

    @property
    def per(self) -> Literal["run", "comparison"]:
        """What it draws: one run, or several."""
        return "comparison" if self.group == "comparison" else "run"

    @property
    def heading(self) -> str:
        """Of the part of a report it belongs to."""
        return _HEADINGS[self.group]

    def draw(self, table: pd.DataFrame, canvas: Canvas) -> None:
        """Draw its data on a matplotlib Figure or SubFigure; a note if there are none."""
        if len(table):
            self.drawing(table, canvas)
        else:
            note(canvas, not_recorded(*self.needs))


def described(column: str) -> Quantity:
    """The catalogue's entry of a "table.column"."""
    table, name = column.split(".", 1)
    return quantity(cast("TableName", table), name)


def symbol(column: str) -> str:
    """Label of an axis with a "table.column"."""
    return described(column).symbol or described(column).label


def equations(*columns: str) -> str:
    """The definitions of some "table.column"."""
    return r", \quad ".join(described(column).equation for column in columns)


def tidy(parts: Sequence[pd.DataFrame], *columns: str) -> pd.DataFrame:
    """Parts of a figure's data as one table with just these columns."""
    return pd.concat(parts, ignore_index=True)[list(columns)] if parts else pd.DataFrame(columns=list(columns))


GATS: Final = described("neurons.c").paper
TAMING: Final = described("layers.mu").paper
LIPSCHITZ: Final = "Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021"
