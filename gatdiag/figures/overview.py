"""The figure to look at first: the loss, and maps of what each layer does at each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.axes import add_legend_below, draw_lines, layer_names, not_recorded, note, step_axis
from gatdiag.figures.figure import GATS, TAMING, Figure, axis_label, equations, tidy
from gatdiag.figures.heat import HeatKind, Limits, add_heat_bar, color_limits, draw_heat_map, heat_legend, heat_table
from gatdiag.figures.style import Canvas
from gatdiag.quantities import get_quantity
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary import (
    layer_series,
    logged_series,
    loss_name,
    neuron_series,
    role_series,
    thin,
    weight_scale,
    with_null_layer,
)

_GRADIENTS = "parameters.relative_gradient_norm"
_ATTENTION = "relative gradient norm of attention"
_MAPS: dict[str, tuple[str, HeatKind]] = {  # quantity -> column, kind of colors
    "relative gradient norm": (_GRADIENTS, "log"),
    _ATTENTION: (_GRADIENTS, "log"),
    "difference between nodes": ("layers.relative_mu", "log"),
    "imbalance": ("neurons.c", "signed"),
}
_OF = {  # quantity -> what is measured of what, after the symbol
    "relative gradient norm": f"of {FEATURE}s",
    _ATTENTION: f"of {ATTENTION}s",
    "difference between nodes": "of outputs: do nodes differ?",
    "imbalance": "of the most unbalanced neuron",
}
_SCALE = 0.1  # size of the weights if norms were not recorded


def data(run: Run, *, limits: Mapping[str, Limits] | None = None) -> pd.DataFrame:
    """The loss and layer x step maps, thinned so that spikes stay visible.

    Args:
        run: The run.
        limits: Column -> the values at the two ends of its colors; by default from this run alone, from
            `shared_options` for several. Colors of imbalance cover at least the size of the weights, so that an
            imbalance that is small compared to them is pale.

    Returns:
        quantity ("loss" or one of the maps), step, layer (null for the loss), value; for the loss also low and high of
        the steps that a value stands for; for maps until and recorded (as from `heat_table`), color_low and color_high.
    """
    maps, loss, parts = _maps(run), loss_name(run), []
    ends = limits if limits is not None else _limits([maps], [run])
    if loss is not None:
        parts.append(with_null_layer(run, thin(logged_series(run, loss), 300)).assign(quantity="loss"))
    for quantity, table in maps.items():
        low, high = ends[_MAPS[quantity][0]]
        parts.append(table.assign(quantity=quantity, color_low=low, color_high=high))
    columns = ("quantity", "step", "until", "recorded", "layer", "value", "low", "high", "color_low", "color_high")
    return tidy([part.reindex(columns=columns) for part in parts if len(part)], *columns)


def shared_options(runs: Sequence[Run]) -> dict[str, Any]:
    """Color limits computed from the maps of all runs together, as an option of `data`."""
    return {"limits": _limits([_maps(run) for run in runs], runs)}


def _limits(maps: Sequence[Mapping[str, pd.DataFrame]], runs: Sequence[Run]) -> dict[str, Limits]:
    """Column -> color limits of all its maps together: features and attention are compared by color."""
    least = min((scale for run in runs if (scale := weight_scale(run)) is not None), default=_SCALE)
    values: dict[str, list[pd.Series]] = {}
    for quantity, (column, _) in _MAPS.items():
        values.setdefault(column, []).extend(one[quantity]["value"] for one in maps)
    kinds = dict(_MAPS.values())
    ends = {each: color_limits(pd.concat(of).to_numpy(np.float64), kinds[each], least) for each, of in values.items()}
    return {
        each: (min(low, 0.1), 1.0) if get_quantity(each).is_share else (low, high) for each, (low, high) in ends.items()
    }


def _maps(run: Run) -> dict[str, pd.DataFrame]:
    last = run.steps["step"].max()
    series = (
        *(heat_table(role_series(run, "relative_gradient_norm", role), last, "max") for role in (FEATURE, ATTENTION)),
        heat_table(layer_series(run, "relative_mu"), last, "first"),
        heat_table(neuron_series(run, "c"), last, "extreme"),
    )
    return dict(zip(_MAPS, series, strict=True))


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw the loss and below it the maps, over the same steps."""
    names, shown = layer_names(table), _shown(table)
    top, *places = figure.subplots(1 + len(shown), 1, height_ratios=[0.8, *(1 for _ in shown)])
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
    for axes, quantity in zip(places, shown, strict=True):
        column, kind = _MAPS[quantity]
        part = table[table["quantity"] == quantity]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        limits = float(part["color_low"].iloc[0]), float(part["color_high"].iloc[0])
        cases |= draw_heat_map(axes, part.astype({"until": np.int64, "recorded": np.int64}), names, kind, limits, every)
        add_heat_bar(figure, [axes], kind, limits)
        axes.set_title(f"{axis_label(column)} {_OF[quantity]}", loc="left")
        drawn.append(axes)
    for axes in drawn:
        step_axis(axes, every, room=0.5, label=axes is drawn[-1])
        axes.tick_params(labelbottom=axes is drawn[-1])
    add_legend_below(figure, [*heat_legend(cases), *entries])


def _shown(table: pd.DataFrame) -> list[str]:
    """The maps, without that of attention if there is none."""
    return [quantity for quantity in _MAPS if quantity != _ATTENTION or (table["quantity"] == quantity).any()]


OVERVIEW = Figure(
    name="overview",
    title="Overview: loss, gradients, smoothing and balance by layer",
    caption="Top: the training loss. Below, for each layer (first layer on top) and step: the relative gradient norm "
    "of the feature weights and, in the same colors, of the attention vectors; μ, the distance of the layer output "
    "from its mean over the nodes, relative to its norm; and the balance c of the most unbalanced neuron. A color "
    "lasts until the next recorded step; ticks above mark these if some were left out.",
    interpretation="In a network that trains, the layers in the first map have similar colors, of about 1e-3 or more "
    "while the loss falls (see the color bar): they learn at a similar rate. A layer orders of magnitude below the "
    "others hardly trains, and attention that is darker than the features it weights is stuck. A map of differences "
    "between nodes that darkens from top to bottom shows oversmoothing. In the last map, pale yellow is balanced; "
    "strong colors are neurons whose incoming weights (positive c) or outgoing weights (negative c) are too large. "
    "Gradient descent with small steps keeps c as it is; Adam and weight decay do not.",
    equation=equations(*dict(_MAPS.values())),
    paper=f"{GATS}; {TAMING}",
    group="overview",
    needs=("steps.loss", *dict(_MAPS.values())),
    data=data,
    draw_table=draw,
    height=lambda table, width: 2.0 + 1.3 * len(_shown(table)),
    shared_options=shared_options,
)
