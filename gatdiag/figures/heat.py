"""Layer x step heat maps. Zeros, non-finite and missing values have hatches of their own, named in a legend.

A cell extends from a recorded step to the next one. Ticks above the map mark the recorded steps if some were left out.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, ScalarFormatter
from matplotlib.transforms import Transform
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.axes import MARKS, Floats, label_evenly, layer_axis, power_of_ten, step_axis
from gatdiag.figures.style import BROKEN, COLORS, HEAT, PAPER, SIGNED, UNMEASURED, Canvas, readable
from gatdiag.quantities import HEALTHY_RANGE
from gatdiag.summary import bin_steps

HeatKind: TypeAlias = Literal["log", "signed"]
Limits: TypeAlias = tuple[float, float]
_COLUMNS = 300  # more cells than this in a row cannot be told apart on a page
_FEW_STEPS, _FEW_LAYERS = 6, 8  # of maps whose cells can hold their values
_HATCHED: dict[str, dict[str, Any]] = {  # cells without a color of the color bar; white means nothing
    "zero": {"facecolor": HEAT(0.0), "edgecolor": PAPER, "hatch": "||||", "linewidth": 0},
    **{
        case: {"facecolor": MARKS[case][1], "edgecolor": PAPER, "hatch": hatch, "linewidth": 0}
        for case, hatch in {"output is zero": "----", "gradient is zero": "++++"}.items()
    },
    "broken": {"facecolor": BROKEN, "edgecolor": PAPER, "hatch": "/////", "linewidth": 0},
    "unmeasured": {"facecolor": PAPER, "edgecolor": UNMEASURED, "hatch": "\\\\\\\\\\", "linewidth": 0},
}
_WORDS = {case: label for case, (_, _, label, _) in MARKS.items()} | {"unmeasured": "no value"}
_RUG = "#888888"  # to be seen on a white and on a dark page


class PlacedMap(NamedTuple):
    """A heat map in a picture, for a reader who asks which cell is at a place.

    Attributes:
        cells: The table that it draws, as from `heat_table`.
        names: The layers, from top to bottom, in rows of one height.
        box: Left, top, right and bottom of its axes, as shares of the picture from its upper left corner.
        steps: The limits of its x axis. The cell of a step begins half a step before it.
    """

    cells: pd.DataFrame
    names: Sequence[str]
    box: tuple[float, float, float, float]
    steps: Limits


class _Cells(Artist):
    """What a heat map draws, kept with its axes; to be seen there is nothing."""

    def __init__(self, table: pd.DataFrame, names: Sequence[str]) -> None:
        super().__init__()
        self.table, self.names = table, names
        self.set_in_layout(False)


def placed_maps(figure: Figure) -> list[PlacedMap]:
    """The heat maps of a figure that has been drawn, which places its axes, in order."""
    found = []
    for axes in figure.axes:
        for artist in axes.artists:
            if isinstance(artist, _Cells):
                left, bottom, right, top = axes.get_position().extents
                found.append(PlacedMap(artist.table, artist.names, (left, 1 - top, right, 1 - bottom), axes.get_xlim()))
    return found


def heat_table(series: pd.DataFrame, last: float, how: Literal["max", "extreme", "first"] = "max") -> pd.DataFrame:
    """Thin a series (step, layer, value) to about 300 steps; each cell stands for the steps up to the next one.

    Args:
        series: As from `gatdiag.summary`; its column undefined, if any, as from `why_undefined`.
        last: The last step of the run. The last cell ends there, and is no wider than the distance before it.
        how: Which of its values a cell keeps: "max" the largest (so that spikes stay visible), "extreme" the one of
            largest magnitude, with its sign, "first" the first. NaN and infinities take precedence.

    Returns:
        step (the first of the cell), until (where it ends), recorded (how many of its steps were), layer, value,
        undefined if it was given.
    """
    steps, place = np.unique(series["step"].to_numpy(np.int64), return_inverse=True)
    starts = np.flatnonzero(np.diff(bin_steps(steps, _COLUMNS), prepend=-1))
    cell = np.searchsorted(starts, place, side="right") - 1
    ends = np.append(steps[starts[1:]], _end(steps, last))
    counts = np.diff(starts, append=len(steps))
    frame = series.assign(step=steps[starts[cell]], until=ends[cell], recorded=counts[cell])
    if len(starts) < len(steps):
        value = frame["value"].to_numpy(np.float64)
        rank = {"max": value, "extreme": np.abs(value), "first": -series["step"].to_numpy(np.float64)}[how]
        if how != "first":
            rank = np.where(_reasons(series) != "", -np.inf, rank)
        broken = np.where(_reasons(series) == "", value, 0.0)
        rank = np.where(np.isnan(broken), np.inf, np.where(np.isinf(broken), np.finfo(float).max, rank))
        frame = frame.iloc[np.lexsort((rank, frame["layer"].cat.codes, cell))]
        frame = frame.drop_duplicates(["step", "layer"], keep="last").reset_index(drop=True)
    return frame[[name for name in ("step", "until", "recorded", "layer", "value", "undefined") if name in frame]]


def _reasons(table: pd.DataFrame) -> NDArray[np.object_]:
    """For each row why it has no value, or ""."""
    known = table.get("undefined", pd.Series("", table.index))
    return known.astype(object).fillna("").to_numpy()


def _end(steps: NDArray[np.int64], last: float) -> NDArray[np.int64]:
    """Where the last cell ends, as an array; empty without steps."""
    width = np.diff(steps, prepend=steps[:1] - 1)
    ends: NDArray[np.int64] = np.minimum(steps + width, np.fmax(steps, last) + 1)[-1:].astype(np.int64)
    return ends


def color_limits(values: Floats) -> Limits:
    """Limits of logarithmic colors that cover 98% of the values."""
    finite = values[np.isfinite(values) & (values > 0)]
    if not len(finite):
        return 0.1, 1.0
    low, high = (float(q) for q in np.percentile(finite, [1, 99]))
    if high < 10 * low:
        middle = np.sqrt(low) * np.sqrt(high)
        return max(float(middle / 3.2), 1e-320), float(middle * 3.2)
    return low, high


def draw_heat_map(
    axes: Axes,
    table: pd.DataFrame,
    names: Sequence[str],
    kind: HeatKind,
    limits: Limits,
    steps: NDArray[np.int64] | None = None,
) -> set[str]:
    """Draw a table from `heat_table`, with the first layer on top; the values, too, if there are few.

    Args:
        axes: The axes.
        table: The cells.
        names: The layers, in order.
        kind: "log" or "signed" colors.
        limits: The values at the two ends of the colors.
        steps: Further steps that the x axis must include.

    Returns:
        Which of "zero", "output is zero", "gradient is zero", "broken", "unmeasured" and "sparse" (steps were left out)
        occur, for `heat_legend`.
    """
    cells = table.drop_duplicates("step").sort_values("step")
    edges = np.append(cells["step"].to_numpy(), cells["until"].max())
    at = table["layer"].cat.codes.to_numpy(), np.searchsorted(edges, table["step"].to_numpy())
    values, measured = np.full((len(names), len(cells)), np.nan), np.zeros((len(names), len(cells)), bool)
    values[at], measured[at] = table["value"].to_numpy(np.float64), True
    reasons = np.full(values.shape, "", object)
    reasons[at] = _reasons(table)
    finite = np.isfinite(values)
    zero = (values <= 0) & finite & (kind == "log")
    broken = measured & ~finite & (reasons == "")
    hidden = {"zero": zero, **{str(why): reasons == why for why in sorted({*reasons.flat} - {""})}}
    hidden |= {"broken": broken, "unmeasured": ~measured}
    ends = np.append([edges[0], edges[-1] - 1], [] if steps is None else steps)
    is_wide = np.diff(edges).min() * _FEW_STEPS >= ends.max() - ends.min() + 1  # enough to hold a value
    colors = np.where(zero | ~finite, np.nan, values)
    _draw_cells(axes, colors, kind, limits, edges, annot=bool(is_wide) and len(names) <= _FEW_LAYERS)
    for case, hit in hidden.items():
        if hit.any():
            axes.add_patch(PathPatch(_outline(hit, edges), rasterized=True, **_HATCHED[case]))
    axes.add_artist(_Cells(table, names))
    is_sparse = bool((cells["recorded"] < cells["until"] - cells["step"]).any())
    if is_sparse:
        _mark_recorded(axes, cells)
    step_axis(axes, ends, room=0.5, label=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    layer_axis(axes, names, axis="y", limit=8)
    return {case for case, hit in hidden.items() if hit.any()} | ({"sparse"} if is_sparse else set())


def _outline(hit: NDArray[np.bool_], edges: NDArray[np.int64]) -> Outline:
    """A rectangle around each block of cells that are hit: of neighbors in a row, and of rows that are alike.

    One path, because each that is drawn by itself takes milliseconds, and there may be hundreds of layers.
    """
    is_new = np.append(True, (hit[1:] != hit[:-1]).any(1))
    tops = np.flatnonzero(is_new)
    boxes = []
    for top, bottom in zip(tops, np.append(tops[1:], len(hit)), strict=True):
        left, right = (np.flatnonzero(np.diff(hit[top].astype(int), prepend=0, append=0) == sign) for sign in (1, -1))
        boxes += [(edges[a], top, edges[b], bottom) for a, b in zip(left, right, strict=True)]
    corners = np.array(boxes, float)[:, [[0, 1], [2, 1], [2, 3], [0, 3], [0, 1]]] - 0.5
    return Outline(corners.reshape(-1, 2), [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(boxes))


class _FromCells(Transform):
    """From places in a matrix, where seaborn draws, to steps and layers: cells may be several steps wide."""

    input_dims = output_dims = 2
    is_separable = True

    def __init__(self, edges: NDArray[np.int64]) -> None:
        super().__init__()
        self._edges = edges

    def transform_non_affine(self, values: ArrayLike) -> Floats:
        """(n, 2) -> (n, 2)."""
        x, y = np.asarray(values, np.float64).T
        return np.column_stack([np.interp(x, np.arange(len(self._edges)), self._edges), y]) - 0.5


def _draw_cells(
    axes: Axes, values: Floats, kind: HeatKind, limits: Limits, edges: NDArray[np.int64], *, annot: bool
) -> None:
    import seaborn as sns

    colors, place = _colors(kind, limits), _FromCells(edges) + axes.transData
    sns.heatmap(values, vmin=limits[0], vmax=limits[1], norm=colors.norm, cmap=colors.get_cmap(), cbar=False, ax=axes,
                mask=np.isnan(values), annot=annot, fmt=".2g", annot_kws={"fontsize": "small"}, xticklabels=False,
                yticklabels=False, transform=place, rasterized=True)  # fmt: skip
    known = values[np.isfinite(values)] if annot else np.empty(0)
    for text, color in zip(axes.texts[len(axes.texts) - len(known) :], colors.to_rgba(known), strict=True):
        text.set(color=readable(color), transform=place)
    axes.tick_params(left=True, bottom=True, labelrotation=0)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.grid(visible=False)


def _mark_recorded(axes: Axes, cells: pd.DataFrame) -> None:
    """Draw a tick above each recorded step; those of steps side by side make a bar."""
    spans = [*zip(cells["step"] - 0.5, cells["recorded"], strict=True)]
    axes.broken_barh(spans, (1.008, 0.02), transform=axes.get_xaxis_transform(), clip_on=False, color=_RUG,
                     linewidth=0.4, label="_recorded", rasterized=True).set_in_layout(False)  # fmt: skip


def _colors(kind: HeatKind, limits: Limits) -> ScalarMappable:
    return ScalarMappable((LogNorm if kind == "log" else Normalize)(*limits), SIGNED if kind == "signed" else HEAT)


def heat_legend(cases: set[str]) -> list[Artist]:
    """Legend handles for the cells that have no color on the color bar."""
    handles: list[Artist] = [Patch(**style, label=_WORDS[case]) for case, style in _HATCHED.items() if case in cases]
    if "sparse" in cases:
        handles.append(Line2D([], [], color=_RUG, linestyle="none", marker="|", label="recorded step"))
    return handles


def healthy_handle() -> Artist:
    """Legend handle of the range that `add_heat_bar` marks."""
    return Line2D([], [], color=COLORS[2], linewidth=2.5, label=HEALTHY_RANGE)


def add_heat_bar(
    figure: Canvas,
    axes: Sequence[Axes],
    kind: HeatKind,
    limits: Limits,
    label: str = "",
    healthy: Limits | None = None,
) -> None:
    """Add one color bar for heat maps with the same limits; beside it, the range of healthy trainings."""
    bar = figure.colorbar(_colors(kind, limits), ax=list(axes), pad=0.02, aspect=13 * len(axes), extend="both")
    if kind == "log":  # powers of ten, and 3 times them where there would be too few ticks
        few = limits[1] < 300 * limits[0]
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few else (1.0,), numticks=6))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(power_of_ten))
    else:
        label_evenly(bar.ax.yaxis)
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    bar.ax.minorticks_off()
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)
    if healthy is not None:
        span = np.clip(healthy, *limits)
        bar.ax.plot([-0.3, -0.3], span, color=COLORS[2], linewidth=2.5, solid_capstyle="butt", clip_on=False,
                    transform=bar.ax.get_yaxis_transform(), label="_healthy")  # fmt: skip
