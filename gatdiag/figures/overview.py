"""The one picture to look at first: the loss, and below it what each layer does at each step."""

import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.figures.look import (
    Canvas,
    Figure,
    HeatKind,
    curve_line,
    draw_lines,
    heat_legend,
    heat_map,
    heat_steps,
    heat_table,
    layer_names,
    legend_below,
    not_recorded,
    note,
    plain,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import FEATURES, layer_series, logged, loss_name, neuron_series, role_series, thin, without_layer

_MAPS: dict[str, tuple[str, HeatKind, str]] = {  # quantity -> its column, kind of colours, label of the colour bar
    "relative gradient norm": ("parameters.relative_gradient_norm", "log", r"$\|g_W\|_F\,/\,\|W\|_F$"),
    "difference between nodes": ("layers.mu", "log", r"$\mu(X)$"),
    "imbalance": ("neurons.c", "signed", "c"),
}


def data(run: Run) -> pd.DataFrame:
    """The loss and three layer x step maps, thinned so that spikes stay.

    Returns:
        quantity ("loss" under its own name, or one of the maps), step, layer (null for the loss), value; for the
        loss also low and high of the steps that a value stands for.
    """
    loss = loss_name(run)
    maps = {
        "relative gradient norm": heat_table(role_series(run, "relative_gradient_norm", FEATURES), "max"),
        "difference between nodes": heat_table(layer_series(run, "mu"), "first"),
        "imbalance": heat_table(neuron_series(run, "c"), "extreme"),
    }
    parts = [table.assign(quantity=quantity) for quantity, table in maps.items()]
    if loss is not None:
        curve = thin(logged(run, loss), 300)
        parts.insert(0, without_layer(run, curve).assign(quantity="loss"))
    columns = ["quantity", "step", "layer", "value", "low", "high"]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns)


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """The loss above, the maps below it, all over the same steps."""
    names = layer_names(table)
    axes = figure.subplots(4, 1, height_ratios=[0.8, 1, 1, 1])
    loss = table[table["quantity"] == "loss"]
    marks: list[Line2D] = []
    if len(loss):
        marks = draw_lines(axes[0], [curve_line(loss, color="black")], hold=(0.0,))
        step_axis(axes[0], table["step"], label=False)
        axes[0].set_ylabel("loss")
    else:
        note(axes[0], not_recorded("steps.loss"))
    cases = set[str]()
    drawn = [axes[0]] if len(loss) else []
    for place, (quantity, (column, kind, label)) in zip(axes[1:], _MAPS.items(), strict=True):
        part = table[table["quantity"] == quantity]
        if not len(part):
            note(place, not_recorded(column))
            continue
        cases |= heat_map(place, part, names, kind=kind, label=label)
        heat_steps(place, table["step"], label=False)
        place.set_title(plain(quantity), loc="left")
        drawn.append(place)
    for place in drawn[:-1]:
        place.tick_params(labelbottom=False)
    if drawn:
        drawn[-1].set_xlabel("step")
    legend_below(figure, [*heat_legend(cases), *marks])


FIGURE = Figure(
    name="overview",
    title="Overview: loss, gradients, smoothing and balance, layer by layer",
    shows="Above the training loss; below it, for each layer (first layer on top) and step: the relative gradient norm "
    "of the feature weights, mu of the layer's output (how far its nodes differ), and c of its most unbalanced neuron.",
    reading="In a network that trains, the first map has about one colour: every layer moves at a similar pace. A dark "
    "band in it is a layer that hardly trains. A second map that darkens downwards is oversmoothing or vanishing "
    "outputs. In the third map white is balanced; strong colours are neurons whose incoming weights (positive) or "
    "outgoing weights (negative) are too large, and they stay so, because training conserves c.",
    equation=r"\|\nabla_W\mathcal{L}\|_F / \|W\|_F, \quad \mu(X) = \|X - \mathbf{1}\gamma_X\|_F, \quad "
    r"c_i = \|W^l_{i,:}\|^2 - (a^l_i)^2 - \|W^{l+1}_{:,i}\|^2",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023; Park & Kim, arXiv 2410.04824",
    group="overview",
    needs=("steps.loss", "parameters.relative_gradient_norm", "layers.mu", "neurons.c"),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: 5.6,
)
