"""Axes and what stands on them: scales, series, legends below the figure, notes where nothing was recorded.

An early spike or a single infinity must not press the rest of a training into a flat line, and nothing may be dropped
in silence: what lies beyond the limits, is zero on a logarithmic axis, or is not finite, is marked at the edge.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.look.style import BROKEN, ORDERED, Canvas, inches, layer_labels, plain
from gatdiag.summary import spaced

MARKS = {  # what the eye cannot see -> marker, color, words in the legend, height in the axis
    "broken": ("x", BROKEN, "NaN or infinite", 0.97),
    "zero": ("v", "#666666", "exactly 0", 0.02),
    "gradient is zero": ("s", "#666666", "gradient is zero", 0.02),
    "output is zero": ("D", "#666666", "output is zero", 0.02),
    "above": ("^", "#000000", "beyond the axis", 0.97),
    "below": ("v", "#000000", "beyond the axis", 0.02),
}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LEAST_SPAN = 0.005  # of the values' size, on a linear axis: smaller changes look level
_LAID_OUT = 0.75  # of the room that axes have before labels and color bars take their part
_MARKED = 30  # at most, on a line
_LETTER = 0.06  # inches, of a tick's label
_DECADES = 1.5  # by which single values may widen a logarithmic axis
_DECADES_SHOWN = 2.0  # at least, so that noise does not fill the axis and two powers of ten are named


def scale_axis(axes: Axes, values: ArrayLike, *, log: bool | None = None, hold: Sequence[float] = ()) -> None:
    """Set scale and robust limits of the vertical axis from all the values that are to be drawn on it.

    Args:
        axes: The axes.
        values: Everything that will be drawn, any shape; NaN, infinities and zeros allowed.
        log: Logarithmic or not; by default logarithmic if no value is negative and they span two decades.
        hold: Values that a linear axis must show, so that noise around a constant looks constant.
    """
    everything = np.asarray(values, np.float64).ravel()
    finite = everything[np.isfinite(everything)]
    positive = finite[finite > 0]
    if log is None:
        log = bool(len(positive) and not (finite < 0).any() and positive.max() > 100 * positive.min())
    if log and len(positive):
        low, high = _robust(np.log10(positive), _DECADES)
        axes.set_yscale("log")
        axes.set_ylim(10.0 ** max(low, -320), 10.0 ** min(high, 307))
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(power_of_ten))
        axes.yaxis.set_minor_locator(NullLocator())
    elif len(finite):
        low, high = _robust(finite, 0.0)
        short = (_LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2
        low, high = (low - short, high + short) if short > 0 else (low, high)
        held = [low, high, *hold]
        margin = 0.04 * (max(held) - min(held)) if hold else 0.0
        axes.set_ylim(min(held) - margin, max(held) + margin)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


def power_of_ten(value: float, _position: int | None = None) -> str:
    """A tick of a logarithmic axis in plain characters: mathtext would take most of a figure's time.

    Example:
        >>> power_of_ten(1e-12), power_of_ten(1000.0)
        ('10⁻¹²', '10³')
    """
    if value <= 0 or not np.isfinite(value):
        return ""
    mantissa, exponent = f"{value:.0e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return power if mantissa == "1" else f"{mantissa}\N{MULTIPLICATION SIGN}{power}"


def _robust(values: NDArray[np.float64], slack: float) -> tuple[float, float]:
    """Limits that hold nearly all values; the outermost too, unless they would press the rest together."""
    low, high = (float(q) for q in np.percentile(values, [1, 99]))
    room = max(high - low, 1e-9 * max(abs(low), abs(high))) or 1.0
    lowest, highest = float(values.min()), float(values.max())
    low = lowest if low - lowest <= 1.5 * room + slack else low - 0.5 * room
    high = highest if highest - high <= 1.5 * room + slack else high + 0.5 * room
    margin = max(0.06 * (high - low), 0.02 * room, (_DECADES_SHOWN - (high - low)) / 2 if slack else 0.0)
    return low - margin, high + margin


def mark_hidden(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], undefined: Sequence[str] | None = None
) -> set[str]:
    """Mark the values of one line that its axis cannot show, at its edge; call after `scale_axis`.

    Args:
        axes: The axes.
        x: Where the values are.
        y: The values.
        undefined: For each value a key of `MARKS` if it is NaN for a reason that is known (0 / 0), else "".

    Returns:
        The keys of `MARKS` that were needed.
    """
    low, high = axes.get_ylim()
    zero = (y == 0) if axes.get_yscale() == "log" else np.zeros(len(y), bool)
    known = np.asarray(undefined, dtype=object) if undefined is not None else np.full(len(y), "", dtype=object)
    cases = {
        "broken": ~np.isfinite(y) & (known == ""),
        **{str(reason): known == reason for reason in set(known) - {""}},
        "zero": zero,
        "above": np.isfinite(y) & (y > high),
        "below": np.isfinite(y) & (y < low) & ~zero,
    }
    for case, hit in cases.items():
        marker, color, _, height = MARKS[case]
        if hit.any():
            places = x[hit][spaced(int(hit.sum()), _MARKED)]
            axes.plot(places, np.full(len(places), height), marker, color=color, markersize=3, markeredgewidth=0.8,
                      transform=axes.get_xaxis_transform(), label=f"_{case}", zorder=5)  # fmt: skip
    return {case for case, hit in cases.items() if hit.any()}


def mark_handles(cases: set[str]) -> list[Line2D]:
    """Legend entries for the marks that were needed."""
    chosen = [case for case in MARKS if case in cases]
    return [
        Line2D(
            [], [], linestyle="none", marker=MARKS[case][0], color=MARKS[case][1], markersize=3.5, label=MARKS[case][2]
        )
        for case in chosen
        if not (case == "below" and "above" in cases)
    ]


def step_axis(axes: Axes, steps: ArrayLike, *, label: bool = True) -> None:
    """The axis of steps, logarithmic where they were recorded ever more sparsely."""
    values = np.unique(np.asarray(steps, np.float64))
    if len(values):
        low, high = float(values[0]), float(values[-1])
        margin = 0.01 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
        letters = len(f"{high:.0f}")
    else:
        letters = 1
    page = axes.get_figure(root=False)
    width = _LAID_OUT * axes.get_position().width * inches(page) if page is not None else 1.0
    fit = int(width / (_LETTER * (letters + 2)))
    axes.xaxis.set_major_locator(MaxNLocator(min(max(fit, 1), 5), integer=True, min_n_ticks=1))
    if label:
        axes.set_xlabel("step")


def layer_axis(
    axes: Axes, names: Sequence[str], *, axis: str = "x", limit: int = 12, label: bool = True, letters: int = 40
) -> None:
    """The axis of layers, at 0, 1, ...: labeled by name, at most about `limit` of them.

    Names stand upright where more than so many letters would have to stand side by side.
    """
    labels, pattern = layer_labels(names, 14 if axis == "y" else 12)
    shown = _shown(len(names), limit)
    ticks = getattr(axes, f"{axis}axis")
    ticks.set_major_locator(FixedLocator([float(i) for i in shown]))
    ticks.set_major_formatter(FixedFormatter([labels[i] for i in shown]))
    if axis == "x" and _turned([labels[i] for i in shown], letters):
        axes.tick_params(axis="x", labelrotation=90)
    if label:
        getattr(axes, f"set_{axis}label")(f"layer ({pattern})" if pattern else "layer")


def _shown(count: int, limit: int) -> range:
    """Which of so many layers are labeled: all, or every so many from the first on."""
    return range(0, count, max(-(-count // limit), 1))


def layer_room(table: pd.DataFrame, letters: int = 40) -> float:
    """How many inches more a panel needs because the names of its layers stand upright below it."""
    if "layer" not in table.columns or not len(table):
        return 0.0
    names = [str(name) for name in table["layer"].cat.categories]
    labels, _ = layer_labels(names, 12)
    shown = [labels[i] for i in _shown(len(names), 12)]
    return 0.055 * max(map(len, shown)) if shown and _turned(shown, letters) else 0.0


def _turned(labels: Sequence[str], letters: int = 40) -> bool:
    return max((len(label) for label in labels), default=0) * len(labels) > letters


def layer_codes(layers: pd.Series) -> NDArray[np.float64]:
    """The place of each row's layer in the structure, from 0."""
    return layers.cat.codes.to_numpy().astype(np.float64)


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


_LEGEND_LETTER = 0.053  # inches, at the legend's size
_HANDLE = 0.5
_LEGEND_ROW = 0.125


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
    return -(-len(labels) // _columns(labels, width)) * _LEGEND_ROW if labels else 0.0


def _columns(labels: Sequence[str], width: float) -> int:
    widest = max(len(label) for label in labels) * _LEGEND_LETTER + _HANDLE
    return max(1, min(len(labels), int(width / widest)))


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
