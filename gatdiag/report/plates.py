"""Figures as they stand in the page: a drawing, what it shows, and the data behind it.

A drawing is inline SVG; where it would be larger than a picture of the same size, a PNG.
"""

import base64
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal
from xml.etree import ElementTree

import pandas as pd
from markupsafe import Markup

from gatdiag.figures import Figure, render, table
from gatdiag.report.equations import equation
from gatdiag.report.svg import inline_svg
from gatdiag.report.wording import one_line
from gatdiag.run import Run

LARGE_SVG = 300_000  # characters; only beyond it is a PNG tried
LARGE_DATA = 64_000  # bytes of CSV; beyond it the page says where the data are
_DPI = 200
_FAILED = "This figure could not be drawn"

Width = Literal["single", "double"]
TITLES = {
    "overview": "Overview",
    "training": "Training",
    "gradients": "Gradients",
    "changes": "Changes of the weights",
    "balance": "Balance laws",
    "smoothing": "Smoothing",
    "comparison": "Runs side by side",
}


@dataclass(frozen=True)
class Plate:
    """One figure on the page.

    Attributes:
        anchor: Its identifier.
        title: Its heading.
        drawing: The picture.
        narrow: The picture for narrow screens, or "" if there is but one.
        shows: What is drawn.
        reading: How to read it.
        equation: What it draws, as an equation, or "".
        paper: The figure of the paper it follows, or "".
        download: The data as an address, or "".
        file: What the data are called when saved.
        elsewhere: The call that gives the data if they are too large for the page, or "".
    """

    anchor: str
    title: str
    drawing: Markup
    narrow: Markup
    shows: str
    reading: str
    equation: Markup
    paper: str
    download: str
    file: str
    elsewhere: str


@dataclass(frozen=True)
class PlateGroup:
    """Figures about one thing, under one heading."""

    title: str
    anchor: str
    plates: tuple[Plate, ...]


def plate(
    figure: Figure, runs: Sequence[Run], section: str, widths: Sequence[Width] = ("single",), **options: Any
) -> Plate:
    """A figure of one or several runs.

    Args:
        figure: The figure.
        runs: What it draws.
        section: The identifier of its part of the page, in which no figure comes twice.
        widths: The first is the drawing, the second that for narrow screens.
        **options: As the figure's own `data` takes them.

    Returns:
        The plate. Where drawing fails it says so in the drawing's place, and a warning says it too.
    """
    anchor = f"{section}-figure-{figure.name}"
    try:
        data = table(figure, runs, **options)
        computed = replace(figure, data=lambda *_: data)  # once, for every width and for the download
        drawings = [_drawing(computed, runs, width, f"{anchor}-{width}-") for width in widths]
        download = _download(data)
    except Exception as error:  # one figure must not cost the reader all the others
        warnings.warn(f"the figure {figure.name!r} could not be drawn: {error!r}", stacklevel=2)
        drawings, download = [Markup("<p>{}: {}</p>").format(_FAILED, one_line(repr(error)))], ""
    return Plate(
        anchor=anchor,
        title=figure.title,
        drawing=drawings[0],
        narrow=drawings[1] if len(drawings) > 1 else Markup(""),
        shows=figure.shows,
        reading=figure.reading,
        equation=equation(figure.equation),
        paper=figure.paper.rstrip("."),
        download=download,
        file=f"{figure.name}.csv",
        elsewhere="" if download else f'gatdiag.figures.table("{figure.name}", {"run" if len(runs) == 1 else "runs"})',
    )


def plate_groups(figures: Iterable[Figure], runs: Sequence[Run], anchor: str) -> tuple[PlateGroup, ...]:
    """The figures under the headings of their groups, in the order given."""
    return tuple(
        PlateGroup(TITLES[group], f"{anchor}-group-{group}", tuple(plate(figure, runs, anchor) for figure in members))
        for group, members in groupby(figures, key=lambda figure: figure.group)
    )


def _drawing(figure: Figure, runs: Sequence[Run], width: Width, prefix: str) -> Markup:
    try:
        drawing = inline_svg(render(figure, runs, format="svg", width=width), prefix, figure.title, width)
    except ElementTree.ParseError:  # a name held what XML cannot
        drawing = None
    if drawing is not None and len(drawing) < LARGE_SVG:
        return drawing
    picture = base64.b64encode(render(figure, runs, format="png", width=width, dpi=_DPI)).decode()
    if drawing is not None and len(drawing) <= len(picture):
        return drawing
    return Markup('<img class="plot {}" alt="{}" src="data:image/png;base64,{}">').format(width, figure.title, picture)


def _download(data: pd.DataFrame) -> str:
    if data.size > LARGE_DATA:  # at least one character a cell
        return ""
    text = data.to_csv(index=False, float_format="%.6g")
    if len(text) > LARGE_DATA:
        return ""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode('utf-8', 'replace')).decode()}"
