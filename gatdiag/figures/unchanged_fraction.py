"""The part of each layer that has not changed at all (paper 1, figure 8)."""

import pandas as pd

from gatdiag.figures.look import (
    Canvas,
    Figure,
    draw_fractions,
    layer_room,
    legend_below,
    name_change,
    not_recorded,
    note,
)
from gatdiag.run import Run
from gatdiag.summary import weight_change


def data(run: Run) -> pd.DataFrame:
    """The part of the feature weights and attention vectors that is bit for bit as it was initialized.

    Returns:
        layer, role, source (the snapshot compared with the initial one), unchanged_fraction.
    """
    return weight_change(run)[["layer", "role", "source", "unchanged_fraction"]]


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Bars a layer."""
    if not len(table):
        note(figure, not_recorded("parameters.unchanged_fraction"))
        return
    axes = figure.subplots()
    entries = draw_fractions(axes, table, "unchanged_fraction", value="part unchanged")
    name_change(axes, table)
    legend_below(figure, entries)


FIGURE = Figure(
    name="unchanged_fraction",
    title="Weights that never changed",
    shows="For each layer the part of the weights that is exactly, to the last bit, what it was at initialization. "
    "The title says up to when: the best model where watch(best=...) kept one, unless it came within the first 5 % of "
    "the run; else the final one.",
    reading="Zero is healthy. A tall bar means that no gradient arrives: dead units, features that never occur in the "
    "training nodes, or steps too small for the number format to hold.",
    equation=r"\#\{w^* = w_0\} / \#\{w\}",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figure 8",
    group="changes",
    needs=("parameters.unchanged_fraction",),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: layer_room(table) + 1.9,
)
