"""Axes and what stands on them: scales, lines, legends below the figure, notes where nothing was recorded.

An early spike or a single infinity must not press the rest of a training into a flat line, and nothing may be dropped
in silence: what lies beyond the limits, is zero on a logarithmic axis, or is not finite, is marked at the edge. Where
recording paused, lines end.
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
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.style import BROKEN, Canvas, inches, is_wide, layer_labels, ordered_colors, plain
from gatdiag.quantities import QUANTITIES
from gatdiag.run import Run
from gatdiag.summary import evenly_spaced

MARKS = {  # what the eye cannot see -> marker, color, words in the legend, height in the axis
    "broken": ("x", BROKEN, "NaN or infinite", 0.97),
    "zero": ("v", "#666666", "exactly 0", 0.02),
    "gradient is zero": ("s", "#666666", "gradient is zero", 0.02),
    "output is zero": ("D", "#666666", "output is zero", 0.02),
    "above": ("^", "#000000", "beyond the axis", 0.97),
    "below": ("v", "#000000", "beyond the axis", 0.02),
}
_MARKED = 30  # marks of a kind on one line
_LEAST_SPAN = 0.005  # of the values, that a linear axis covers, so that rounding looks level
_DECADES = 1.5  # by which single values may widen a logarithmic axis
_DECADES_SHOWN = 2.0  # at least, so that noise does not fill the axis and two powers of ten are named
_LAID_OUT = 0.75  # of the room that axes have before labels and color bars take their part
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Floats: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = tuple[pd.DataFrame, Mapping[str, Any]]  # a line's table and its style, as for `draw_lines`


def panels(figure: Canvas, count: int, columns: int = 3) -> list[Axes]:
    """So many axes: in rows of `columns` where there is room, else below each other."""
    columns = min(count, columns) if is_wide(figure) else 1
    grid = figure.subplots(-(-count // columns), columns, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return list(grid.flat[:count])


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
        short = max((_LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2, 0.0)
        held = [low - short, high + short, *hold]
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


def _robust(values: Floats, slack: float) -> tuple[float, float]:
    """Limits that hold nearly all values; the outermost too, unless they would press the rest together."""
    low, high = (float(q) for q in np.percentile(values, [1, 99]))
    room = max(high - low, 1e-9 * max(abs(low), abs(high))) or 1.0
    lowest, highest = float(values.min()), float(values.max())
    low = lowest if low - lowest <= 1.5 * room + slack else low - 0.5 * room
    high = highest if highest - high <= 1.5 * room + slack else high + 0.5 * room
    margin = max(0.06 * (high - low), 0.02 * room, (_DECADES_SHOWN - (high - low)) / 2 if slack else 0.0)
    return low - margin, high + margin


def draw_lines(
    axes: Axes, curves: Sequence[Curve], *, x: str = "step", log: bool | None = None, hold: Sequence[float] = ()
) -> list[Line2D]:
    """Draw lines on one axis, with one scale and limits that suit all of them together.

    Args:
        axes: The axes.
        curves: For each line its style, as matplotlib takes it, and its table: `x` and value; if there are such
            columns, low and high (shaded behind it), stretch (where it changes, recording paused and the line ends)
            and undefined (as for `mark_hidden`).
        x: The column of the places of its points.
        log: As for `scale_axis`.
        hold: As for `scale_axis`.

    Returns:
        The legend's entries: the lines with a label, then the marks that were needed.
    """
    drawn = [table[name] for table, _ in curves for name in ("value", "low", "high") if name in table.columns]
    scale_axis(axes, pd.concat(drawn) if drawn else [], log=log, hold=hold)
    handles, needed = list[Line2D](), set[str]()
    for table, style in curves:
        places, values = (table[name].to_numpy(np.float64) for name in (x, "value"))
        seen = np.isfinite(values) & ((values > 0) | (axes.get_yscale() != "log"))
        cuts = np.flatnonzero(np.diff(table["stretch"])) + 1 if "stretch" in table.columns else np.empty(0, np.int64)
        at, shown = np.insert(places, cuts, places[cuts]), np.insert(np.where(seen, values, np.nan), cuts, np.nan)
        (artist,) = axes.plot(at, shown, **{"label": "_line", **_dots(shown), **style})
        if "low" in table.columns:
            low, high = (np.clip(table[name].to_numpy(np.float64), *axes.get_ylim()) for name in ("low", "high"))
            if _is_wide_band(axes, low, high):
                edges = np.insert(low, cuts, np.nan), np.insert(high, cuts, np.nan)
                axes.fill_between(at, *edges, None, color=artist.get_color(), alpha=0.18, linewidth=0, zorder=1.5)
        needed |= mark_hidden(axes, places, values, table.get("undefined"))
        if "label" in style:
            handles.append(artist)
    return handles + mark_handles(needed)


def _is_wide_band(axes: Axes, low: Floats, high: Floats) -> bool:
    """True if a band between two lines could be seen."""
    bottom, top = axes.get_ylim()
    if axes.get_yscale() == "log":
        low, high, bottom, top = np.log(low), np.log(high), np.log(bottom), np.log(top)
    return bool((high - low > 0.002 * (top - bottom)).any())


def _dots(shown: Floats) -> dict[str, Any]:
    """A dot on points without a neighbor to draw a line to."""
    known = np.isfinite(shown)
    beside = np.pad(known, 1)
    alone = known & ~beside[:-2] & ~beside[2:]
    return {"marker": "o", "markersize": 2.5, "markevery": np.flatnonzero(alone).tolist()} if alone.any() else {}


def mark_hidden(axes: Axes, x: NDArray[Any], y: Floats, undefined: Sequence[str] | pd.Series | None = None) -> set[str]:
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
    zero = (y == 0) & (axes.get_yscale() == "log")
    known = np.full(len(y), "", object) if undefined is None else np.asarray(undefined, object)
    cases = {
        "broken": ~np.isfinite(y) & (known == ""),
        **{str(reason): known == reason for reason in set(known) - {""}},
        "zero": zero,
        "above": np.isfinite(y) & (y > high),
        "below": np.isfinite(y) & (y < low) & ~zero,
    }
    cases = {case: hit for case, hit in cases.items() if hit.any()}
    for case, hit in cases.items():
        marker, color, _, height = MARKS[case]
        places = x[hit][evenly_spaced(int(hit.sum()), _MARKED)]
        axes.plot(places, np.full(len(places), height), marker, color=color, markersize=3, markeredgewidth=0.8,
                  transform=axes.get_xaxis_transform(), label=f"_{case}", zorder=5)  # fmt: skip
    return set(cases)


def mark_handles(cases: set[str]) -> list[Line2D]:
    """Legend entries for the marks that were needed."""
    return [
        Line2D([], [], linestyle="none", marker=marker, color=color, markersize=3.5, label=label)
        for case, (marker, color, label, _) in MARKS.items()
        if case in cases and not (case == "below" and "above" in cases)
    ]


_ALL_STEPS: ContextVar[tuple[int, ...]] = ContextVar("all steps", default=())


@contextmanager
def all_steps(run: Run) -> Iterator[None]:
    """Within, each axis of steps is as long as the run, whatever of it a figure shows: figures can be compared."""
    steps = run.steps["step"]
    token = _ALL_STEPS.set((int(steps.iloc[0]), int(steps.iloc[-1])) if len(steps) else ())
    try:
        yield
    finally:
        _ALL_STEPS.reset(token)


def step_axis(axes: Axes, steps: ArrayLike, *, room: float | None = None, label: bool = True) -> None:
    """The axis of steps, from the first to the last and some room (by default 1 % of their distance) to both sides."""
    values = np.append(np.asarray(steps, np.float64), _ALL_STEPS.get())
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if room is None:
        room = 0.01 * (high - low) if high > low else 0.5
    axes.set_xlim(low - room, high + room)
    page = axes.get_figure(root=False)
    width = _LAID_OUT * axes.get_position().width * inches(page) if page is not None else 1.0
    fit = int(width / (0.06 * (len(f"{high:.0f}") + 2)))  # inches of a label
    axes.xaxis.set_major_locator(MaxNLocator(min(max(fit, 1), 5), integer=True, min_n_ticks=1))
    if label:
        axes.set_xlabel("step")


def layer_axis(axes: Axes, names: Sequence[str], *, axis: str = "x", limit: int = 12, letters: int = 40) -> None:
    """The axis of layers, at 0, 1, ...: labeled by name, at most about `limit` of them.

    Names stand upright where more than so many letters would have to stand side by side.
    """
    places, labels, pattern = _shown_layers(names, limit)
    axes.set(**{f"{axis}ticks": places, f"{axis}ticklabels": labels})
    axes.set(**{f"{axis}label": f"layer ({pattern})" if pattern else "layer"})
    if axis == "x" and _upright(labels, letters):
        axes.tick_params(axis="x", labelrotation=90)


def layer_room(table: pd.DataFrame, letters: int = 40) -> float:
    """How many inches more a panel needs because the names of its layers stand upright below it."""
    labels = _shown_layers(layer_names(table), 12)[1] if len(table) else []
    return 0.055 * max(map(len, labels)) if labels and _upright(labels, letters) else 0.0


def _shown_layers(names: Sequence[str], limit: int) -> tuple[range, list[str], str]:
    labels, pattern = layer_labels(names, 12)
    places = range(0, len(names), max(-(-len(names) // limit), 1))
    return places, [labels[place] for place in places], pattern


def _upright(labels: Sequence[str], letters: int) -> bool:
    return max(map(len, labels), default=0) * len(labels) > letters


def layer_names(table: pd.DataFrame) -> list[str]:
    """All layers of the run, in order, whether they have rows or not."""
    return [str(name) for name in table["layer"].cat.categories]


def layer_lines(table: pd.DataFrame, width: float) -> list[Curve]:
    """A line for each layer of a thinned table, colored dark to light by depth."""
    parts = [part for _, part in table.groupby("layer", observed=True, sort=True)]
    colors = ordered_colors(len(parts))
    return [(part, {"color": color, "linewidth": width}) for part, color in zip(parts, colors, strict=True)]


def layer_bar(figure: Canvas, axes: Sequence[Axes], table: pd.DataFrame) -> None:
    """A color bar beside the axes that says which layer each line of a table is, in place of a long legend."""
    labels, pattern = layer_labels(layer_names(table), 14)
    drawn = np.unique(table["layer"].cat.codes)
    ordered_bar(figure, axes, [labels[place] for place in drawn], f"layer ({pattern})" if pattern else "layer")


def ordered_bar(figure: Canvas, axes: Sequence[Axes], labels: Sequence[str], title: str) -> None:
    """A color bar that says what each of the ordered colors stands for."""
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
    bar.set_label(title)
    bar.outline.set_linewidth(0.4)


def legend_below(figure: Canvas, handles: Iterable[Artist]) -> None:
    """Show the handles, each label once and marks of what cannot be seen last; nothing if there are none."""
    marks = {words for _, _, words, _ in MARKS.values()}
    entries: dict[str, Artist] = {}
    for handle in sorted(handles, key=lambda handle: handle.get_label() in marks):
        entries.setdefault(str(handle.get_label()), handle)
    if entries:
        widest = max(map(len, entries)) * 0.053 + 0.5  # inches
        columns = max(1, min(len(entries), int(inches(figure) / widest)))
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


_NOTE: dict[str, Any] = {"ha": "center", "va": "center", "color": "#555555", "style": "italic"}
_MEASURED = {f"{quantity.table}.{quantity.name}" for quantity in QUANTITIES}


def not_recorded(*columns: str) -> str:
    """Says what is missing and how to record it the next time; columns are written "table.column".

    Example:
        >>> not_recorded("layers.mu")
        'not recorded: mu; record it with metrics=["mu"]'
    """
    advice: dict[str, list[str]] = {}
    for column in columns:
        table, name = column.split(".", 1)
        laws = "no conservation law was found or recorded in this run"
        how = laws if table == "neurons" else "record it with metrics=[{}]"
        advice.setdefault(how if column in _MEASURED else "give it to recorder.log", []).append(name)
    return "; ".join(
        f"not recorded: {', '.join(names)}; " + how.format(", ".join(f'"{name}"' for name in names))
        for how, names in advice.items()
    )


def note(place: Axes | Canvas, text: str) -> None:
    """Write a note in the middle of an axis or a figure, wrapped to its width, with nothing else drawn there."""
    if isinstance(place, Axes):
        place.set_axis_off()
        width = place.get_position().width * inches(place.get_figure())  # type: ignore[arg-type]
        words = place.text(0.5, 0.5, _wrapped(plain(text, 300), width), transform=place.transAxes, **_NOTE)
        words.set_in_layout(False)
    else:
        place.text(0.5, 0.5, _wrapped(plain(text, 300), inches(place)), **_NOTE)


def note_panels(figure: Canvas, absent: Mapping[str, Axes]) -> None:
    """Where panels are too small for a whole note: two words in each, and below the figure what to record."""
    for axes in absent.values():
        note(axes, "not recorded")
    if absent:
        words = _wrapped(not_recorded(*absent), inches(figure))
        figure.supxlabel(words, color=_NOTE["color"], style=_NOTE["style"], size="medium")


def _wrapped(text: str, width: float) -> str:
    letters = max(int(width / 0.062), 9)
    return "\n".join(textwrap.wrap(text, letters, break_long_words=max(map(len, text.split())) > 60))
