"""A name of `gatdiag reproduce`: its trainings, the numbers of the paper, its figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.experiments.pool import THIS_PROCESS, Pool
from gatdiag.experiments.settings import Device, Experiment
from gatdiag.figures.accuracy import size_table
from gatdiag.recorder import Every
from gatdiag.run import Run


@dataclass(frozen=True)
class Published:
    """A number of a paper.

    Attributes:
        where: Settings of the trainings that it is the mean of; all others may have any value.
        value: As printed; accuracies in percent.
        ci95: Half the width of its 95 % confidence interval; None if unknown.
        column: A field of `gatdiag.experiments.experiment.Result` (``epochs`` is ``epochs_trained`` here), or a key
            returned by `Reproduction.measure`.
        source: Where in the paper it is.
    """

    where: Mapping[str, Any]
    value: float
    ci95: float | None = None
    column: str = "test_accuracy"
    source: str = ""


@dataclass(frozen=True)
class Drawing:
    """One of `gatdiag.figures.FIGURES`, drawn from some of the trainings.

    Attributes:
        figure: Its name. A figure of a single run is drawn for each combination of settings, with the lowest seed.
        where: Settings of the trainings that are drawn.
        options: Options of the figure, such as ``layers``.
        table: Makes the data of the figure from the results (one row per training); None: it is drawn from runs.
    """

    figure: str
    where: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    table: Callable[[pd.DataFrame], pd.DataFrame] | None = None


@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Attributes:
        full: The protocol of the paper; else ten minutes on two cores.
        root: Folder of the data sets.
        device: cpu or cuda.
        pool: Where trainings run.
        train: Whether to train what is missing; else only to report.
    """

    full: bool = False
    root: Path = Path("data")
    device: Device = "cpu"
    pool: Pool = THIS_PROCESS
    train: bool = True


@dataclass(frozen=True)
class Evidence:
    """Measurements that are not a grid of trainings.

    Attributes:
        table: One row per measurement, written as results.csv.
        text: Markdown, with the outcome in its first paragraph.
        pictures: File name -> PNG.
    """

    table: pd.DataFrame
    text: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper, or a finding beyond the papers.

    Attributes:
        name: On the command line, and of its folder.
        title: One line.
        claim: One sentence: what the paper says, or what we found.
        paper: The paper and the place in it; "" for a finding of ours.
        full: The trainings of the paper's protocol.
        quick: The trainings that fit in ten minutes on two cores.
        published: The numbers of the paper that are known.
        columns: The columns of the results that are compared.
        record: Whether the trainings are recorded, as most figures need.
        every: Which steps are recorded, as in `gatdiag.watch`; ``auto`` depends on the speed of the machine.
        measure: Run -> further columns of the results.
        judge: Results (one row per finished training) -> sentences on which parts of the claim are reproduced.
        drawings: The figures.
        notes: Differences between the paper, its code and this reproduction.
        evidence: Measurements in place of trainings (folder of the data sets).
    """

    name: str
    title: str
    claim: str
    paper: str = ""
    full: tuple[Experiment, ...] = ()
    quick: tuple[Experiment, ...] = ()
    published: tuple[Published, ...] = ()
    columns: tuple[str, ...] = ("test_accuracy",)
    record: bool = False
    every: Every = "auto"
    measure: Callable[[Run], Mapping[str, float]] | None = None
    judge: Callable[[pd.DataFrame], Sequence[str]] | None = None
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: Callable[[Path], Evidence] | None = None


def published_values(
    values: Mapping[Any, float | tuple[float, float]],
    names: tuple[str, ...],
    *,
    column: str = "test_accuracy",
    source: str,
    **common: Any,
) -> tuple[Published, ...]:
    """Make several `Published` numbers of one source.

    Args:
        values: Value of the varying setting, or tuple of several -> number, or number and half width of its interval.
        names: Names of the varying settings.
        column: See `Published`.
        source: See `Published`.
        common: Settings that do not vary.

    Example:
        >>> published_values({(10, "xavier"): (25.5, 18.0)}, ("layers", "initialization"), source="table 3")[0].where
        {'layers': 10, 'initialization': 'xavier'}
    """
    numbers = []
    for key, value in values.items():
        where = dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))
        mean, ci95 = value if isinstance(value, tuple) else (value, None)
        numbers.append(Published({**where, **common}, mean, ci95, column, source))
    return tuple(numbers)


def with_epochs(cells: Iterable[Experiment], epochs: int) -> tuple[Experiment, ...]:
    """The same trainings with another number of epochs."""
    return tuple(replace(cell, epochs=epochs) for cell in cells)


def table_by_size(
    results: pd.DataFrame, values: Mapping[str, str], size: str, sizes: pd.Series, variants: pd.Series | Sequence[str]
) -> pd.DataFrame:
    """Means against depth or width, as the data of a figure of `gatdiag.figures`.

    ``values`` has the column of each panel; each training has its size, and the variant that is its line.
    """
    names = {"test_accuracy": "accuracy_test", "last_test_accuracy": "last_accuracy_test"}
    table = results.rename(columns=names).assign(score="accuracy", variant=variants, **{size: sizes})
    return size_table(table, size, {panel: [names.get(column, column)] for panel, column in values.items()})
