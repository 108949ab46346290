"""The range of each quantity over the layers of healthy trainings, from which `gatdiag.quantities.HEALTHY` comes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.quantities import HEALTHY, compared_label, get_quantity
from gatdiag.run import load
from gatdiag.summary import compared_series, shown_values, typical_values
from reports.papers.markdown import table as markdown
from tests.bank.bank import should_count, train_case
from tests.bank.cases import Case
from tests.bank.tables import Table

_PERCENTILES: Final = (1, 5, 50, 95, 99)
_USUAL: Final = "median, or end"


def measure_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Each quantity as findings show it, in each layer of a control or a repaired twin that trains."""
    if not should_count(case.cause, *train_case(case, folder)):
        return []
    run = load(folder / case.name / ("faulty" if case.repaired is None else "repaired"))
    return [
        {"case": case.name, "quantity": column, "of": of, "layer": layer, "value": value}
        for column in HEALTHY
        for of, values in _shown(compared_series(run, column), column)
        for layer, value in values.items()
    ]


def _shown(series: pd.DataFrame, column: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The steps that values are of, and layer -> value."""
    if len(series) and not get_quantity(column).is_of_end:
        yield "first step", typical_values(series, (int(series["step"].min()),))
        if get_quantity(column).of == "update":
            yield "largest of 20 steps", typical_values(series, (0, 19))
    yield _USUAL, shown_values(series, column)[0]


def range_tables(values: pd.DataFrame) -> Iterator[Table]:
    """Percentiles beside the declared range."""
    found = {key: group["value"].to_numpy() for key, group in values.groupby(["quantity", "of"], sort=False)}
    kinds = [(column, of) for column in HEALTHY for of in (*values["of"].unique(), _USUAL)]
    rows = [_row(*key, found.get(key, np.empty(0))) for key in dict.fromkeys(kinds) if key in found or key[1] == _USUAL]
    text = (
        "Controls and repaired twins that train. Each layer counts once: at its first step, by the median over its "
        "recorded steps or, of what training makes of it, at the end. The range that pages show holds the 5th to the "
        "95th percentile of all of these, rounded outwards."
    )
    yield Table(
        "diagnosis/ranges",
        "Quantities by layer in healthy trainings",
        pd.DataFrame(rows),
        [text, markdown(pd.DataFrame(rows))],
    )


def _row(column: str, of: str, values: np.ndarray) -> dict[str, str | int]:
    low, high = HEALTHY[column]
    found = np.percentile(values, _PERCENTILES) if len(values) else [np.nan] * len(_PERCENTILES)
    share = float(((low <= values) & (values <= high)).mean()) if len(values) else np.nan
    percentiles = {f"{percentile}%": f"{value:.2g}" for percentile, value in zip(_PERCENTILES, found, strict=True)}
    shown = {"shown range": f"{low:g} to {high:g}", "share in it": f"{share:.0%}"}
    return {"quantity": compared_label(column), "of": of, "layers": len(values), **percentiles, **shown}
