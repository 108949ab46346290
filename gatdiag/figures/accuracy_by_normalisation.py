"""Accuracy at the end of training against depth, by normalization (paper 2)."""

from collections.abc import Mapping, Sequence

import pandas as pd

from gatdiag.figures.look import Canvas, Figure, draw_size_panels, size_table
from gatdiag.run import Run
from gatdiag.summary import compare, depth, normalisation

_PANELS = {"accuracy": ("last_accuracy_test", "last_accuracy_val", "last_accuracy_train")}


def data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Accuracy of the last recorded step, by normalization and depth.

    Args:
        *runs: The runs; those of the same normalization and depth are averaged.
        variants: The normalization of each run by its name; by default the kind of its layers with normalization
            scales, with the run's name without numbers and its width where runs of one kind differ in them.
            Normalizations without parameters (PairNorm, LipschitzNorm) must be told.

    Returns:
        panel, column, score, variant, size (layers), mean, half_width (of the 95 % interval), lowest, highest, runs.
    """
    return size_table(
        compare(runs, variants), "depth", _PANELS, by="normalisation", apart=() if variants else ("variant", "width")
    )


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """One panel."""
    draw_size_panels(figure, table, _PANELS, size="layers")


def _applies(runs: Sequence[Run]) -> bool:
    return len({depth(run) for run in runs}) > 1 and len({normalisation(run) for run in runs}) > 1


FIGURE = Figure(
    name="accuracy_by_normalisation",
    title="Accuracy against depth, by normalization",
    shows="Accuracy of the last step (not of the best one) against the number of layers; one line per normalization, "
    "the mean of its runs with its 95 % interval, or with both runs (dashes) where there are but two.",
    reading="A normalization that makes deep networks trainable keeps its line level where the others fall.",
    equation="",
    paper="Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021 (accuracy against depth)",
    group="comparison",
    needs=("steps.test_accuracy",),
    per="comparison",
    data=data,
    draw=draw,
    height=lambda table, width: 2.3,
    applies=_applies,
)
