"""Accuracy and epochs to the best model against depth, by variant (paper 1, figures 6, 7, 9 and 10)."""

from collections.abc import Mapping, Sequence

import pandas as pd

from gatdiag.figures.look import ACCURACY_PANELS, Canvas, Figure, draw_size_panels, size_table
from gatdiag.run import Run
from gatdiag.summary import compare, depth


def data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Accuracy at the best validation accuracy, and how many steps it took, by variant and depth.

    Args:
        *runs: The runs; those of the same variant and depth are averaged.
        variants: The group of each run by its name, for example its initialization; by default its name
            without numbers, and the width where runs of that name differ in it.

    Returns:
        panel, column, score, variant, size (layers), mean, half_width (of the 95 % interval), lowest, highest, runs.
    """
    apart = () if variants else ("width",)
    return size_table(compare(runs, variants), "depth", ACCURACY_PANELS, apart=apart)


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Accuracy, then epochs to the best model."""
    draw_size_panels(figure, table, ACCURACY_PANELS, size="layers")


def _applies(runs: Sequence[Run]) -> bool:
    return len({depth(run) for run in runs}) > 1


FIGURE = Figure(
    name="accuracy_by_depth",
    title="Accuracy and speed against depth",
    shows="Accuracy at the step of the best validation accuracy, and the number of epochs it took, against the number "
    "of layers; one line per variant, the mean of its runs with its 95 % interval, or with both runs (dashes) where "
    "there are but two.",
    reading="A line that falls with depth is a recipe that does not scale to deep networks; one that stays level does. "
    "The second panel tells whether depth costs training time.",
    equation="",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 6, 7, 9 and 10",
    group="comparison",
    needs=("steps.val_accuracy", "steps.test_accuracy"),
    per="comparison",
    data=data,
    draw=draw,
    height=lambda table, width: 2.2 if width > 4.5 else 3.6,
    applies=_applies,
)
