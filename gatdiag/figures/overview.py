"""The figure to look at first: the loss, and maps of what each layer does at each step."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.axes import add_legend_below, draw_lines, layer_names, not_recorded, note, step_axis
from gatdiag.figures.figure import GATS, TAMING, Figure, axis_label, equations, tidy
from gatdiag.figures.heat import (
    HeatKind,
    Limits,
    add_heat_bar,
    color_limits,
    draw_heat_map,
    healthy_handle,
    heat_legend,
    heat_table,
)
from gatdiag.figures.style import Canvas
from gatdiag.names import number
from gatdiag.quantities import HEALTHY, HEALTHY_RANGE
from gatdiag.roles import ATTENTION, FEATURE, is_conv
from gatdiag.run import Run
from gatdiag.summary import (
    layer_series,
    logged_series,
    loss_name,
    relative_imbalance,
    role_series,
    thin,
    why_undefined,
    with_null_layer,
)

_GRADIENTS = "parameters.relative_gradient_norm"
_ATTENTION = "relative gradient norm of attention"
_IMBALANCE = "imbalance"
_NODES, _ROWS = "difference between nodes", "difference between rows"  # of a graph network, and of any other
_MAPS: dict[str, tuple[str, HeatKind]] = {  # quantity -> column, kind of colors
    "relative gradient norm": (_GRADIENTS, "log"),
    _ATTENTION: (_GRADIENTS, "log"),
    _NODES: ("layers.relative_mu", "log"),
    _ROWS: ("layers.relative_mu", "log"),
    _IMBALANCE: ("neurons.c", "signed"),
}
_OF = {  # quantity -> what is measured of what, after the symbol
    "relative gradient norm": f" of {FEATURE}s",
    _ATTENTION: f" of {ATTENTION}s",
    _NODES: " of outputs: do nodes differ?",
    _ROWS: " of outputs: do rows differ?",
    _IMBALANCE: " / ‖W‖², most unbalanced neuron",
}
_BALANCED: Limits = -2.0, 2.0  # the same in all runs: 1 is as large as the weights


def data(run: Run, *, limits: Mapping[str, Limits] | None = None) -> pd.DataFrame:
    """The loss and layer x step maps, thinned so that spikes stay visible.

    Args:
        run: The run.
        limits: Column -> the values at the two ends of its colors, which contain the range of healthy trainings; by
            default from this run alone, from `shared_options` for several.

    Returns:
        quantity ("loss" or one of the maps), step, layer (null for the loss), value; for the loss also low and high of
        the steps that a value stands for; for maps until, recorded and undefined (as from `heat_table`), color_low and
        color_high. The imbalance is `relative_imbalance`.
    """
    maps, loss, parts = _maps(run), loss_name(run), []
    ends = limits if limits is not None else _limits([maps])
    if loss is not None:
        parts.append(with_null_layer(run, thin(logged_series(run, loss), 300)).assign(quantity="loss"))
    for quantity, table in maps.items():
        low, high = ends[_MAPS[quantity][0]]
        parts.append(table.assign(quantity=quantity, color_low=low, color_high=high))
    columns = (
        "quantity", "step", "until", "recorded", "layer", "value", "undefined", "low", "high", "color_low",
        "color_high",
    )  # fmt: skip
    return tidy([part.reindex(columns=columns) for part in parts if len(part)], *columns)


def shared_options(runs: Sequence[Run]) -> dict[str, Any]:
    """Color limits computed from the maps of all runs together, as an option of `data`."""
    return {"limits": _limits([_maps(run) for run in runs])}


def _limits(maps: Sequence[Mapping[str, pd.DataFrame]]) -> dict[str, Limits]:
    """Column -> color limits of all its maps together: features and attention are compared by color."""
    values: dict[str, list[pd.Series]] = {}
    for quantity, table in (pair for one in maps for pair in one.items()):
        values.setdefault(_MAPS[quantity][0], []).append(table["value"])
    ends = {column: color_limits(pd.concat(of).to_numpy(np.float64)) for column, of in values.items()}
    for column in ends.keys() & HEALTHY.keys():
        known = np.isfinite(pd.concat(values[column])).any()
        low, high = ends[column] if known else HEALTHY[column]
        ends[column] = min(low, HEALTHY[column][0]), max(high, HEALTHY[column][1])
    return ends | {_MAPS[_IMBALANCE][0]: _BALANCED}


def _maps(run: Run) -> dict[str, pd.DataFrame]:
    last = run.steps["step"].max()
    differences = layer_series(run, "relative_mu").assign(undefined=why_undefined(run, "layers.relative_mu"))
    is_graph = any(is_conv(layer) for layer in run.meta["structure"]["layers"])
    series: dict[str, tuple[pd.DataFrame, Literal["max", "extreme", "first"]]] = {
        "relative gradient norm": (role_series(run, "relative_gradient_norm", FEATURE), "max"),
        _ATTENTION: (role_series(run, "relative_gradient_norm", ATTENTION), "max"),
        _NODES if is_graph else _ROWS: (differences, "first"),
        _IMBALANCE: (relative_imbalance(run), "extreme"),
    }
    return {quantity: heat_table(values, last, how) for quantity, (values, how) in series.items()}


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
    cases, marked = set[str](), list[Artist]()
    for axes, quantity in zip(places, shown, strict=True):
        column, kind = _MAPS[quantity]
        part = table[table["quantity"] == quantity]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        limits = float(part["color_low"].iloc[0]), float(part["color_high"].iloc[0])
        cells = part.astype({"until": np.int64, "recorded": np.int64})
        found = draw_heat_map(axes, cells, names, kind, limits, every)
        cases |= found
        known = part["value"][np.isfinite(part["value"])]
        if (known > 0).any() or (kind == "signed" and len(known)):
            add_heat_bar(figure, [axes], kind, limits, healthy=HEALTHY.get(column))
            marked += [healthy_handle()] if column in HEALTHY else []
        is_broken = not len(known) and "broken" in found
        axes.set_title(f"{axis_label(column)}{': nothing finite' if is_broken else _OF[quantity]}", loc="left")
        drawn.append(axes)
    for axes in drawn:
        step_axis(axes, every, room=0.5, label=axes is drawn[-1])
        axes.tick_params(labelbottom=axes is drawn[-1])
    add_legend_below(figure, [*heat_legend(cases), *marked, *entries])


def _shown(table: pd.DataFrame) -> list[str]:
    """The maps, without that of attention if there is none; one of differences."""
    there = {*table["quantity"]}
    left_out = {_ATTENTION, _NODES if _ROWS in there else _ROWS} - there
    return [quantity for quantity in _MAPS if quantity not in left_out]


def _words(table: pd.DataFrame) -> tuple[str, str]:
    maps = table[table["quantity"] != "loss"]
    is_sparse = bool((maps["recorded"] < maps["until"] - maps["step"]).any())
    is_known = bool(np.isfinite(maps.loc[maps["quantity"] != _IMBALANCE, "value"]).any())
    shown = {*table["quantity"]} | ({"sparse"} if is_sparse else set()) | ({"range"} if is_known else set())
    return _text(_CAPTIONS, shown), _text(_READ, shown)


def _text(parts: Mapping[str, str], shown: Collection[str]) -> str:
    return " ".join(text for about, text in parts.items() if about in shown)


_LOW, _HIGH = map(number, HEALTHY[_GRADIENTS])
_CAPTIONS = {
    "loss": "Top: the training loss.",
    "relative gradient norm": "For each layer (first layer on top) and step, the relative gradient norm of the feature "
    "weights.",
    _ATTENTION: "Then, in the same colors, that of the attention vectors.",
    _NODES: "Then μ, the distance of the layer output from its mean over the nodes, relative to its norm.",
    _ROWS: "Then μ, the distance of the layer output from its mean over the rows, relative to its norm.",
    _IMBALANCE: "Last, c of the most unbalanced neuron, over the mean squared norm of a neuron's weights in that "
    "layer; its colors are the same in every run.",
    "range": f"Green beside a color bar is the range of {HEALTHY_RANGE}.",
    "sparse": "A color lasts until the next recorded step; ticks above mark these.",
}
_READ = {
    "relative gradient norm": f"Healthy layers have a median over training of {_LOW} to {_HIGH} in the first map. They "
    "may differ by two orders of magnitude, and all fall as the loss converges; layers that stay below hardly train.",
    _ATTENTION: "Attention that is orders of magnitude below the features it weights is stuck.",
    _NODES: "A map of differences between nodes that darkens from top to bottom, to below the green range, shows "
    "oversmoothing.",
    _ROWS: "Differences between rows that darken from top to bottom, to below the green range, are lost on the way.",
    _IMBALANCE: "In the last map, pale is balanced; brown are neurons whose incoming weights outweigh the outgoing "
    "ones, blue the reverse; at 1 the difference is as large as the weights. It has no healthy range: random weights "
    "start at 0.3 and more, and most networks train from there. Gradient descent with small steps keeps c as it is; "
    "Adam and weight decay do not.",
}


OVERVIEW = Figure(
    name="overview",
    title="Overview: loss, gradients, smoothing and balance by layer",
    caption=_text(_CAPTIONS, _CAPTIONS.keys() - {_ROWS}),
    interpretation=_text(_READ, _READ.keys() - {_ROWS}),
    equation=f"{equations(_GRADIENTS, 'layers.relative_mu')}; c / ‖W‖², {equations('neurons.c')}, ‖W‖² = ‖W‖_F² / "
    "number of neurons",
    paper=f"{GATS}; {TAMING}",
    group="overview",
    needs=("steps.loss", *dict(_MAPS.values())),
    data=data,
    draw_table=draw,
    height=lambda table, width: 2.0 + 1.3 * len(_shown(table)),
    shared_options=shared_options,
    wording=_words,
)
