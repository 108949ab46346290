"""The part of each layer that training has changed (paper 1, figures 3a and 4a)."""

import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.look import (
    Canvas,
    Figure,
    draw_fractions,
    is_wide,
    layer_room,
    legend_below,
    name_change,
    not_recorded,
    note,
)
from gatdiag.run import Run
from gatdiag.summary import weight_change

_PANELS = {
    "changed_fraction_005": "part changed\nby more than 5 %",
    "changed_fraction_050": "part changed\nby more than 50 %",
}


def data(run: Run) -> pd.DataFrame:
    """The part of the feature weights and attention vectors that changed by more than 0.05 and 0.5.

    Returns:
        layer, role, source (the snapshot compared with the initial one), changed_fraction_005, changed_fraction_050.
    """
    return weight_change(run)[["layer", "role", "source", *_PANELS]]


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a threshold, bars a layer."""
    if not len(table):
        note(figure, not_recorded(*(f"parameters.{name}" for name in _PANELS)))
        return
    shape = (1, 2) if is_wide(figure) else (2, 1)
    entries: list[Artist] = []
    for axes, (column, label) in zip(figure.subplots(*shape, sharey=True).flat, _PANELS.items(), strict=True):
        entries += draw_fractions(axes, table, column, value=label)
    name_change(figure.axes[0], table)
    legend_below(figure, entries)


FIGURE = Figure(
    name="changed_fraction",
    title="How much of each layer has changed",
    shows="The part of the significant feature weights (at least 1e-4 in size) whose relative change since "
    "initialization exceeds 0.05 and 0.5, and the part of the attention entries whose absolute change does. "
    "The title says up to when: the best model where watch(best=...) kept one, unless it came within the first 5 % of "
    "the run; else the final one.",
    reading="Bars near zero are layers that training has not touched: they still hold their initial values. In a "
    "network that trains, all layers change, middle ones included.",
    equation=r"\#\{|(w^* - w_0) / w^*| > \tau\} / \#\{|w^*| \geq 10^{-4}\}, \quad \#\{|a^* - a_0| > \tau\} / \#\{a\}",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 3a and 4a",
    group="changes",
    needs=("parameters.changed_fraction_005", "parameters.changed_fraction_050"),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: layer_room(table) + 2.0 if width > 4.5 else 2 * layer_room(table) + 3.4,
)
