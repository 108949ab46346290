"""A figure drawn in memory, to look at its artists."""

from collections.abc import Sequence

import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.text import Text

from gatdiag.figures import Figure
from gatdiag.figures.style import SIZES, style_context


def drawn(figure: Figure, table: pd.DataFrame, width: str = "double") -> matplotlib.figure.Figure:
    with style_context():
        size = SIZES[width], figure.height(table, SIZES[width])
        canvas = matplotlib.figure.Figure(figsize=size, dpi=50, layout="constrained")
        figure.draw(table, canvas)
        FigureCanvasAgg(canvas)
    return canvas


def lines(axes: Axes) -> list:
    """The lines of the data, without marks at the edge and guides."""
    return [
        line for line in axes.get_lines() if not str(line.get_label()).startswith("_") or line.get_label() == "_line"
    ]


def boxes(hatched: Patch) -> list[list[float]]:
    """The rectangles of a patch that marks cells of a map, from top to bottom: left, top, right, bottom."""
    corners = hatched.get_path().vertices.reshape(-1, 5, 2)
    return np.hstack([corners.min(1), corners.max(1)]).tolist()


def luminance(color: str | Sequence[float]) -> float:
    """How light a color is in a print in gray."""
    return float(np.dot(to_rgb(color), [0.299, 0.587, 0.114]))


def texts(canvas: matplotlib.figure.Figure) -> list[Text]:
    """All that is written in a figure, once it is laid out: labels of ticks only where the axis reaches."""
    shown = [*canvas.texts, *(text for legend in canvas.legends for text in legend.get_texts())]
    for axes in (axes for axes in canvas.axes if axes.get_visible()):
        shown += [axes._left_title, axes._right_title, *axes.texts]
        shown += axes.get_legend().get_texts() if axes.get_legend() else []
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            shown += [axis.label, *(label for tick in ticks for label in (tick.label1, tick.label2))]
    return [text for text in shown if text.get_visible() and text.get_text().strip()]


def words(canvas: matplotlib.figure.Figure) -> str:
    texts: Sequence = canvas.findobj(lambda artist: hasattr(artist, "get_text"))
    return "\n".join(str(text.get_text()) for text in texts)


def step_edges(axes):
    """The steps at which the cells of a map begin, and at which the last one ends."""
    mesh = axes.findobj(QuadMesh)[0]
    corners = (mesh.get_transform() - axes.transData).transform(mesh.get_coordinates()[0])
    return np.round(corners[:, 0] + 0.5, 6).tolist()
