"""The list of all names; trains what a name needs, once for all names, and compares what came of it with the paper."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

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
from gatdiag.experiments.settings import Device, Experiment
from gatdiag.experiments.sweep import documents, is_recorded, run_folder, sweep, table_row, varied
from gatdiag.run import load
from gatdiag.summary import mean_by

Verdict: TypeAlias = Literal[
    "in the interval", "intervals overlap", "apart", "too few trainings", "other settings", "not run", "not known"
]
TRAININGS: Final = "trainings"
"""Folder beside the reports with the results and runs of all names, each trained once (`gatdiag.experiments.sweep`)."""

DEFAULTS: Final = {one.name: one.default for one in fields(Experiment)}
"""Of all settings."""
_SHOWN: Final = ("data", "layers", "initialization")


def _numbered(name: str) -> list[tuple[int, str]]:
    """For sorting: figure-2 is before figure-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


_PAPERS: Final = sorted(
    (*gats.REPRODUCTIONS, *lipschitz.REPRODUCTIONS, *taming.REPRODUCTIONS), key=lambda one: _numbered(one.name)
)
_BEYOND: Final = (
    beyond_dot_product_attention.REPRODUCTION,
    beyond_features.REPRODUCTION,
    beyond_predicted_c.REPRODUCTION,
    beyond_rebalancing.REPRODUCTION,
    beyond_theorem_6_3.REPRODUCTION,
)
REPRODUCTIONS: Final = {one.name: one for one in (*_PAPERS, *_BEYOND)}
"""All that can be reproduced by name, in the order of the list."""


@dataclass(frozen=True)
class Trainings:
    """What came of the trainings of a name.

    Attributes:
        reproduction: What is reproduced.
        options: How it was asked for.
        folder: Of all trainings.
        cells: Those of this name, each on the device where it was trained.
        failed: Those that gatdiag refused, and why.
    """

    reproduction: Reproduction
    options: Options
    folder: Path
    cells: tuple[Experiment, ...]
    failed: Mapping[Experiment, str]

    @cached_property
    def documents(self) -> dict[Experiment, dict[str, Any]]:
        """What is kept of each training that is done."""
        return documents(self.cells, self.folder)

    @cached_property
    def runs(self) -> dict[Experiment, Path]:
        """The folder of each recorded training that is done."""
        return {cell: run_folder(cell, self.folder) for cell in self.documents if is_recorded(cell, self.folder)}

    @cached_property
    def results(self) -> dict[Experiment, dict[str, Any]]:
        """Of each training that is done, by column: settings, result, and what is measured on its run."""
        return {cell: {**table_row(cell, one), **self._measured(cell)} for cell, one in self.documents.items()}

    @property
    def complete(self) -> dict[Experiment, dict[str, Any]]:
        """Those of them in which no column is missing because the run was not kept."""
        return {cell: row for cell, row in self.results.items() if cell in self.runs or not self.reproduction.measured}

    def _measured(self, cell: Experiment) -> Mapping[str, float]:
        measure = self.reproduction.measured
        return measure(load(self.runs[cell])) if measure and cell in self.runs else {}

    @cached_property
    def groups(self) -> list[list[Experiment]]:
        """The trainings that differ in their seed alone."""
        found: dict[tuple[Any, ...], list[Experiment]] = {}
        for cell in self.cells:
            found.setdefault(tuple(self.settings(cell).values()), []).append(cell)
        return [*found.values()]

    @cached_property
    def _varied(self) -> list[str]:
        return varied(self.cells, "seed", "device")

    def settings(self, cell: Experiment) -> dict[str, Any]:
        """A training's settings that vary, besides the seed."""
        return {name: getattr(cell, name) for name in self._varied}

    def label(self, cell: Experiment) -> str:
        """The same in a few words: of most only what is not the default."""
        settings = self.settings(cell)
        return ", ".join(_words(name, value) for name, value in (unusual(settings) or settings).items())


