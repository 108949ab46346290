"""A series of `gatdiag.summary` (step, layer, value) -> one value a layer, in the order of the structure."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gatdiag.names import short

SHARE = 0.1  # of the recorded steps: the first and the last of them that medians are taken over


def last_values(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> its last value that is a number."""
    return by_layer(series.dropna(subset=["value"]).groupby("layer", observed=True)["value"].last())


def last_whole(series: pd.DataFrame) -> tuple[int, dict[str, float]] | None:
    """The last step at which as many layers as ever have a finite value, and those values; None if there is none.

    Layers are compared with each other at one step: once one of them breaks, the others' later values do not belong to
    its last one.
    """
    finite = series[np.isfinite(series["value"].to_numpy(np.float64))]
    layers = finite.groupby("step")["value"].size()
    if not len(layers):
        return None
    step = int(layers.index[layers == layers.max()][-1])
    return step, last_values(finite[finite["step"] == step])


def late_median(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> the median of its values over the last tenth of the recorded steps."""
    steps = series["step"].drop_duplicates().to_numpy()
    return _median(series[series["step"] >= steps[-_count(steps)]]) if len(steps) else {}


def early_median(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> the median of its values over the first tenth of the recorded steps."""
    steps = series["step"].drop_duplicates().to_numpy()
    return _median(series[series["step"] <= steps[_count(steps) - 1]]) if len(steps) else {}


def ends(values: dict[str, float]) -> tuple[str, str]:
    """The layers with the lowest and the highest value."""
    return min(values, key=values.__getitem__), max(values, key=values.__getitem__)


def span(values: dict[str, float], form: Callable[[float], str]) -> str:
    """The lowest and the highest value with their layers, for a sentence."""
    low, high = ends(values)
    if values[low] == values[high]:
        return f"{form(values[low])} in {'every layer' if len(values) > 1 else f'layer {short(low)}'}"
    return f"from {form(values[low])} in layer {short(low)} to {form(values[high])} in layer {short(high)}"


def by_layer(values: "pd.Series[float]") -> dict[str, float]:
    """Layer -> value."""
    return {str(layer): float(value) for layer, value in zip(values.index, values.to_numpy(), strict=True)}


def _median(series: pd.DataFrame) -> dict[str, float]:
    return by_layer(series.groupby("layer", observed=True)["value"].median().dropna())


def _count(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """How many of the steps a tenth is; at least one."""
    return max(1, round(SHARE * len(steps)))
