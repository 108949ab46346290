"""Layer x step heat maps: what is zero, not finite or not measured is marked, and said in a legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from gatdiag.figures.look.axes import layer_axis, power_of_ten, step_axis
from gatdiag.figures.look.style import BROKEN, HEAT, SIGNED, UNMEASURED, ZERO, Canvas
from gatdiag.summary import bin_steps

HeatKind = Literal["log", "signed", "linear"]
_COLUMNS = 300  # more cells than that beside each other cannot be seen on a page
_SIGNED = 0.1  # colors span at least this much to each side, so that rounding around zero stays white
_HATCHED = 400  # rectangles with a hatch; more would only cost time
Floats = NDArray[np.float64]


def heat_table(series: pd.DataFrame, how: Literal["max", "extreme", "first"] = "max") -> pd.DataFrame:
    """A series (step, layer, value) thinned to at most 300 steps: each cell stands for the steps up to the next.

    Args:
        series: As from `gatdiag.summary`.
        how: What a cell keeps of the steps it stands for: the largest value (so that spikes stay), the value of
            largest magnitude with its sign, or the first one. NaN and infinities win over all of them.

    Returns:
        step (the first of the cell), layer, value.
    """
    steps, place = np.unique(series["step"].to_numpy(), return_inverse=True)
    bins = bin_steps(len(steps), _COLUMNS)
    starts = steps[np.unique(bins, return_index=True)[1]]
    key = pd.Series(starts[bins[place]], name="step", index=series.index)
    if len(steps) <= _COLUMNS:
        return series
    value = series["value"].to_numpy()
    rank = {"max": value, "extreme": np.abs(value), "first": -series["step"].to_numpy().astype(np.float64)}[how]
    rank = np.where(np.isnan(value), np.inf, np.where(np.isinf(value), np.finfo(float).max, rank))
    order = np.lexsort((rank, series["layer"].cat.codes.to_numpy(), key.to_numpy()))
    ordered = series.assign(step=key).iloc[order]
    return ordered.drop_duplicates(["step", "layer"], keep="last").reset_index(drop=True)


@dataclass(frozen=True)
class _Cells:
    steps: Floats  # edges, one more than columns
    rows: Floats
    values: Floats  # layers x steps
    measured: NDArray[np.bool_]


def shared_limits(values: NDArray[np.float64], kind: HeatKind, least: float = _SIGNED) -> tuple[float, float]:
    """Limits of the colors that hold 98 % of the values; symmetric, and `least` or more, for what has a sign."""
    finite = values[np.isfinite(values)]
    if kind == "log":
        finite = finite[finite > 0]
    if not len(finite):
        return (0.1, 1.0) if kind == "log" else (-max(least, 1.0), max(least, 1.0)) if kind == "signed" else (-1.0, 1.0)
    if kind == "signed":
        bound = max(float(np.percentile(np.abs(finite), 99)), least)
        return -bound, bound
    low, high = (float(q) for q in np.percentile(finite, [1, 99]))
    if kind == "log" and high < 10 * low:
        middle = np.sqrt(low) * np.sqrt(high)
        return max(float(middle / 3.2), 1e-320), float(middle * 3.2)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def heat_map(
    axes: Axes,
    table: pd.DataFrame,
    names: Sequence[str],
    *,
    kind: HeatKind,
    label: str,
    limits: tuple[float, float] | None = None,
    bar: bool = True,
) -> set[str]:
    """Draw a table of `heat_table` with the first layer on top.

    Returns:
        Which of "zero", "broken", "unmeasured" occur, for `heat_legend`.
    """
    cells = _cells(table, len(names))
    low, high = limits or shared_limits(cells.values, kind)
    norm: Normalize = LogNorm(low, high) if kind == "log" else Normalize(low, high)
    colors: Colormap = SIGNED if kind == "signed" else HEAT
    finite = np.isfinite(cells.values)
    zero = finite & (cells.values <= 0) if kind == "log" else np.zeros_like(finite)
    broken = cells.measured & ~finite
    axes.set_facecolor(UNMEASURED)
    axes.grid(False)
    _mesh(axes, cells, finite & ~zero, colors, norm)
    for hit, color in ((zero, ZERO), (broken, BROKEN)):
        if hit.any():
            _mesh(axes, cells, hit, ListedColormap([color]).with_extremes(bad="#00000000"), Normalize(-1e300, 1e300))
    _hatch(axes, cells, broken)
    axes.set_xlim(cells.steps[0], cells.steps[-1])
    axes.set_ylim(len(names) - 0.5, -0.5)
    layer_axis(axes, names, axis="y", limit=8)
    if bar:
        _color_bar(axes, ScalarMappable(norm, colors), kind, label)
    cases = {"zero": zero, "broken": broken, "unmeasured": ~cells.measured}
    return {case for case, hit in cases.items() if hit.any()}


def heat_legend(cases: set[str]) -> list[Patch]:
    """Legend entries for the cells that are not on the color bar."""
    patches = {
        "zero": Patch(facecolor=ZERO, edgecolor="#666666", linewidth=0.5, label="exactly 0"),
        "broken": Patch(facecolor=BROKEN, edgecolor=ZERO, hatch="/////", linewidth=0, label="NaN or infinite"),
        "unmeasured": Patch(facecolor=UNMEASURED, label="no value"),
    }
    return [patch for case, patch in patches.items() if case in cases]


def _cells(table: pd.DataFrame, layers: int) -> _Cells:
    steps, column = np.unique(table["step"].to_numpy(), return_inverse=True)
    values, measured = np.full((layers, len(steps)), np.nan), np.zeros((layers, len(steps)), bool)
    row = table["layer"].cat.codes.to_numpy()
    values[row, column], measured[row, column] = table["value"].to_numpy(np.float64), True
    width = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    edges = np.append(steps.astype(np.float64), steps[-1] + width) if len(steps) else np.array([0.0, 1.0])
    return _Cells(edges - 0.5, np.arange(layers + 1.0) - 0.5, values, measured)


def _mesh(axes: Axes, cells: _Cells, shown: NDArray[np.bool_], colors: Colormap, norm: Normalize) -> None:
    values = np.ma.masked_array(np.where(shown, cells.values, 0.0), ~shown)
    if isinstance(colors, ListedColormap) and colors.N == 1:
        values = np.ma.masked_array(np.zeros_like(cells.values), ~shown)
    axes.pcolormesh(cells.steps, cells.rows, values, cmap=colors, norm=norm, rasterized=True, shading="flat")


def _hatch(axes: Axes, cells: _Cells, broken: NDArray[np.bool_]) -> None:
    """Hatch the broken cells: one rectangle for each run of them, neighboring layers with the same run together."""
    previous: dict[tuple[int, int], Rectangle] = {}
    drawn = 0
    for row, line in enumerate(broken):
        ends = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        current = {}
        for start, stop in ends.reshape(-1, 2).tolist():
            patch = previous.get((start, stop))
            if patch is not None:
                patch.set_height(patch.get_height() + 1)
            elif drawn < _HATCHED:
                left, right = cells.steps[start], cells.steps[stop]
                patch = Rectangle((left, row - 0.5), right - left, 1, facecolor="none", edgecolor=ZERO,
                                  hatch="/////", linewidth=0)  # fmt: skip
                axes.add_patch(patch)
                drawn += 1
            if patch is not None:
                current[start, stop] = patch
        previous = current


def _color_bar(axes: Axes, drawn: ScalarMappable, kind: HeatKind, label: str) -> None:
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02, aspect=14, extend="both")
    if kind == "log":
        _decades(bar)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    bar.ax.minorticks_off()
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)


def log_bar(figure: Canvas, axes: Sequence[Axes], limits: tuple[float, float], label: str) -> None:
    """One color bar for several heat maps with the same logarithmic limits."""
    bar = figure.colorbar(
        ScalarMappable(LogNorm(*limits), HEAT), ax=list(axes), pad=0.02, aspect=12 * len(axes), extend="both"
    )
    _decades(bar)
    bar.ax.minorticks_off()
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)


def _decades(bar: Colorbar) -> None:
    """Powers of ten, and 3 times them where these alone would be too few."""
    low, high = bar.ax.get_ylim()
    few = high < 300 * low
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few else (1.0,), numticks=6))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(power_of_ten))


def heat_steps(axes: Axes, steps: ArrayLike, *, label: bool = True) -> None:
    """The step axis of a heat map."""
    left, right = axes.get_xlim()
    step_axis(axes, steps, label=label)
    axes.set_xlim(left, right)