def unusual(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are not the default, and those that are always said."""
    return {name: value for name, value in settings.items() if name in _SHOWN or value != DEFAULTS[name]}


def _words(name: str, value: Any) -> str:
    if value is True:
        return name
    return value if isinstance(value, str) and value != "none" else f"{name} {value}"


def planned(one: Reproduction, out: Path, options: Options) -> Trainings:
    """What a name needs, and what of it is done; a training counts on whichever device it was."""
    folder = out / TRAININGS
    asked = [replace(cell, device=options.device) for cell in (one.full if options.full else one.quick)]
    return Trainings(one, options, folder, tuple(_as_done(cell, folder) for cell in asked), {})


def trained(one: Reproduction, out: Path, options: Options, on_cell: Callable[[], None] = lambda: None) -> Trainings:
    """Train what is not done yet; killed at any instant, it goes on where it was.

    Raises:
        InputError: Another one trains there, or a worker was killed.
    """
    trainings = planned(one, out, options)
    if not (options.trains and trainings.cells):
        return trainings
    failed = sweep(
        trainings.cells,
        trainings.folder,
        options.root,
        pool=options.pool,
        watched=_watched(trainings),
        every=one.every,
        on_cell=lambda *_: on_cell(),
    )
    return replace(trainings, failed=failed)


def _watched(trainings: Trainings) -> set[Experiment]:
    """The trainings whose runs are needed; what another name will need the runs of is watched the first time."""
    if trainings.reproduction.record:
        return {*trainings.cells}
    others = [one for one in REPRODUCTIONS.values() if one.record]
    needed = {cell for one in others for cell in (one.full if trainings.options.full else one.quick)}
    missing = {*trainings.cells} - {*trainings.documents}
    return {cell for cell in missing if replace(cell, device="cpu") in needed}


def _as_done(cell: Experiment, folder: Path) -> Experiment:
    devices = dict.fromkeys((cell.device, *get_args(Device)))
    alike = [replace(cell, device=device) for device in devices]
    return next(iter(documents(alike, folder)), cell)


# --- published and measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A mean over seeds beside the paper's.

    Attributes:
        settings: Those that vary.
        label: The same in a few words.
        column: What is compared.
        done: How many trainings.
        planned: How many there are to be.
        mean: Measured, in the unit of the paper; None if nothing was.
        ci95: Half the width of its 95 % interval by Student's t; None for fewer than three trainings.
        published: The paper's number, if it has one that is known.
        verdict: ``in the interval``: the published mean is in the measured interval; ``intervals overlap``: it is not,
            but the intervals do; ``apart``: neither; else why that cannot be said.
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
        """Measured less published."""
        return None if self.published is None or self.mean is None else self.mean - self.published.value


def compared(trainings: Trainings) -> list[Row]:
    """Each mean over seeds beside the number of the paper."""
    protocol = {_without_seed(cell) for cell in trainings.reproduction.full}
    rows = []
    for column in trainings.reproduction.columns:
        known = [one for one in trainings.reproduction.published if one.column == column]
        for cells in trainings.groups:
            settings, label = trainings.settings(cells[0]), trainings.label(cells[0])
            published = next((one for one in known if cells[0].fits(one.where)), None)
            values = _values(trainings, cells, column)
            mean, ci95 = interval(values)
            verdict = judge(mean, ci95, published, of_the_paper=_without_seed(cells[0]) in protocol)
            rows.append(Row(settings, label, column, len(values), len(cells), mean, ci95, published, verdict))
    return rows


def _without_seed(cell: Experiment) -> Experiment:
    """The same for all seeds and devices."""
    return replace(cell.resolved, seed=0, device="cpu")


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and half the width of its 95 % confidence interval.

    Example:
        >>> interval([1.0, 2.0, 3.0])
        (2.0, 2.484...)
    """
    row = mean_by(pd.DataFrame({"value": values, "group": 0}), "value", ["group"])
    if not len(row):  # there are none, or all are NaN
        return None, None
    half = float(row["half_width"].iloc[0])
    return float(row["mean"].iloc[0]), None if math.isnan(half) else half


def judge(mean: float | None, ci95: float | None, published: Published | None, *, of_the_paper: bool = True) -> Verdict:
    """See `Row.verdict`."""
    if published is None:
        return "not known"
    if mean is None:
        return "not run"
    if not of_the_paper:
        return "other settings"
    if ci95 is None:
        return "too few trainings"
    difference = abs(mean - published.value)
    if difference <= ci95:
        return "in the interval"
    return "intervals overlap" if difference <= ci95 + (published.ci95 or 0.0) else "apart"


def _values(trainings: Trainings, cells: Sequence[Experiment], column: str) -> list[float]:
    """In the unit of the paper."""
    unit = 100.0 if column.endswith("accuracy") else 1.0
    done = [trainings.results[cell] for cell in cells if cell in trainings.results]
    return [unit * float("nan" if one[column] is None else one[column]) for one in done if column in one]


def chosen(names: Sequence[str], known: Mapping[str, Reproduction]) -> Iterator[Reproduction]:
    """Those that are asked for; ``all`` is all of them.

    Raises:
        InputError: There is no such name.
    """
    for name in names:
        if name not in (*known, "all"):
            raise InputError(f"There is no {name!r} to reproduce: expected all, or some of {', '.join(known)}")
    yield from known.values() if "all" in names else (known[name] for name in dict.fromkeys(names))
