"""Series over steps or layers, drawn with everything that could not be seen marked at the edge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.look.scales import mark_handles, mark_hidden, scale_axis
from gatdiag.figures.look.style import ORDERED, Canvas
from gatdiag.figures.look.text import layer_labels

_ROW = 0.17  # inches, of a label beside a color bar


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        x: Where its points are.
        y: Their values; NaN, infinities and zeros allowed.
        label: Already plain; "" leaves it out of the legend.
        style: As matplotlib takes it.
        band: Lowest and highest values to shade behind it.
        undefined: As for `mark_hidden`.
    """

    x: ArrayLike
    y: ArrayLike
    label: str = ""
    style: Mapping[str, Any] = field(default_factory=dict)
    band: tuple[ArrayLike, ArrayLike] | None = None
    undefined: Sequence[str] | None = None


def curve_line(curve: pd.DataFrame, label: str = "", **style: Any) -> Line:
    """A line of a thinned series (step, value, low, high), with its band where the two differ."""
    band = None if curve["low"].equals(curve["high"]) else (curve["low"], curve["high"])
    return Line(curve["step"], curve["value"], label, style, band, undefined_of(curve))


def undefined_of(table: pd.DataFrame) -> list[str] | None:
    """Why values of a table are NaN, as `Line` takes it."""
    return table["undefined"].tolist() if "undefined" in table.columns else None


def draw_lines(
    axes: Axes,
    lines: Sequence[Line],
    *,
    log: bool | None = None,
    hold: Sequence[float] = (),
) -> list[Line2D]:
    """Draw lines on one axis, with one scale and limits that suit all of them together.

    Args:
        axes: The axes.
        lines: The lines.
        log: As for `scale_axis`.
        hold: As for `scale_axis`.

    Returns:
        The legend's entries: the lines with a label, then the marks that were needed.
    """
    values = [np.asarray(line.y, np.float64) for line in lines]
    bands = [np.asarray(edge, np.float64) for line in lines for edge in line.band or ()]
    scale_axis(axes, np.concatenate(values + bands) if values else [], log=log, hold=hold)
    handles, needed = [], set[str]()
    for line, y in zip(lines, values, strict=True):
        x = np.asarray(line.x, np.float64)
        seen = y > 0 if axes.get_yscale() == "log" else np.isfinite(y)
        style = dict(line.style)
        if len(y) == 1:
            style.setdefault("marker", "o")
        (artist,) = axes.plot(x, np.where(seen & np.isfinite(y), y, np.nan), label=line.label or "_line", **style)
        if line.band is not None:
            _shade(axes, x, *line.band, color=artist.get_color())
        needed |= mark_hidden(axes, x, y, line.undefined)
        if line.label:
            handles.append(artist)
    handles += mark_handles(needed)
    return handles


def _shade(axes: Axes, x: NDArray[np.float64], low: ArrayLike, high: ArrayLike, *, color: Any) -> None:
    bottom, top = axes.get_ylim()
    low, high = np.clip(np.asarray(low, np.float64), bottom, top), np.clip(np.asarray(high, np.float64), bottom, top)
    axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0, zorder=1.5, rasterized=False)


def ordered_colors(count: int) -> NDArray[np.float64]:
    """Colors for things in an order, dark to light, (count, 4)."""
    return np.asarray(ORDERED(np.linspace(0, 1, count) if count > 1 else [0.0]))


def layer_bar(figure: Canvas, axes: Sequence[Axes], names: Sequence[str], drawn: Sequence[int]) -> None:
    """A color bar that says which line is which layer, in place of a legend of up to 512 entries.

    Args:
        figure: Where the axes are.
        axes: The axes it stands beside.
        names: All layers, in order.
        drawn: The positions of those that have a line.
    """
    labels, pattern = layer_labels(names, 14)
    _bar(figure, axes, [labels[i] for i in drawn], f"layer ({pattern})" if pattern else "layer")


def step_bar(figure: Canvas, axes: Sequence[Axes], steps: Sequence[int]) -> None:
    """A color bar that says which line is which step."""
    _bar(figure, axes, [f"{step:,}" for step in steps], "step")


def _bar(figure: Canvas, axes: Sequence[Axes], labels: Sequence[str], title: str) -> None:
    count = len(labels)
    colors = ListedColormap([tuple(c) for c in ordered_colors(count)])
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, count) if count > 1 else Normalize(-0.5, 0.5)
    places = [one.get_position() for one in axes]
    height = (max(box.y1 for box in places) - min(box.y0 for box in places)) * figure.bbox.height / figure.dpi
    shown = range(0, count, -(-count // max(int(height / _ROW), 1)))
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=list(axes), ticks=shown, aspect=30, pad=0.02)
    bar.ax.set_yticklabels([labels[place] for place in shown])
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.invert_yaxis()
    bar.set_label(title)
    bar.outline.set_linewidth(0.4)


def layer_names(table: pd.DataFrame) -> list[str]:
    """All layers of the run, in order, whether they have rows or not."""
    return [str(name) for name in table["layer"].cat.categories]


def layer_lines(table: pd.DataFrame, **style: Any) -> tuple[list[Line], list[int]]:
    """A line for each layer of a thinned table, colored dark to light by depth; and the positions of those layers."""
    parts = [
        (int(part["layer"].cat.codes.iloc[0]), part) for _, part in table.groupby("layer", observed=True, sort=True)
    ]
    colors = ordered_colors(len(parts))
    lines = [curve_line(part, color=tuple(color), **style) for (_, part), color in zip(parts, colors, strict=True)]
    return lines, [code for code, _ in parts]
