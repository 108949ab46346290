"""delta of each hidden layer over training: whether the law holds at every step (paper 1, figures 2a, b)."""

import pandas as pd

from gatdiag.figures.look import (
    Canvas,
    Figure,
    draw_lines,
    layer_bar,
    layer_lines,
    layer_names,
    legend_below,
    not_recorded,
    note,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import neuron_series, some_layers, thin_groups


def data(run: Run) -> pd.DataFrame:
    """The largest |delta| over the neurons of at most ten hidden layers, thinned so that spikes stay.

    Returns:
        step, layer, value, low, high.
    """
    return thin_groups(some_layers(neuron_series(run, "delta", "largest")), "layer")


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A line a layer."""
    if not len(table):
        note(figure, not_recorded("neurons.delta"))
        return
    axes = figure.subplots()
    lines, layers = layer_lines(table, linewidth=0.8)
    legend_below(figure, draw_lines(axes, lines, log=True))
    axes.set_ylabel("largest |δ|")
    step_axis(axes, table["step"])
    layer_bar(figure, [axes], layer_names(table), layers)


FIGURE = Figure(
    name="conservation",
    title="The conservation law at every step: delta",
    shows="For each hidden layer the largest |delta| of its neurons: by how much the law between a neuron's incoming "
    "and outgoing gradients is missed.",
    reading="Zero up to rounding (about 1e-7 of the terms in float32) whatever the optimizer. A layer well above that "
    "breaks the law: an activation that is not homogeneous, or something done to the gradients.",
    equation=r"\delta_i = \langle W^l_{i,:}, \nabla W^l_{i,:} \rangle - a^l_i \nabla a^l_i - "
    r"\langle W^{l+1}_{:,i}, \nabla W^{l+1}_{:,i} \rangle",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 2a and 2b",
    group="balance",
    needs=("neurons.delta",),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: 2.2,
)
