"""What stands in the place of a quantity that was not recorded: words, never an empty axis."""

import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from gatdiag.figures.look.style import Canvas, inches
from gatdiag.figures.look.text import plain

_STYLE: dict[str, Any] = {"ha": "center", "va": "center", "color": "#555555", "style": "italic"}
_LAWS = ("delta", "c", "predicted_c")


def not_recorded(*columns: str) -> str:
    """Says what is missing and how to record it the next time; columns are written "table.column".

    Example:
        >>> not_recorded("layers.mu")
        'not recorded: mu; record it with metrics=["mu"]'
    """
    names = [column.split(".", 1)[1] for column in columns]
    missing = f"not recorded: {', '.join(names)}"
    if columns[0].startswith("steps.") and names[0] != "gradient_norm":
        return f"{missing}; give it to recorder.log"
    if names[0] in _LAWS:
        return f"{missing}; no conservation law was found or recorded in this run"
    wanted = ", ".join(f'"{name}"' for name in names)
    return f"{missing}; record it with metrics=[{wanted}]"


def note(place: Axes | Canvas, text: str) -> None:
    """Write a note in the middle of an axis or a figure, wrapped to its width, with nothing else drawn there."""
    if not isinstance(place, Axes):
        place.text(0.5, 0.5, _wrapped(plain(text, 300), inches(place)), **_STYLE)
        return
    place.set_axis_off()
    share = place.get_position().width
    width = share * inches(place.get_figure())  # type: ignore[arg-type]
    words = place.text(0.5, 0.5, _wrapped(plain(text, 300), width), transform=place.transAxes, **_STYLE)
    words.set_in_layout(False)


def name_change(axes: Axes, table: pd.DataFrame) -> None:
    """Say above an axis which weights are compared: a table as from `gatdiag.summary.weight_change`."""
    axes.set_title(plain(f"initial → {table['source'].iloc[0]}"), loc="left")


def note_panels(figure: Canvas, absent: Mapping[str, Axes]) -> None:
    """Where panels are too small for a whole note: two words in each, and below the figure what to record."""
    for axes in absent.values():
        note(axes, "not recorded")
    if absent:
        words = _wrapped(not_recorded(*absent), inches(figure))
        figure.supxlabel(words, color=_STYLE["color"], style=_STYLE["style"], size="medium")


def _wrapped(text: str, width: float) -> str:
    letters = max(int(width / 0.062), 9)
    return "\n".join(textwrap.wrap(text, letters, break_long_words=max(map(len, text.split())) > 60))
