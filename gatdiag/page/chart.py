"""Values by layer and step, as numbers for what a reader can ask: which layer, which step, which value.

The chart draws every layer over the steps; heat maps are images, and say what is under the pointer.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from gatdiag.figures.heat import PlacedMap
from gatdiag.figures.style import ordered_colors
from gatdiag.names import short
from gatdiag.quantities import HEALTHY, compared_label, get_quantity
from gatdiag.run import Run
from gatdiag.summary import compared_series, why_undefined
from gatdiag.summary.thinning import evenly_spaced

Told: TypeAlias = float | str | None

_COLUMNS: Final = tuple(HEALTHY)
_MOST: Final = 1_200  # values of one quantity: what a page can hold
MOST_LAYERS: Final = 80  # of the chart, and of the strip whose cells lead to it
_MOST_QUANTITIES: Final = 5
_MOST_CELLS: Final = 3_000  # of one heat map
_CODES: Final = {"output is zero": "o", "gradient is zero": "g"}  # short, because there may be thousands on a page


def chart_data(run: Run, first: str, over: str = "", layers: Collection[str] = ()) -> str:
    """The quantities with a range of healthy trainings, by step and layer, as JSON; "" if none was recorded.

    Args:
        run: The run.
        first: The quantity that is shown first, as "table.column".
        over: The layer whose value of the first those of the others are divided by, as for `compared_series`.
        layers: Those that are shown in any case, where there are more than `MOST_LAYERS`.

    Returns:
        A list with, for each quantity, its label, its healthy range (null: no upper end), whether its scale is
        logarithmic, the layers with their colors, the steps from the first to the last recorded one, how many layers
        and steps there are, and for each layer its values. A value is a number, null (not measured), "n" (NaN), "p" or
        "m" (plus or minus infinity), "o" or "g" (0 / 0: the output, or the gradient, is zero).
    """
    found: list[dict[str, Any]] = []
    for column in sorted(_COLUMNS, key=lambda each: each != first):
        beside = over if column == first else ""
        series = compared_series(run, column, beside)
        if len(series) and len(found) < _MOST_QUANTITIES:
            low, high = HEALTHY[column]
            facts = {
                "label": compared_label(column, beside and short(beside, 40)),
                "healthy": [low, high if math.isfinite(high) else None],
                "log": get_quantity(column).is_over_orders,
            }
            told = [*map(_told, series["value"], why_undefined(run, column, beside))]
            found.append(facts | _by_layer(series.assign(value=pd.Series(told, series.index, object)), run, layers))
    return _json(found) if found else ""


def cells_data(pictures: Sequence[Sequence[PlacedMap]]) -> str:
    """What the heat maps of a figure show where, as JSON; "" if it has none.

    Args:
        pictures: The heat maps of the figure, as they are in each of the pictures of it, which differ in width.

    Returns:
        "layers", the lists of layers that occur; "maps", for each the place of its list, the steps at which its cells
        begin, whether these are only "some" of them, the last steps that they stand for (null: each stands for one),
        where the last cell ends, and for each layer its values, as in `chart_data`; and "places", for each picture the
        box of each map and the limits of its steps.
    """
    if not pictures or not pictures[0]:
        return ""
    places = [[[*(round(one, 5) for one in (*drawn.box, *drawn.steps))] for drawn in maps] for maps in pictures]
    names = [*dict.fromkeys(tuple(drawn.names) for drawn in pictures[0])]
    maps = [_cells(drawn) | {"layers": names.index(tuple(drawn.names))} for drawn in pictures[0]]
    return _json({"layers": [[short(str(layer)) for layer in each] for each in names], "maps": maps, "places": places})


def _cells(drawn: PlacedMap) -> dict[str, Any]:
    table, names = drawn.cells, drawn.names
    undefined = table["undefined"].astype(object).fillna("") if "undefined" in table else [""] * len(table)
    told = pd.Series([*map(_told, table["value"], undefined)], table.index, object)
    values = table.assign(value=told).pivot(index="layer", columns="step", values="value").reindex([*names])
    columns = table.drop_duplicates("step").sort_values("step")
    kept = evenly_spaced(len(columns), max(_MOST_CELLS // len(names), 2))
    shown = columns.iloc[kept]
    is_one = shown["recorded"] == 1
    return {
        "steps": shown["step"].tolist(),
        "lasts": None if is_one.all() else shown["step"].where(is_one, shown["until"] - 1).tolist(),
        "end": int(columns["until"].max()),
        "some": len(kept) < len(columns),
        "values": [[*_row(row)] for row in values.iloc[:, kept].to_numpy(object)],
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _by_layer(series: pd.DataFrame, run: Run, layers: Collection[str]) -> dict[str, Any]:
    values = series.set_index(["layer", "step"])["value"].unstack("step").sort_index()
    steps = run.steps["step"].tolist()
    values = values.reindex(
        columns=sorted({*values.columns, *steps[:1], *steps[-1:]})
    )  # the axis is as long as the run
    count = values.shape
    values = values.iloc[_chosen([str(layer) for layer in values.index], layers)]
    values = values.iloc[:, evenly_spaced(count[1], max(_MOST // len(values), 2))]
    return {
        "layers": [short(str(layer)) for layer in values.index],
        "colors": [to_hex(color) for color in ordered_colors(len(values))],
        "steps": [int(step) for step in values.columns],
        "of": [*count],
        "values": [[*_row(row)] for row in values.to_numpy(object)],
    }


def _chosen(names: Sequence[str], first: Collection[str]) -> list[int]:
    """The places of the layers that are shown; of too many, the given ones and others at even distances."""
    if len(names) <= MOST_LAYERS:
        return [*range(len(names))]
    kept = [place for place, name in enumerate(names) if name in first]
    others = [place for place, name in enumerate(names) if name not in first]
    return sorted([*kept, *(others[one] for one in evenly_spaced(len(others), max(MOST_LAYERS - len(kept), 0)))])


def _row(values: np.ndarray) -> Iterator[Told]:
    """What pandas fills in for cells without a row, NaN, is null."""
    for value in values:
        yield None if isinstance(value, float) and math.isnan(value) else value


def _told(value: float, undefined: str) -> Told:
    if math.isfinite(value):
        return float(f"{value:.3g}")
    return _CODES.get(undefined) or ("n" if math.isnan(value) else "p" if value > 0 else "m")
