"""A name of `gatdiag reproduce`: what is trained, what the paper says of it, what is drawn."""

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
    """One number of a paper.

    Attributes:
        where: The settings of the trainings that it is a mean of; what is not named may be anything.
        value: As printed: accuracies in percent.
        ci95: Half the width of its 95 % confidence interval; None if the paper has none, or it is not known to us.
        column: Of `gatdiag.experiments.experiment.Result` (whose epochs are epochs_trained here), or of what
            `Reproduction.measured` gives.
        source: Where it stands.
    """

    where: Mapping[str, Any]
    value: float
    ci95: float | None = None
    column: str = "test_accuracy"
    source: str = ""


@dataclass(frozen=True)
class Drawing:
    """One of `gatdiag.figures.FIGURES`, of some of the trainings.

    Attributes:
        figure: Its name. One that draws one run is drawn once for each combination of settings, of its lowest seed.
        where: The settings of the trainings that are drawn.
        options: Of the figure, such as ``layers``.
        table: Makes its data from the table of results (a row a training), where no runs are needed.
    """

    figure: str
    where: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    table: Callable[[pd.DataFrame], pd.DataFrame] | None = None


@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Attributes:
        full: The protocol of the paper; else what fits in ten minutes on two cores.
        root: Folder of the data sets.
        device: cpu or cuda.
        pool: Where trainings run.
        trains: Train what is not done; else only report on what is.
    """

    full: bool = False
    root: Path = Path("data")
    device: Device = "cpu"
    pool: Pool = THIS_PROCESS
    trains: bool = True


@dataclass(frozen=True)
class Evidence:
    """What was measured where no grid of trainings is all there is to it.

    Attributes:
        table: A row a measurement; becomes results.csv.
        text: Markdown, with the outcome in its first paragraph.
        pictures: File name -> PNG.
    """

    table: pd.DataFrame
    text: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper, or a finding beyond them.

    Attributes:
        name: As on the command line, and of its folder.
        title: One line.
        claim: One sentence: what the paper says, or what we found.
        paper: Which, and where in it; "" for a finding of ours.
        full: The trainings of the paper's protocol, as `gatdiag.experiments.sweep.grid` makes them.
        quick: Those that fit in ten minutes on two cores.
        left_out: What quick leaves out of what is measured besides trainings, in words.
        published: The numbers that are known to us.
        columns: What of the results is compared and shown.
        record: Whether the trainings are watched, as most figures need.
        every: Which of their steps, as `gatdiag.watch` has it; ``auto`` depends on how fast the machine is.
        measured: A run -> other numbers by name, which become columns of the results.
        judged: The results (a row a training that is done) -> sentences on what of the claim is reproduced.
        drawings: The figures.
        notes: Differences between the paper and its code, or between it and what is done here.
        evidence: Measures, in place of trainings or besides.
    """

    name: str
    title: str
    claim: str
    paper: str = ""
    full: tuple[Experiment, ...] = ()
    quick: tuple[Experiment, ...] = ()
    left_out: str = ""
    published: tuple[Published, ...] = ()
    columns: tuple[str, ...] = ("test_accuracy",)
    record: bool = False
    every: Every = "auto"
    measured: Callable[[Run], Mapping[str, float]] | None = None
    judged: Callable[[pd.DataFrame], Sequence[str]] | None = None
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: Callable[[Options], Evidence] | None = None


def published(
    values: Mapping[Any, float | tuple[float, float]],
    *names: str,
    column: str = "test_accuracy",
    source: str,
    **also: Any,
) -> tuple[Published, ...]:
    """Numbers of a paper.

    Args:
        values: By the settings in which they differ, as one value or a tuple; some with half their interval.
        names: Of these settings.
        source: As `Published` has it.
        column: As `Published` has it.
        also: The settings in which they do not differ.

    Example:
        >>> published({(10, "xavier"): (25.5, 18.0)}, "layers", "initialization", source="table 3")[0].where
        {'layers': 10, 'initialization': 'xavier'}
    """
    found = []
    for key, value in values.items():
        where = dict(zip(names, key if len(names) > 1 else (key,), strict=True))
        mean, ci95 = value if isinstance(value, tuple) else (value, None)
        found.append(Published({**where, **also}, mean, ci95, column, source))
    return tuple(found)


def shorter(cells: Iterable[Experiment], epochs: int) -> tuple[Experiment, ...]:
    """The same trainings with fewer epochs."""
    return tuple(replace(cell, epochs=epochs) for cell in cells)


def by_size(
    results: pd.DataFrame, values: Mapping[str, str], size: str, sizes: pd.Series, variants: pd.Series | Sequence[str]
) -> pd.DataFrame:
    """Means against depth or width, as `gatdiag.figures` draws them.

    Args:
        results: A row a training.
        values: Panel -> the column that it shows.
        size: "depth" or "width".
        sizes: That of each training.
        variants: The line that each belongs to.
    """
    named = {"test_accuracy": "accuracy_test", "last_test_accuracy": "last_accuracy_test"}
    table = results.rename(columns=named).assign(score="accuracy", variant=variants, **{size: sizes})
    return size_table(table, size, {panel: [named.get(column, column)] for panel, column in values.items()})
