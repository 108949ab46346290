"""The Figure class, and what figures look up in the catalog of quantities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Final, Literal

import pandas as pd
from matplotlib.axes import Axes

from gatdiag.figures.axes import not_recorded, note
from gatdiag.figures.style import Canvas, GivenAxes
from gatdiag.quantities import get_quantity
from gatdiag.run import Run

Group = Literal["overview", "training", "gradients", "changes", "balance", "smoothing", "comparison"]
_HEADINGS: Final[dict[Group, str]] = {
    "overview": "Overview",
    "training": "Training",
    "gradients": "Gradients",
    "changes": "Weight changes",
    "balance": "Conservation laws",
    "smoothing": "Oversmoothing",
    "comparison": "Runs side by side",
}


@dataclass(frozen=True, repr=False)
class Figure:
    """One figure: its texts, the function that computes its data, and the function that draws them.

    Attributes:
        name: The name it is requested and saved under.
        title: One line.
        caption: What is drawn.
        interpretation: How to read it: what it looks like for a network that trains, and for one that does not.
        paper: The figure of a paper that it follows; "" if none.
        group: The section of a report it belongs to.
        needs: The columns it draws, as "table.column"; "steps.loss" stands for whatever the loss was logged as.
            If some are missing, a note takes their place.
        data: Runs (and options) -> the tidy table that is drawn.
        draw_table: Draws that table, which is not empty. Computes nothing.
        height: The table and a width in inches -> a suitable height in inches.
        equation: Unicode text; "" if there is nothing to define.
        applies_to: Whether some runs have what the figure shows, and differ in what it compares.
        shared_options: Runs -> the options of `data` that make separate drawings of them comparable by eye.
        wording: The table -> caption and interpretation that name only what is drawn; None if those above always do.
    """

    name: str
    title: str
    caption: str
    interpretation: str
    paper: str
    group: Group
    needs: tuple[str, ...]
    data: Callable[..., pd.DataFrame]
    draw_table: Callable[[pd.DataFrame, Canvas], None]
    height: Callable[[pd.DataFrame, float], float]
    equation: str = ""
    applies_to: Callable[[Sequence[Run]], bool] = lambda _: True
    shared_options: Callable[[Sequence[Run]], dict[str, Any]] = lambda _: {}
    wording: Callable[[pd.DataFrame], tuple[str, str]] | None = None

    def __repr__(self) -> str:
        """For example ``Figure(overview)``."""
        return f"Figure({self.name})"

    @property
    def is_comparison(self) -> bool:
        """Whether it draws several runs together, and not a single one."""
        return self.group == "comparison"

    @property
    def heading(self) -> str:
        """Heading of the section of a report it belongs to."""
        return _HEADINGS[self.group]

    def described(self, table: pd.DataFrame) -> "Figure":
        """The figure with the caption and interpretation of this table."""
        if self.wording is None or not len(table):
            return self
        caption, interpretation = self.wording(table)
        return replace(self, caption=caption, interpretation=interpretation)

    def draw(self, table: pd.DataFrame, canvas: Canvas) -> list[Axes]:
        """Draw the table on a matplotlib Figure or SubFigure, or on axes; a note if it is empty.

        Returns:
            The panels, with letters if there are several, without color bars.
        """
        if not len(table):
            note(canvas, not_recorded(*self.needs))
            return []
        self.draw_table(table, canvas)
        shown = [axes for axes in canvas.axes if axes.get_label() != "<colorbar>" and axes.get_visible()]
        for letter, axes in zip(ascii_lowercase, shown, strict=False):
            if len(shown) > 1:
                axes.set_title(f"({letter}) {axes.get_title('left')}".rstrip(), loc="left")
        if isinstance(canvas, GivenAxes):
            canvas.finish()
        return shown


def axis_label(column: str) -> str:
    """The axis label of a "table.column"."""
    return get_quantity(column).symbol or get_quantity(column).label


def equations(*columns: str) -> str:
    """The definitions of some "table.column"."""
    return "; ".join(get_quantity(column).equation for column in columns)


def has_steps(runs: Sequence[Run]) -> bool:
    """Whether lines over training have more than one point."""
    return any(len(run.steps) != 1 for run in runs)


def tidy(parts: Sequence[pd.DataFrame], *columns: str) -> pd.DataFrame:
    """The parts concatenated, with just these columns."""
    return pd.concat(parts, ignore_index=True)[list(columns)] if parts else pd.DataFrame(columns=list(columns))


GATS: Final = get_quantity("neurons.c").paper
TAMING: Final = get_quantity("layers.mu").paper
LIPSCHITZ: Final = "Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021"
