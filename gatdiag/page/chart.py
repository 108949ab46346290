"""Every layer over the steps, as numbers for the chart that a reader can ask: which layer, which step, which value."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.names import one_line, short
from gatdiag.quantities import HEALTHY, compared_label, get_quantity
from gatdiag.run import Run
from gatdiag.summary import compared_series
from gatdiag.summary.thinning import evenly_spaced

_COLUMNS: Final = tuple(HEALTHY)
_MOST: Final = 1_200  # values of one quantity: what a page can hold
_MOST_LAYERS: Final = 80
_MOST_QUANTITIES: Final = 5


def chart_data(run: Run, first: str) -> str:
    """The quantities with a range of healthy trainings, by step and layer, as JSON; "" if none was recorded.

    Args:
        run: The run.
        first: The quantity that is shown first, as "table.column".

    Returns:
        A list with, for each quantity, its label, its healthy range (null: no upper end), whether its scale is
        logarithmic, the layers, the steps, and for each layer its values (null: not measured).
    """
    found: list[dict[str, Any]] = []
    for column in sorted(_COLUMNS, key=lambda each: each != first):
        series = compared_series(run, column).dropna(subset=["value"])
        if len(series) and len(found) < _MOST_QUANTITIES:
            low, high = HEALTHY[column]
            facts = {
                "label": compared_label(column),
                "healthy": [low, high if math.isfinite(high) else None],
                "log": get_quantity(column).is_over_orders,
            }
            found.append(facts | _by_layer(series))
    return json.dumps(found, separators=(",", ":"), allow_nan=False) if found else ""


def _by_layer(series: pd.DataFrame) -> dict[str, Any]:
    values = series.pivot_table(index="layer", columns="step", values="value", aggfunc="max", observed=True, sort=True)
    values = values.iloc[evenly_spaced(len(values), _MOST_LAYERS)]
    values = values.iloc[:, evenly_spaced(values.shape[1], max(_MOST // len(values), 2))]
    return {
        "layers": [one_line(short(str(layer))) for layer in values.index],
        "steps": [int(step) for step in values.columns],
        "values": [list(_rounded(row)) for row in values.to_numpy(np.float64)],
    }


def _rounded(values: Iterable[float]) -> Iterator[float | None]:
    for value in values:
        yield float(f"{value:.3g}") if math.isfinite(value) else None
