"""All names, their trainings, and the comparison of the results with the papers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pandas as pd

from gatdiag.errors import InputError
from gatdiag.experiments.reproduce import (
    beyond_dot_product_attention,
    beyond_features,
    beyond_predicted_c,
    beyond_rebalancing,
    beyond_theorem_6_3,
    gats,
    lipschitz,
    taming,
)
from gatdiag.experiments.reproduce.reproduction import Options, Published, Reproduction
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import is_recorded, read_results, run_folder, sweep, table_row, varied_settings
from gatdiag.run import load
from gatdiag.summary import mean_by

Verdict: TypeAlias = Literal[
    "in the interval", "intervals overlap", "apart", "too few trainings", "other settings", "not run", "not known"
]
TRAININGS: Final = "trainings"
"""Folder next to the reports, with the results and runs of all names; each training is done once."""

DEFAULTS: Final = {one.name: one.default for one in fields(Experiment)}
_ALWAYS_SHOWN: Final = ("data", "layers", "initialization")

_ALL: Final[tuple[Reproduction, ...]] = (
    *gats.REPRODUCTIONS,
    *lipschitz.REPRODUCTIONS,
    *taming.REPRODUCTIONS,
    beyond_dot_product_attention.REPRODUCTION,
    beyond_features.REPRODUCTION,
    beyond_predicted_c.REPRODUCTION,
    beyond_rebalancing.REPRODUCTION,
    beyond_theorem_6_3.REPRODUCTION,
)
REPRODUCTIONS: Final = {one.name: one for one in _ALL}
"""Everything that can be reproduced, by name."""


@dataclass(frozen=True)
class Trainings:
    """The trainings of a name.

    Attributes:
        reproduction: What is reproduced.
        options: How to reproduce it.
        folder: Folder of the trainings of all names.
        cells: The trainings of this name.
        failed: The trainings that failed, and why.
    """

    reproduction: Reproduction
    options: Options
    folder: Path
    cells: tuple[Experiment, ...]
    failed: Mapping[Experiment, str]

    @cached_property
    def documents(self) -> dict[Experiment, dict[str, Any]]:
        """The stored result of each finished training."""
        return read_results(self.cells, self.folder)

    @cached_property
    def runs(self) -> dict[Experiment, Path]:
        """The run folder of each finished training that was recorded."""
        return {cell: run_folder(cell, self.folder) for cell in self.documents if is_recorded(cell, self.folder)}

    @cached_property
    def results(self) -> dict[Experiment, dict[str, Any]]:
        """A row for each finished training: settings, result, and measurements of its run."""
        return {cell: {**table_row(cell, one), **self._measure(cell)} for cell, one in self.documents.items()}

    @property
    def complete(self) -> dict[Experiment, dict[str, Any]]:
        """The rows without missing measurements, which need the run."""
        return {cell: row for cell, row in self.results.items() if cell in self.runs or not self.reproduction.measure}

    def _measure(self, cell: Experiment) -> Mapping[str, float]:
        measure = self.reproduction.measure
        return measure(load(self.runs[cell])) if measure and cell in self.runs else {}

    @cached_property
    def groups(self) -> list[list[Experiment]]:
        """The trainings that differ only in their seed."""
        groups: dict[tuple[Any, ...], list[Experiment]] = {}
        for cell in self.cells:
            groups.setdefault(tuple(self.settings(cell).values()), []).append(cell)
        return [*groups.values()]

    @cached_property
    def _varied(self) -> list[str]:
        return varied_settings(self.cells, "seed")

    def settings(self, cell: Experiment) -> dict[str, Any]:
        """The settings of a training that vary, without the seed."""
        return {name: getattr(cell, name) for name in self._varied}

    def label(self, cell: Experiment) -> str:
        """The varying settings as text; most are omitted at their default."""
        settings = self.settings(cell)
        return ", ".join(_format(name, value) for name, value in (notable(settings) or settings).items())


def notable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ from the default, and those that are always shown."""
    return {name: value for name, value in settings.items() if name in _ALWAYS_SHOWN or value != DEFAULTS[name]}


def _format(name: str, value: Any) -> str:
    if value is True:
        return name
    return value if isinstance(value, str) and value != "none" else f"{name} {value}"


def find_trainings(one: Reproduction, out: Path, options: Options) -> Trainings:
    """The trainings of a name, without training any."""
    cells = tuple(replace(cell, device=options.device) for cell in (one.full if options.full else one.quick))
    return Trainings(one, options, out / TRAININGS, cells, {})


