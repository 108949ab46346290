"""The range of each quantity over the layers of healthy trainings, from which `gatdiag.quantities.HEALTHY` comes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.quantities import HEALTHY, compared_label
from gatdiag.run import load
from gatdiag.summary import compared_series, typical_values
from reports.papers.markdown import table as markdown
from tests.bank.bank import should_count, train_case
from tests.bank.cases import Case
from tests.bank.tables import Table

_PERCENTILES: Final = (1, 5, 50, 95, 99)


def measure_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """The median over training of each quantity, in each layer of a control or a repaired twin that trains."""
    if not should_count(case.cause, *train_case(case, folder)):
        return []
    run = load(folder / case.name / ("faulty" if case.repaired is None else "repaired"))
    return [
        {"case": case.name, "quantity": column, "layer": layer, "value": value}
        for column in HEALTHY
        for layer, value in typical_values(compared_series(run, column)).items()
    ]


def range_tables(values: pd.DataFrame) -> Iterator[Table]:
    """Percentiles beside the declared range."""
    rows = [_row(column, values.loc[values["quantity"] == column, "value"].to_numpy()) for column in HEALTHY]
    text = (
        "Controls and repaired twins that train. Each layer counts once, by the median over its recorded steps. The "
        "range that pages show holds the 5th to the 95th percentile, rounded outwards."
    )
    yield Table(
        "diagnosis/ranges",
        "Quantities by layer in healthy trainings",
        pd.DataFrame(rows),
        [text, markdown(pd.DataFrame(rows))],
    )


def _row(column: str, values: np.ndarray) -> dict[str, str | int]:
    low, high = HEALTHY[column]
    found = np.percentile(values, _PERCENTILES) if len(values) else [np.nan] * len(_PERCENTILES)
    share = float(((low <= values) & (values <= high)).mean()) if len(values) else np.nan
    percentiles = {f"{percentile}%": f"{value:.2g}" for percentile, value in zip(_PERCENTILES, found, strict=True)}
    shown = {"shown range": f"{low:g} to {high:g}", "share in it": f"{share:.0%}"}
    return {"quantity": compared_label(column), "layers": len(values), **percentiles, **shown}
