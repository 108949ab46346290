"""Training accuracy against the depth of the tree a network must see through (paper 2; Alon & Yahav)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gatdiag.figures.look import Canvas, Figure, draw_size_panels, size_table
from gatdiag.run import Run
from gatdiag.summary import accuracies, compare, depth, logged

_PANELS = {"training accuracy": ("best_training_accuracy",)}


def data(
    *runs: Run, variants: Mapping[str, str] | None = None, tree_depths: Mapping[str, int] | None = None
) -> pd.DataFrame:
    """The best training accuracy, by variant and tree depth; drawn only when asked for by name.

    Args:
        *runs: The runs; those of the same variant and tree depth are averaged.
        variants: The group of each run by its name, for example its layer type; by default its name without numbers.
        tree_depths: The tree depth of each run by its name; by default its number of layers less one, as in the
            benchmark.

    Returns:
        panel, column, score, variant, size (tree depth), mean, half_width (of the 95 % interval), lowest,
        highest, runs.
    """
    table = compare(runs, variants)
    names = [accuracies(run).get("train") for run in runs]
    best = [logged(run, name).max() if name else np.nan for run, name in zip(runs, names, strict=True)]
    trees = [(tree_depths or {}).get(run.name, depth(run) - 1) for run in runs]
    return size_table(table.assign(best_training_accuracy=best, depth=trees), "depth", _PANELS)


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """One panel."""
    draw_size_panels(figure, table, _PANELS, size="tree depth")


def _applies(_runs: Sequence[Run]) -> bool:
    """Never of itself: nothing in a run tells that its graphs are trees, so it is drawn when asked for by name."""
    return False


FIGURE = Figure(
    name="accuracy_by_tree_depth",
    title="Training accuracy against tree depth",
    shows="On trees whose root must read one leaf: the best training accuracy against the depth of the tree; one line "
    "a variant, the mean of its runs with its 95 % interval, or with both runs (dashes) where there are but two.",
    reading="The depth at which a line leaves 1 is how far information still travels through the network.",
    equation="",
    paper="Dasoulas et al., ICML 2021 (trees of increasing depth); Alon & Yahav, ICLR 2021",
    group="comparison",
    needs=("steps.train_accuracy",),
    per="comparison",
    data=data,
    draw=draw,
    height=lambda table, width: 2.3,
    applies=_applies,
)
