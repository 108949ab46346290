"""A series of `gatdiag.summary` (step, layer, value) -> one value a layer, late in the run."""

import numpy as np
import pandas as pd

EARLY = LATE = 0.1  # the first and the last part of the recorded steps


def last_values(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> its last value that is a number, in structure order."""
    return _by_layer(series.dropna(subset=["value"]).groupby("layer", observed=True)["value"].last())


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
    """Layer -> the median of its values over the last tenth of the recorded steps, in structure order."""
    steps = series["step"].drop_duplicates().to_numpy()
    if not len(steps):
        return {}
    start = steps[-_share(len(steps), LATE)]
    return _by_layer(series[series["step"] >= start].groupby("layer", observed=True)["value"].median().dropna())


def early_median(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> the median of its values over the first tenth of the recorded steps, in structure order."""
    steps = series["step"].drop_duplicates().to_numpy()
    if not len(steps):
        return {}
    end = steps[_share(len(steps), EARLY) - 1]
    return _by_layer(series[series["step"] <= end].groupby("layer", observed=True)["value"].median().dropna())


def _share(steps: int, part: float) -> int:
    """How many of the steps that part is; at least one."""
    return max(1, round(part * steps))


def _by_layer(values: "pd.Series[float]") -> dict[str, float]:
    return {str(layer): float(value) for layer, value in zip(values.index, values.to_numpy(), strict=True)}
