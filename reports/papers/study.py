"""A name of `python -m reports.papers`: its trainings, the numbers of the paper, its figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pandas as pd

from gatdiag.experiments.settings import Experiment
from gatdiag.figures.accuracy import size_table
from gatdiag.recorder import Every
from gatdiag.run import Run
from reports.papers.published import Published

Measured: TypeAlias = tuple[pd.DataFrame, dict[str, bytes]]
"""One row per measurement, and pictures: file name -> PNG."""
_SCORE: Final = "accuracy_test"  # as `gatdiag.summary.compare` has it


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
class Study:
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
        other_seeds: Trainings of a cell that is apart from the paper's, with seeds that the comparison does not use.
        notes: Differences between the paper, its code and this study.
        script: Measures something else than trainings of a grid; called with the folder of the data sets.
        describe: The table of the script -> Markdown, with the outcome in its first paragraph.
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
    other_seeds: tuple[Experiment, ...] = ()
    notes: tuple[str, ...] = ()
    script: Callable[[Path], Measured] | None = None
    describe: Callable[[pd.DataFrame], str] | None = None


def trainings_of(study: Study, *, full: bool) -> tuple[Experiment, ...]:
    """What is trained: the cells of the comparison and, under the paper's protocol, those with other seeds."""
    return (*study.full, *study.other_seeds) if full else study.quick


def matches(cell: Experiment, settings: Mapping[str, Any]) -> bool:
    """True if a training has these settings, whatever the others."""
    return all(getattr(cell, name) == value for name, value in settings.items())


def with_epochs(cells: Iterable[Experiment], epochs: int) -> tuple[Experiment, ...]:
    """The same trainings with another number of epochs."""
    return tuple(replace(cell, epochs=epochs) for cell in cells)


def table_by_size(
    results: pd.DataFrame, values: Mapping[str, str], size: str, sizes: pd.Series, variants: pd.Series | Sequence[str]
) -> pd.DataFrame:
    """Means against depth or width, as the data of a figure of `gatdiag.figures`.

    ``values`` has the column of each panel; each training has its size, and the variant that is its line.
    """
    table = results.rename(columns={"test_accuracy": _SCORE}).assign(
        score="accuracy", variant=variants, **{size: sizes}
    )
    columns = {panel: [_SCORE if column == "test_accuracy" else column] for panel, column in values.items()}
    return size_table(table, size, columns)
