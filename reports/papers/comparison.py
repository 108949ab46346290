"""Means over seeds, published and measured, with their 95% confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import pandas as pd

from gatdiag.experiments.settings import Experiment
from gatdiag.summary import mean_by
from reports.papers.published import Published
from reports.papers.runner import Results, Row, settings_key
from reports.papers.study import matches

Verdict: TypeAlias = Literal[
    "in the interval", "intervals overlap", "apart", "too few trainings", "other settings", "not run", "not known"
]


COMPARED: Final = ("apart", "intervals overlap", "in the interval")
"""Verdicts on cells that can be compared, the worst first."""
CONSTANT_LOSS: Final = {
    "Cora": 1.946,
    "CiteSeer:isolated=unmasked": 1.792,
    "PubMed": 1.099,
    "actor.npz": 1.575,
    "chameleon.npz": 1.604,
    "cornell.npz": 1.442,
    "squirrel.npz": 1.609,
    "texas.npz": 1.175,
    "wisconsin.npz": 1.264,
}
"""Graph -> loss of the best constant prediction: the entropy of the labels of the training nodes."""
_PLATEAU: Final = 0.98


@dataclass(frozen=True)
class Comparison:
    """A measured mean over seeds and the published one.

    Attributes:
        cells: The trainings, which differ in their seed.
        label: Their varying settings.
        column: The column of the results that is compared.
        done: Number of finished trainings.
        mean: Measured, in the unit of the paper; NaN without finished trainings.
        ci95: Half the width of its 95% interval (Student's t); NaN for fewer than three trainings.
        published: The number of the paper, if known.
        verdict: ``in the interval``: the published mean is in the measured interval; ``intervals overlap``: only the
            intervals overlap; ``apart``: they do not; else why there is no comparison.
        plateau: Whether the loss ends, on average, where it is for a constant prediction: within 2% of it.
    """

    cells: Sequence[Experiment]
    label: str
    column: str
    done: int
    mean: float
    ci95: float
    published: Published | None
    verdict: Verdict
    plateau: bool = False


def compare(results: Results) -> list[Comparison]:
    """Compare each mean over seeds with the number of the paper."""
    protocol = {_without_seed(cell) for cell in results.study.full}
    rows = []
    for column in results.study.columns:
        known = [one for one in results.study.published if one.column == column]
        for cells in results.groups:
            published = next((one for one in known if matches(cells[0], one.where)), None)
            values = _values(results, cells, column)
            mean, ci95 = interval(values)
            verdict = judge_mean(mean, ci95, published, is_protocol=_without_seed(cells[0]) in protocol)
            label, plateau = results.label(cells[0]), is_on_plateau(results.rows, cells)
            rows.append(Comparison(cells, label, column, len(values), mean, ci95, published, verdict, plateau))
    return rows


def is_on_plateau(rows: Mapping[Experiment, Row], cells: Sequence[Experiment]) -> bool:
    """Whether the mean of the last losses is that of a constant prediction."""
    losses = [float("nan" if (loss := rows[cell]["loss"]) is None else loss) for cell in cells if cell in rows]
    constant = CONSTANT_LOSS.get(cells[0].data, math.inf)
    return bool(losses) and sum(losses) / len(losses) > _PLATEAU * constant


def _without_seed(cell: Experiment) -> tuple[Any, ...]:
    return settings_key({**asdict(cell.resolved), "seed": 0})


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% confidence interval, each NaN if undefined.

    Example:
        >>> interval([1.0, 2.0, 3.0])
        (2.0, 2.484...)
    """
    row = mean_by(pd.DataFrame({"value": values, "group": 0}), "value", ["group"])
    if not len(row):  # no values, or only NaN
        return math.nan, math.nan
    return float(row["mean"].iloc[0]), float(row["half_width"].iloc[0])


def judge_mean(mean: float, ci95: float, published: Published | None, *, is_protocol: bool = True) -> Verdict:
    """The verdict of a `Comparison`; ``is_protocol``: the settings are those of the paper."""
    if published is None:
        return "not known"
    if math.isnan(mean):
        return "not run"
    if not is_protocol:
        return "other settings"
    if math.isnan(ci95):
        return "too few trainings"
    difference = abs(mean - published.value)
    if difference <= ci95:
        return "in the interval"
    published_ci95 = 0.0 if math.isnan(published.ci95) else published.ci95
    return "intervals overlap" if difference <= ci95 + published_ci95 else "apart"


def _values(results: Results, cells: Sequence[Experiment], column: str) -> list[float]:
    """Values of finished trainings, in the unit of the paper."""
    unit = 100.0 if column.endswith("accuracy") else 1.0
    done = [results.rows[cell] for cell in cells if cell in results.rows]
    return [unit * float("nan" if one[column] is None else one[column]) for one in done]
