"""Every layer over the steps, as numbers for the chart that a reader can ask: which layer, which step, which value."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from gatdiag.figures.style import ordered_colors
from gatdiag.names import one_line, short
from gatdiag.quantities import HEALTHY, compared_label, get_quantity
from gatdiag.run import Run
from gatdiag.summary import compared_series, why_undefined
from gatdiag.summary.thinning import evenly_spaced

Told: TypeAlias = float | str | None

_COLUMNS: Final = tuple(HEALTHY)
_MOST: Final = 1_200  # values of one quantity: what a page can hold
_MOST_LAYERS: Final = 80
_MOST_QUANTITIES: Final = 5
_CODES: Final = {"output is zero": "o", "gradient is zero": "g"}  # short, because there may be thousands on a page


def chart_data(run: Run, first: str) -> str:
    """The quantities with a range of healthy trainings, by step and layer, as JSON; "" if none was recorded.

    Args:
        run: The run.
        first: The quantity that is shown first, as "table.column".

    Returns:
        A list with, for each quantity, its label, its healthy range (null: no upper end), whether its scale is
        logarithmic, the layers with their colors, the steps from the first to the last recorded one, how many layers
        and steps there are, and for each layer its values. A value is a number, null (not measured), "n" (NaN), "p" or
        "m" (plus or minus infinity), "o" or "g" (0 / 0: the output, or the gradient, is zero).
    """
    found: list[dict[str, Any]] = []
    for column in sorted(_COLUMNS, key=lambda each: each != first):
        series = compared_series(run, column)
        if len(series) and len(found) < _MOST_QUANTITIES:
            low, high = HEALTHY[column]
            facts = {
                "label": compared_label(column),
                "healthy": [low, high if math.isfinite(high) else None],
                "log": get_quantity(column).is_over_orders,
            }
            told = [*map(_told, series["value"], why_undefined(run, column))]
            found.append(facts | _by_layer(series.assign(value=pd.Series(told, series.index, object)), run))
    return json.dumps(found, separators=(",", ":"), allow_nan=False) if found else ""


def _by_layer(series: pd.DataFrame, run: Run) -> dict[str, Any]:
    values = series.set_index(["layer", "step"])["value"].unstack("step").sort_index()
    steps = run.steps["step"].tolist()
    values = values.reindex(
        columns=sorted({*values.columns, *steps[:1], *steps[-1:]})
    )  # the axis is as long as the run
    count = values.shape
    values = values.iloc[evenly_spaced(count[0], _MOST_LAYERS)]
    values = values.iloc[:, evenly_spaced(count[1], max(_MOST // len(values), 2))]
    return {
        "layers": [one_line(short(str(layer))) for layer in values.index],
        "colors": [to_hex(color) for color in ordered_colors(len(values))],
        "steps": [int(step) for step in values.columns],
        "of": [*count],
        "values": [[*_row(row)] for row in values.to_numpy(object)],
    }


def _row(values: np.ndarray) -> Iterator[Told]:
    """What pandas fills in for cells without a row, NaN, is null."""
    for value in values:
        yield None if isinstance(value, float) and math.isnan(value) else value


def _told(value: float, undefined: str) -> Told:
    if math.isfinite(value):
        return float(f"{value:.3g}")
    return _CODES.get(undefined) or ("n" if math.isnan(value) else "p" if value > 0 else "m")
