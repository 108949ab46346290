"""The one picture to look at first: the loss, and below it what each layer does at each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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
    shared_limits,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import (
    FEATURES,
    layer_series,
    logged,
    loss_name,
    neuron_series,
    role_series,
    thin,
    weight_scale,
    without_layer,
)

_MAPS: dict[str, tuple[str, HeatKind, str]] = {  # quantity -> its column, kind of colors, label of the color bar
    "relative gradient norm": ("parameters.relative_gradient_norm", "log", "‖∇W‖ / ‖W‖"),
    "difference between nodes": ("layers.mu", "log", "μ(X)"),
    "imbalance": ("neurons.c", "signed", "c"),
}
_SCALE = 0.1  # of weights whose norms were not recorded


def data(run: Run, *, limits: Mapping[str, tuple[float, float]] | None = None) -> pd.DataFrame:
    """The loss and three layer x step maps, thinned so that spikes stay.

    Args:
        run: The run.
        limits: Quantity -> the values at the two ends of its colors, as `shared` gives them for several runs; by
            default those of this run. Colors of imbalance reach the size of the weights, so that what is small
            beside them is pale.

    Returns:
        quantity ("loss" under its own name, or one of the maps), step, layer (null for the loss), value; for the
        loss also low and high of the steps that a value stands for; for maps color_low and color_high.
    """
    loss = loss_name(run)
    parts = []
    ends = limits if limits is not None else shared([run])["limits"]
    for quantity, table in _maps(run).items():
        low, high = ends[quantity]
        parts.append(table.assign(quantity=quantity, color_low=low, color_high=high))
    if loss is not None:
        curve = thin(logged(run, loss), 300)
        parts.insert(0, without_layer(run, curve).assign(quantity="loss"))
    columns = ["quantity", "step", "layer", "value", "low", "high", "color_low", "color_high"]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns)


def shared(runs: Sequence[Run]) -> dict[str, Any]:
    """Limits of the colors that suit the maps of all the runs together, as an option of `data`."""
    maps = [_maps(run) for run in runs]
    least = min((scale for run in runs if (scale := weight_scale(run)) is not None), default=_SCALE)
    limits = {}
    for quantity, (_, kind, _) in _MAPS.items():
        values = np.concatenate([one[quantity]["value"].to_numpy(np.float64) for one in maps])
        limits[quantity] = shared_limits(values, kind, least)
    return {"limits": limits}


def _maps(run: Run) -> dict[str, pd.DataFrame]:
    return {
        "relative gradient norm": heat_table(role_series(run, "relative_gradient_norm", FEATURES), "max"),
        "difference between nodes": heat_table(layer_series(run, "mu"), "first"),
        "imbalance": heat_table(neuron_series(run, "c"), "extreme"),
    }


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """The loss above, the maps below it, all over the same steps."""
    names = layer_names(table)
    axes = figure.subplots(4, 1, height_ratios=[0.8, 1, 1, 1])
    loss = table[table["quantity"] == "loss"]
    marks: list[Line2D] = []
    if len(loss):
        marks = draw_lines(axes[0], [curve_line(loss, color="black")])
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
        limits = float(part["color_low"].iloc[0]), float(part["color_high"].iloc[0])
        cases |= heat_map(place, part, names, kind=kind, label=label, limits=limits)
        heat_steps(place, table["step"], label=False)
        place.set_title(plain(quantity), loc="left")
        drawn.append(place)
    for place in drawn[:-1]:
        place.tick_params(labelbottom=False)
    if drawn:
        drawn[-1].set_xlabel("step")
    legend_below(figure, [*heat_legend(cases), *marks])


OVERVIEW = Figure(
    name="overview",
    title="Overview: loss, gradients, smoothing and balance, layer by layer",
    shows="Above the training loss; below it, for each layer (first layer on top) and step: the relative gradient norm "
    "of the feature weights, mu of the layer's output (how far its nodes differ), and c of its most unbalanced neuron.",
    reading="In a network that trains, the first map has about one color, and not far below 1e-3 (compare the "
    "scale): every layer moves at a similar pace. A dark band in it is a layer that hardly trains. A second map that "
    "darkens downwards is oversmoothing or vanishing outputs. In the third map pale is balanced: its colors reach at "
    "least the size of a neuron's weights. Strong colors are neurons whose incoming weights (positive) or outgoing "
    "weights (negative) are too large; gradient descent with small steps keeps them so, Adam and weight decay do not.",
    equation=r"\|\nabla_W\mathcal{L}\|_F / \|W\|_F, \quad \mu(X) = \|X - \mathbf{1}\gamma_X\|_F, \quad "
    r"c_i = \|W^l_{i,:}\|^2 - (a^l_i)^2 - \|W^{l+1}_{:,i}\|^2",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023; Park & Kim, arXiv 2410.04824",
    group="overview",
    needs=("steps.loss", "parameters.relative_gradient_norm", "layers.mu", "neurons.c"),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: 5.6,
    shared=shared,
)
