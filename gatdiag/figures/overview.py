"""The one picture to look at first: the loss, and below it what each layer does at each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.axes import draw_lines, layer_names, legend_below, not_recorded, note, step_axis
from gatdiag.figures.figure import GATS, TAMING, Figure, equations, symbol, tidy
from gatdiag.figures.heat import HeatKind, Limits, heat_bar, heat_legend, heat_map, heat_table, shared_limits
from gatdiag.figures.style import Canvas, plain
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import (
    layer_series,
    logged,
    loss_name,
    neuron_series,
    role_series,
    thin,
    weight_scale,
    with_null_layer,
)

_MAPS: dict[str, tuple[str, HeatKind]] = {  # quantity -> its column, kind of colors
    "relative gradient norm": ("parameters.relative_gradient_norm", "log"),
    "difference between nodes": ("layers.mu", "log"),
    "imbalance": ("neurons.c", "signed"),
}
_SCALE = 0.1  # of weights whose norms were not recorded


def data(run: Run, *, limits: Mapping[str, Limits] | None = None) -> pd.DataFrame:
    """The loss and three layer x step maps, thinned so that spikes stay.

    Args:
        run: The run.
        limits: Quantity -> the values at the two ends of its colors, as `shared` gives them for several runs; by
            default those of this run. Colors of imbalance reach the size of the weights, so that what is small
            beside them is pale.

    Returns:
        quantity ("loss" under its own name, or one of the maps), step, layer (null for the loss), value; for the
        loss also low and high of the steps that a value stands for, and stretch (of uninterrupted recording); for maps
        until (where the cell ends), color_low and color_high.
    """
    maps, loss, parts = _maps(run), loss_name(run), []
    ends = limits if limits is not None else _limits([maps], [run])
    if loss is not None:
        parts.append(with_null_layer(run, thin(logged(run, loss), 300)).assign(quantity="loss"))
    for quantity, table in maps.items():
        low, high = ends[quantity]
        parts.append(table.assign(quantity=quantity, color_low=low, color_high=high))
    columns = ("quantity", "step", "until", "layer", "value", "low", "high", "stretch", "color_low", "color_high")
    return tidy([part.reindex(columns=columns) for part in parts if len(part)], *columns)


def shared(runs: Sequence[Run]) -> dict[str, Any]:
    """Limits of the colors that suit the maps of all the runs together, as an option of `data`."""
    return {"limits": _limits([_maps(run) for run in runs], runs)}


def _limits(maps: Sequence[Mapping[str, pd.DataFrame]], runs: Sequence[Run]) -> dict[str, Limits]:
    least = min((scale for run in runs if (scale := weight_scale(run)) is not None), default=_SCALE)
    return {
        quantity: shared_limits(
            np.concatenate([one[quantity]["value"].to_numpy(np.float64) for one in maps]), kind, least
        )
        for quantity, (_, kind) in _MAPS.items()
    }


def _maps(run: Run) -> dict[str, pd.DataFrame]:
    series = (
        heat_table(role_series(run, "relative_gradient_norm", FEATURE), "max"),
        heat_table(layer_series(run, "mu"), "first"),
        heat_table(neuron_series(run, "c"), "extreme"),
    )
    return dict(zip(_MAPS, series, strict=True))


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """The loss above, the maps below it, all over the same steps."""
    names, (top, *places) = layer_names(table), figure.subplots(4, 1, height_ratios=[0.8, 1, 1, 1])
    every = np.append(table["step"], table["until"].dropna() - 1)
    loss = table[table["quantity"] == "loss"]
    entries: list[Artist] = []
    drawn = []
    if len(loss):
        entries += draw_lines(top, [(loss, {"color": "black"})])
        top.set_ylabel("loss")
        drawn.append(top)
    else:
        note(top, not_recorded("steps.loss"))
    cases = set[str]()
    for axes, (quantity, (column, kind)) in zip(places, _MAPS.items(), strict=True):
        part = table[table["quantity"] == quantity]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        limits = float(part["color_low"].iloc[0]), float(part["color_high"].iloc[0])
        cases |= heat_map(axes, part.astype({"until": np.int64}), names, kind, limits, every)
        heat_bar(figure, [axes], kind, limits, symbol(column))
        axes.set_title(plain(quantity), loc="left")
        drawn.append(axes)
    for axes in drawn:
        step_axis(axes, every, room=0.5, label=axes is drawn[-1])
        axes.tick_params(labelbottom=axes is drawn[-1])
    legend_below(figure, [*heat_legend(cases), *entries])


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
    equation=equations(*(column for column, _ in _MAPS.values())),
    paper=f"{GATS}; {TAMING}",
    group="overview",
    needs=("steps.loss", *(column for column, _ in _MAPS.values())),
    data=data,
    drawing=draw,
    height=lambda table, width: 5.6,
    shared=shared,
)
