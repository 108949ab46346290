"""Axes: scales and limits, lines, legends below the figure, notes where nothing was recorded.

An early spike or a single infinity must not squash the rest of the training into a flat line, and no value is dropped
silently: values beyond the limits, zeros on a logarithmic axis, NaN and infinities are marked at the edge. Lines
connect recorded steps, however far apart.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.container import Container
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.style import (
    BROKEN,
    COLORS,
    MUTED,
    Canvas,
    GivenAxes,
    is_wide,
    layer_labels,
    ordered_colors,
    plain_text,
    width_inches,
)
from gatdiag.names import TIMES, ten_to
from gatdiag.quantities import QUANTITIES, Side
from gatdiag.run import Run
from gatdiag.summary import evenly_spaced

MARKS = {  # why a value cannot be drawn -> marker, color, legend label, height in the axes
    "broken": ("x", BROKEN, "NaN or infinite", 0.97),
    "zero": ("v", "#666666", "exactly 0", 0.02),
    "gradient is zero": ("s", "#666666", "gradient is zero", 0.02),
    "output is zero": ("D", "#666666", "output is zero", 0.02),
    "above": ("^", "#000000", "outside the axis range", 0.97),
    "below": ("v", "#000000", "outside the axis range", 0.02),
}
_DOTTED = 40  # layers whose dots on a line can be told apart
_MARKED, _MARKED_LAYERS = 30, 150  # marks of a kind per line over steps, and over layers, of which none is left out
_MOST_RANKS = 8  # rows of marks at an edge
_LEAST_SPAN = 0.005  # of the values' size, covered by a linear axis, so that rounding errors look flat
_DECADES = 1.5  # by which outliers may widen a logarithmic axis
_DECADES_SHOWN = 2.0  # at least, so that noise does not fill the axis and two powers of ten are labeled
_LAID_OUT = 0.75  # share of the axes' width that is left once labels and color bars are laid out
Handle: TypeAlias = Artist | tuple[Artist, ...]  # of a legend
Floats: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = tuple[pd.DataFrame, Mapping[str, Any]]  # a line's table and style, see `draw_lines`


def panels(figure: Canvas, count: int, columns: int = 3) -> list[Axes]:
    """`count` axes: in rows of `columns` on a wide figure, else below each other."""
    if isinstance(figure, GivenAxes):
        return figure.take(count)
    columns = min(count, columns) if is_wide(figure) else 1
    grid = figure.subplots(-(-count // columns), columns, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return list(grid.flat[:count])


def scale_axis(axes: Axes, values: ArrayLike, *, log: bool | None = None, include: Sequence[float] = ()) -> None:
    """Set the scale and robust limits of the y axis from all the values that will be drawn on it.

    Args:
        axes: The axes.
        values: Everything that will be drawn, any shape; NaN, infinities and zeros allowed.
        log: Whether the scale is logarithmic; by default if no value is negative and they span two decades.
        include: Values that a linear axis must show, so that noise around a constant looks constant.
    """
    everything = np.asarray(values, np.float64).ravel()
    finite = everything[np.isfinite(everything)]
    positive = finite[finite > 0]
    if log is None:
        log = bool(len(positive) and not (finite < 0).any() and positive.max() > 100 * positive.min())
    if log and len(positive):
        low, high = _robust_limits(np.log10(positive), _DECADES)
        axes.set_yscale("log")
        axes.set_ylim(10.0 ** max(low, -320), 10.0 ** min(high, 307))
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(power_of_ten))
        axes.yaxis.set_minor_locator(NullLocator())
    elif len(finite):
        low, high = _robust_limits(finite, 0.0)
        widen = max((_LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2, 0.0)
        limits = [low - widen, high + widen, *include]
        margin = 0.04 * (max(limits) - min(limits)) if include else 0.0
        axes.set_ylim(min(limits) - margin, max(limits) + margin)
        label_evenly(axes.yaxis)
    else:
        axes.set_yticks([])  # only marks


def label_evenly(axis: Axis) -> None:
    """Set up the ticks of a linear axis, without a factor for all of them in a corner."""
    size = max(map(abs, axis.get_view_interval()))
    plain = ScalarFormatter(useOffset=False)
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(plain if 1e-4 < size < 1e5 else FuncFormatter(lambda value, _: f"{value:.3g}"))


def power_of_ten(value: float, _position: int | None = None) -> str:
    """Tick label of a logarithmic axis in plain characters: rendering mathtext would dominate the drawing time.

    Example:
        >>> power_of_ten(1e-12), power_of_ten(1000.0)
        ('10⁻¹²', '10³')
    """
    if value <= 0 or not np.isfinite(value):
        return ""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{'' if mantissa == '1' else f'{mantissa}{TIMES}'}{ten_to(int(exponent))}"


def _robust_limits(values: Floats, slack: float) -> tuple[float, float]:
    """Limits that contain nearly all values; the extremes too, unless they would squash the rest."""
    low, high = (float(q) for q in np.percentile(values, [1, 99]))
    room = max(high - low, 1e-9 * max(abs(low), abs(high))) or 1.0
    lowest, highest = float(values.min()), float(values.max())
    low = lowest if low - lowest <= 1.5 * room + slack else low - 0.5 * room
    high = highest if highest - high <= 1.5 * room + slack else high + 0.5 * room
    margin = max(0.06 * (high - low), 0.02 * room, (_DECADES_SHOWN - (high - low)) / 2 if slack else 0.0)
    return low - margin, high + margin


def draw_lines(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    x: str = "step",
    log: bool | None = None,
    include: Sequence[float] = (),
    scaled_to: ArrayLike | None = None,
    has_own_marks: bool = False,
) -> list[Line2D]:
    """Draw lines on one axes, with a scale and limits computed from all of them together.

    Args:
        axes: The axes.
        curves: For each line its table and its matplotlib style. The table has the columns `x` and value, and
            optionally low and high (shaded behind the line) and undefined (as for `mark_hidden`).
        x: The column of the x values.
        log: As for `scale_axis`.
        include: As for `scale_axis`.
        scaled_to: What the limits are computed from, if not from these lines alone.
        has_own_marks: Whether values that cannot be drawn are marked in the color of their line, side by side.

    Returns:
        Legend handles: the labeled lines of which something can be seen (or the mark, if lines have their own), then
        the marks that were needed.
    """
    drawn = [table[name] for table, _ in curves for name in ("value", "low", "high") if name in table.columns]
    extent = pd.concat(drawn) if drawn else []
    scale_axis(axes, extent if scaled_to is None else scaled_to, log=log, include=include)
    handles, needed, rank = list[Line2D](), set[str](), 0
    for table, style in curves:
        places, values = (table[name].to_numpy(np.float64) for name in (x, "value"))
        seen = np.isfinite(values) & ((values > 0) | (axes.get_yscale() != "log"))
        shown = np.where(seen, values, np.nan)
        (artist,) = axes.plot(places, shown, **{"label": "_line", **_dot_style(shown), **style})
        if "low" in table.columns:
            low, high = (np.clip(table[name].to_numpy(np.float64), *axes.get_ylim()) for name in ("low", "high"))
            if _is_visible_band(axes, low, high):
                axes.fill_between(
                    places, low, high, None, color=artist.get_color(), alpha=0.18, linewidth=0, zorder=1.5
                )
        own, most = artist.get_color() if has_own_marks else None, _MARKED if x == "step" else _MARKED_LAYERS
        undefined = table.get("undefined")
        marked = mark_hidden(axes, places, values, undefined, most, color=own, rank=rank if own else 0)
        needed, rank = needed | marked, rank + bool(marked)
        if "label" in style and is_visible(axes, shown):
            handles.append(artist)
        elif "label" in style and own:
            handles.append(_mark_handle("broken", str(style["label"]), own))
    return handles + mark_handles(needed, MUTED if has_own_marks else None)


def threshold_line(axes: Axes, value: float, beyond: Side) -> Line2D:
    """Draw a threshold; which side of it is flagged is in the label."""
    return axes.axhline(
        value,
        color=COLORS[1],
        linestyle=(0, (6, 2)),
        linewidth=1.0,
        zorder=1,
        label=f"flagged {beyond} this threshold",
    )


def is_visible(axes: Axes, values: Floats) -> bool:
    """Whether some of the values, of which none is infinite, are within the limits of the y axis."""
    low, high = axes.get_ylim()
    return bool(((values >= low) & (values <= high)).any())


def _is_visible_band(axes: Axes, low: Floats, high: Floats) -> bool:
    """Whether the band between two lines is thick enough to be seen."""
    bottom, top = axes.get_ylim()
    if axes.get_yscale() == "log":
        low, high, bottom, top = np.log(low), np.log(high), np.log(bottom), np.log(top)
    return bool((high - low > 0.002 * (top - bottom)).any())


def _dot_style(shown: Floats) -> dict[str, Any]:
    """Dots on isolated points, which have no neighbor to draw a line to."""
    known = np.isfinite(shown)
    beside = np.pad(known, 1)
    alone = known & ~beside[:-2] & ~beside[2:]
    return {"marker": "o", "markersize": 2.5, "markevery": np.flatnonzero(alone).tolist()} if alone.any() else {}


def mark_hidden(
    axes: Axes,
    x: NDArray[Any],
    y: Floats,
    undefined: Sequence[str] | pd.Series | None = None,
    most: int = _MARKED_LAYERS,
    *,
    color: ColorType | None = None,
    rank: int = 0,
) -> set[str]:
    """Mark, at the edge of the axes, the values of one line that cannot be drawn. Call after `scale_axis`.

    Args:
        axes: The axes.
        x: The x values.
        y: The y values.
        undefined: For each value a key of `MARKS` if it is NaN for a known reason (0 / 0), else "".
        most: How many marks of a kind there may be.
        color: That of the line, by default of the kind of mark.
        rank: How many lines were marked before: their marks are farther out.

    Returns:
        The keys of `MARKS` that were needed.
    """
    low, high = axes.get_ylim()
    zero = (y == 0) & (axes.get_yscale() == "log")
    known = (
        np.full(len(y), "", object) if undefined is None else pd.Series(undefined, dtype=object).fillna("").to_numpy()
    )
    cases = {
        "broken": ~np.isfinite(y) & (known == ""),
        **{str(reason): known == reason for reason in set(known) - {""}},
        "zero": zero,
        "above": np.isfinite(y) & (y > high),
        "below": np.isfinite(y) & (y < low) & ~zero,
    }
    cases = {case: hit for case, hit in cases.items() if hit.any()}
    for case, hit in cases.items():
        marker, usual, _, height = MARKS[case]
        height += (0.04 if height < 0.5 else -0.04) * min(rank, _MOST_RANKS)
        places = x[hit][evenly_spaced(int(hit.sum()), most)]
        there = [line.get_xdata() for line in axes.get_lines() if line.get_label() == f"_{case}"]  # of other lines
        places = places[~np.isin(places, np.concatenate(there))] if there and not color else places
        if not len(places):
            continue
        axes.plot(places, np.full(len(places), height), marker, color=color or usual, markersize=3,
                  markeredgewidth=0.8, transform=axes.get_xaxis_transform(), label=f"_{case}", zorder=5)  # fmt: skip
    return set(cases)


def mark_handles(cases: set[str], color: ColorType | None = None) -> list[Line2D]:
    """Legend handles of the marks that were needed."""
    return [
        _mark_handle(case, label, color or usual)
        for case, (_, usual, label, _) in MARKS.items()
        if case in cases and not (case == "below" and "above" in cases)
    ]


def _mark_handle(case: str, label: str, color: ColorType) -> Line2D:
    return Line2D([], [], linestyle="none", marker=MARKS[case][0], color=color, markersize=3.5, label=label)


_STEP_RANGE: ContextVar[tuple[int, ...]] = ContextVar("step range", default=())


@contextmanager
def full_step_range(run: Run) -> Iterator[None]:
    """In this context every step axis covers the whole run, so that its figures can be compared."""
    steps = run.steps["step"]
    token = _STEP_RANGE.set((int(steps.iloc[0]), int(steps.iloc[-1])) if len(steps) else ())
    try:
        yield
    finally:
        _STEP_RANGE.reset(token)


def step_axis(axes: Axes, steps: ArrayLike, *, room: float | None = None, label: bool = True) -> None:
    """Set up the x axis of steps, with some room (by default 1% of the range) on both sides."""
    values = np.append(np.asarray(steps, np.float64), _STEP_RANGE.get())
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if room is None:
        room = 0.01 * (high - low) if high > low else 0.5
    axes.set_xlim(low - room, high + room)
    page = axes.get_figure(root=False)
    width = _LAID_OUT * axes.get_position().width * width_inches(page) if page is not None else 1.0
    fit = int(width / (0.06 * (len(f"{high:.0f}") + 2)))  # inches of a label
    axes.xaxis.set_major_locator(MaxNLocator(min(max(fit, 1), 5), integer=True, min_n_ticks=1))
    if label:
        axes.set_xlabel("step")


def layer_axis(axes: Axes, names: Sequence[str], *, axis: str = "x", limit: int = 12, letters: int = 40) -> None:
    """Set up an axis of layers at 0, 1, ..., with about `limit` labels at most.

    Labels of an x axis are rotated if they have more than `letters` letters together.
    """
    places, labels, pattern = _layer_ticks(names, limit)
    axes.set(**{f"{axis}ticks": places, f"{axis}ticklabels": labels})
    axes.set(**{f"{axis}label": f"layer ({pattern})" if pattern else "layer"})
    if axis == "x" and _is_rotated(labels, letters):
        axes.tick_params(axis="x", labelrotation=90)


def layer_label_height(table: pd.DataFrame, letters: int = 40) -> float:
    """The extra height in inches of a panel whose layer names are rotated."""
    labels = _layer_ticks(layer_names(table), 12)[1] if len(table) else []
    return 0.055 * max(map(len, labels)) if labels and _is_rotated(labels, letters) else 0.0


def _layer_ticks(names: Sequence[str], limit: int) -> tuple[range, list[str], str]:
    labels, pattern = layer_labels(names, 12)
    places = range(0, len(names), max(-(-len(names) // limit), 1))
    return places, [labels[place] for place in places], pattern


def _is_rotated(labels: Sequence[str], letters: int) -> bool:
    return max(map(len, labels), default=0) * len(labels) > letters


def layer_dots(count: int, size: float) -> dict[str, Any]:
    """Style of the dots of a line over layers; without them where they would touch."""
    return {"marker": ".", "markersize": size} if count <= _DOTTED else {}


def layer_names(table: pd.DataFrame) -> list[str]:
    """All layers of the run, in order, with or without rows."""
    return [str(name) for name in table["layer"].cat.categories]


def layer_lines(table: pd.DataFrame, width: float) -> list[Curve]:
    """One line per layer of a thinned table, colored dark to light by depth."""
    parts = [part for _, part in table.groupby("layer", observed=True, sort=True)]
    colors = ordered_colors(len(parts))
    return [(part, {"color": color, "linewidth": width}) for part, color in zip(parts, colors, strict=True)]


def add_layer_bar(figure: Canvas, axes: Sequence[Axes], table: pd.DataFrame) -> None:
    """Add a color bar that identifies the layer of each line, in place of a long legend; a title if there is one."""
    labels, pattern = layer_labels(layer_names(table), 14)
    drawn = np.unique(table["layer"].cat.codes)
    if len(drawn) == 1:
        words = (axes[0].get_title("left"), f"layer {plain_text(layer_names(table)[drawn[0]])}")
        axes[0].set_title(", ".join(filter(None, words)), loc="left")
        return
    add_color_key(figure, axes, [labels[place] for place in drawn], f"layer ({pattern})" if pattern else "layer")


def add_color_key(figure: Canvas, axes: Sequence[Axes], labels: Sequence[str], title: str) -> None:
    """Add a color bar that labels each of the ordered colors."""
    count = len(labels)
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, count) if count > 1 else Normalize(-0.5, 0.5)
    places = [one.get_position() for one in axes]
    height = (max(box.y1 for box in places) - min(box.y0 for box in places)) * figure.bbox.height / figure.dpi
    shown = range(0, count, -(-count // max(int(height / 0.17), 1)))  # inches of a label
    colors = ScalarMappable(norm, ListedColormap(ordered_colors(count)))
    bar = figure.colorbar(colors, ax=list(axes), ticks=shown, aspect=30, pad=0.02)
    bar.ax.set_yticklabels([labels[place] for place in shown])
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.invert_yaxis()
    bar.ax.set_title(title, loc="right", size="small", pad=9)  # not turned, as it would be read against the order
    bar.outline.set_linewidth(0.4)


def add_legend_below(figure: Canvas, handles: Iterable[Handle]) -> None:
    """Add a legend below the figure, if there are handles: each label once, the marks of `MARKS` last.

    Several artists together are one entry, with the label of the first.
    """
    marks = {label for _, _, label, _ in MARKS.values()}
    entries: dict[str, Any] = {}
    for handle in sorted(handles, key=lambda handle: _label(handle) in marks):
        entries.setdefault(_label(handle), handle)
    if entries:
        columns = _legend_columns([*entries], width_inches(figure))
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns,
            handler_map={tuple: HandlerTuple(ndivide=None)},
        )  # fmt: skip


def _label(handle: Handle) -> str:
    if isinstance(handle, tuple) and not isinstance(handle, Container):  # of bars, which has a label itself
        handle = handle[0]
    return str(handle.get_label())


def legend_height(labels: Sequence[str], width: float) -> float:
    """The height in inches of a legend below a figure of that width in inches."""
    return 0.14 * -(-len(labels) // _legend_columns(labels, width)) if labels else 0.0


def _legend_columns(labels: Sequence[str], width: float) -> int:
    widest = max(map(len, labels)) * 0.053 + 0.5  # inches
    return max(1, min(len(labels), int(width / widest)))


_NOTE: dict[str, Any] = {"ha": "center", "va": "center", "color": MUTED, "style": "italic"}
_MEASURED = {f"{quantity.table}.{quantity.name}" for quantity in QUANTITIES}


def not_recorded(*columns: str) -> str:
    """A text about missing columns, written "table.column", and how to record them.

    Example:
        >>> not_recorded("layers.mu")
        'not recorded: mu; record it with metrics=["mu"]'
    """
    advice: dict[str, list[str]] = {}
    for column in columns:
        table, name = column.split(".", 1)
        laws = "no conservation law was found or recorded in this run"
        how = laws if table == "neurons" else "record it with metrics=[{}]"
        advice.setdefault(how if column in _MEASURED else "log it with recorder.log", []).append(name)
    return "; ".join(
        f"not recorded: {', '.join(names)}; " + how.format(", ".join(f'"{name}"' for name in names))
        for how, names in advice.items()
    )


def note(place: Axes | Canvas, text: str) -> None:
    """Write a wrapped note in the middle of empty axes, which are hidden, or of an empty figure."""
    if isinstance(place, Axes):
        place.set_axis_off()
        width = place.get_position().width * width_inches(place.get_figure())  # type: ignore[arg-type]
        words = place.text(0.5, 0.5, _wrap(plain_text(text, 300), width), transform=place.transAxes, **_NOTE)
        words.set_in_layout(False)
    elif isinstance(place, GivenAxes):
        note(place.axes[0], text)
    else:
        place.text(0.5, 0.5, _wrap(plain_text(text, 300), width_inches(place)), **_NOTE)


def note_missing_panels(figure: Canvas, absent: Mapping[str, Axes]) -> None:
    """Write a short note in each empty panel, and below the figure how to record what is missing."""
    for axes in absent.values():
        note(axes, "not recorded")
    if absent and not isinstance(figure, GivenAxes):
        words = _wrap(not_recorded(*absent), width_inches(figure))
        figure.supxlabel(words, color=MUTED, style="italic", size="medium")


def _wrap(text: str, width: float) -> str:
    letters = max(int(width / 0.062), 9)
    return "\n".join(textwrap.wrap(text, letters, break_long_words=max(map(len, text.split())) > 60))
