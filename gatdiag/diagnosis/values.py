"""A series of `gatdiag.summary` (step, layer, value) -> one value a layer, in the order of the structure."""

import pandas as pd

SHARE = 0.1  # of the recorded steps: the first of them, that medians are taken over


def last_values(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> its last value that is a number."""
    return _by_layer(series.dropna(subset=["value"]).groupby("layer", observed=True)["value"].last())


def early_median(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> the median of its values over the first tenth of the recorded steps, one of them at least."""
    steps = series["step"].drop_duplicates().to_numpy()
    if not len(steps):
        return {}
    early = series[series["step"] <= steps[max(1, round(SHARE * len(steps))) - 1]]
    return _by_layer(early.groupby("layer", observed=True)["value"].median().dropna())


def _by_layer(values: "pd.Series[float]") -> dict[str, float]:
    """Layer -> value."""
    return {str(layer): float(value) for layer, value in zip(values.index, values.to_numpy(), strict=True)}