def train_missing(
    one: Reproduction, out: Path, options: Options, on_cell: Callable[[], None] = lambda: None
) -> Trainings:
    """Do the trainings of a name that are missing, if the options ask for it; can be killed and repeated at any time.

    Raises:
        InputError: Another process trains there, or a worker was killed.
    """
    trainings = find_trainings(one, out, options)
    if not (options.train and trainings.cells):
        return trainings
    failed = sweep(
        trainings.cells,
        trainings.folder,
        options.root,
        pool=options.pool,
        watched=trainings.cells if one.record else (),
        every=one.every,
        on_cell=lambda *_: on_cell(),
    )
    return replace(trainings, failed=failed)


# --- published and measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A measured mean over seeds and the published one.

    Attributes:
        settings: The varying settings.
        label: The same as text.
        column: The column of the results that is compared.
        done: Number of finished trainings.
        planned: Number of all trainings.
        mean: Measured, in the unit of the paper; None without finished trainings.
        ci95: Half the width of its 95 % interval (Student's t); None for fewer than three trainings.
        published: The number of the paper, if known.
        verdict: ``in the interval``: the published mean is in the measured interval; ``intervals overlap``: only the
            intervals overlap; ``apart``: they do not; else why there is no comparison.
    """

    settings: Mapping[str, Any]
    label: str
    column: str
    done: int
    planned: int
    mean: float | None
    ci95: float | None
    published: Published | None
    verdict: Verdict

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.published is None or self.mean is None else self.mean - self.published.value


def compare(trainings: Trainings) -> list[Row]:
    """Compare each mean over seeds with the number of the paper."""
    protocol = {_without_seed(cell) for cell in trainings.reproduction.full}
    rows = []
    for column in trainings.reproduction.columns:
        known = [one for one in trainings.reproduction.published if one.column == column]
        for cells in trainings.groups:
            settings, label = trainings.settings(cells[0]), trainings.label(cells[0])
            published = next((one for one in known if cells[0].matches(one.where)), None)
            values = _values(trainings, cells, column)
            mean, ci95 = interval(values)
            verdict = judge_mean(mean, ci95, published, is_protocol=_without_seed(cells[0]) in protocol)
            rows.append(Row(settings, label, column, len(values), len(cells), mean, ci95, published, verdict))
    return rows


def _without_seed(cell: Experiment) -> Experiment:
    return replace(cell.resolved, seed=0, device="cpu")


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and half the width of its 95 % confidence interval, each None if undefined.

    Example:
        >>> interval([1.0, 2.0, 3.0])
        (2.0, 2.484...)
    """
    row = mean_by(pd.DataFrame({"value": values, "group": 0}), "value", ["group"])
    if not len(row):  # no values, or only NaN
        return None, None
    half = float(row["half_width"].iloc[0])
    return float(row["mean"].iloc[0]), None if math.isnan(half) else half


def judge_mean(
    mean: float | None, ci95: float | None, published: Published | None, *, is_protocol: bool = True
) -> Verdict:
    """The verdict of a `Row`; ``is_protocol``: the settings are those of the paper."""
    if published is None:
        return "not known"
    if mean is None:
        return "not run"
    if not is_protocol:
        return "other settings"
    if ci95 is None:
        return "too few trainings"
    difference = abs(mean - published.value)
    if difference <= ci95:
        return "in the interval"
    return "intervals overlap" if difference <= ci95 + (published.ci95 or 0.0) else "apart"


def _values(trainings: Trainings, cells: Sequence[Experiment], column: str) -> list[float]:
    """Values of finished trainings, in the unit of the paper."""
    unit = 100.0 if column.endswith("accuracy") else 1.0
    done = [trainings.results[cell] for cell in cells if cell in trainings.results]
    return [unit * float("nan" if one[column] is None else one[column]) for one in done if column in one]


def select(names: Sequence[str], known: Mapping[str, Reproduction]) -> Iterator[Reproduction]:
    """The reproductions of these names, or all of them for ``all``.

    Raises:
        InputError: A name is unknown.
    """
    for name in names:
        if name not in (*known, "all"):
            raise InputError(f"Expected names to be all or some of {', '.join(known)}, got {name!r}")
    yield from known.values() if "all" in names else (known[name] for name in dict.fromkeys(names))
