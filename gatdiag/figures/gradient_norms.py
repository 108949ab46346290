"""Relative gradient norms of each layer beside the training curve (paper 1, figures 3b, 4b and 12)."""

import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.figures.look import (
    Canvas,
    Figure,
    curve_line,
    draw_lines,
    is_wide,
    layer_bar,
    layer_lines,
    layer_names,
    legend_below,
    not_recorded,
    note,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import (
    ATTENTION,
    FEATURES,
    logged,
    loss_name,
    role_series,
    some_layers,
    thin,
    thin_groups,
    without_layer,
)

_LABEL = {
    FEATURES: "relative gradient norm,\nfeature weights",
    ATTENTION: "relative gradient norm,\nattention vectors",
}


def data(run: Run) -> pd.DataFrame:
    """The loss, and the relative gradient norms of at most ten layers, thinned so that spikes stay.

    Returns:
        quantity ("loss" or the parameters' role), step, layer (null for the loss), value, low, high.
    """
    parts = []
    loss = loss_name(run)
    if loss is not None:
        curve = thin(logged(run, loss))
        parts.append(without_layer(run, curve).assign(quantity="loss"))
    for role in (FEATURES, ATTENTION):
        table = thin_groups(some_layers(role_series(run, "relative_gradient_norm", role)), "layer")
        parts.append(table.assign(quantity=role))
    return pd.concat(parts, ignore_index=True)[["quantity", "step", "layer", "value", "low", "high"]]


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """The loss, then a panel a role with a line a layer."""
    roles = [FEATURES, *([ATTENTION] if (table["quantity"] == ATTENTION).any() else [])]
    count = 1 + len(roles)
    places = figure.subplots(*((1, count) if is_wide(figure) else (count, 1))).flat
    axes = list(places)
    marks: list[Line2D] = []
    loss = table[table["quantity"] == "loss"]
    if len(loss):
        marks += draw_lines(axes[0], [curve_line(loss, color="black")])
        axes[0].set_ylabel("loss")
        step_axis(axes[0], table["step"])
    else:
        note(axes[0], not_recorded("steps.loss"))
    for place, role in zip(axes[1:], roles, strict=True):
        part = table[table["quantity"] == role]
        if not len(part):
            note(place, not_recorded("parameters.relative_gradient_norm"))
            continue
        lines, layers = layer_lines(part, linewidth=0.9)
        marks += draw_lines(place, lines, log=True)
        place.set_ylabel(_LABEL[role])
        step_axis(place, table["step"])
        layer_bar(figure, [place], layer_names(table), layers)
    legend_below(figure, marks)


FIGURE = Figure(
    name="gradient_norms",
    title="Relative gradient norms by layer, and the training curve",
    shows="The training loss, and for evenly chosen layers the gradient norm relative to the weight norm: of the "
    "feature weights, and of the attention vectors where the network has them.",
    reading="Lines that run together are layers that train at the same pace. Layers whose line lies decades below the "
    "others hardly train; where the whole bundle is low while the loss is high, the network is stuck.",
    equation=r"\|\nabla_{W^l}\mathcal{L}\|_F / \|W^l\|_F",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 3b, 4b and 12",
    group="gradients",
    needs=("steps.loss", "parameters.relative_gradient_norm"),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: 2.1 if width > 4.5 else 1.6 * (2 + (table["quantity"] == ATTENTION).any()),
)
