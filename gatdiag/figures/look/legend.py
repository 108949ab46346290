"""Legends stand below a figure, never on its lines, in as many columns as fit."""

from collections.abc import Iterable, Sequence

from matplotlib.artist import Artist

from gatdiag.figures.look.scales import MARKS
from gatdiag.figures.look.style import Canvas, inches

_LETTER = 0.053  # inches, at the legend's size
_HANDLE = 0.5
_ROW = 0.125


def legend_below(figure: Canvas, handles: Iterable[Artist]) -> None:
    """Show the handles, each label once and marks of what cannot be seen last; nothing if there are none."""
    marks = {words for _, _, words, _ in MARKS.values()}
    ordered = sorted(handles, key=lambda handle: handle.get_label() in marks)  # the marks last
    entries: dict[str, Artist] = {}
    for handle in ordered:
        entries.setdefault(str(handle.get_label()), handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=_columns(list(entries), inches(figure)),
        )


def legend_height(labels: Sequence[str], width: float) -> float:
    """How many inches such a legend takes in a figure of a width in inches."""
    return -(-len(labels) // _columns(labels, width)) * _ROW if labels else 0.0


def _columns(labels: Sequence[str], width: float) -> int:
    widest = max(len(label) for label in labels) * _LETTER + _HANDLE
    return max(1, min(len(labels), int(width / widest)))
