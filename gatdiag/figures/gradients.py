"""Gradients by layer: relative norms beside the training curve, of chosen layers, and run beside run."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.figures.axes import draw_lines, layer_bar, layer_lines, legend_below, not_recorded, note, panels, step_axis
from gatdiag.figures.figure import GATS, LIPSCHITZ, Figure, equations, symbol, tidy
from gatdiag.figures.heat import heat_bar, heat_legend, heat_map, heat_table, shared_limits
from gatdiag.figures.style import ROLE_STYLES, Canvas, is_wide, plain
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary import (
    check_layers,
    has_role,
    logged,
    loss_name,
    role_series,
    select_layers,
    thin,
    thin_groups,
    with_null_layer,
)

_RELATIVE = "parameters.relative_gradient_norm"
_NORM = "parameters.gradient_norm"


def gradient_norms_data(run: Run) -> pd.DataFrame:
    """The loss, and the relative gradient norms of at most ten layers, thinned so that spikes stay.

    Returns:
        quantity ("loss" or the parameters' role), step, layer (null for the loss), value, low, high, stretch (of
        uninterrupted recording).
    """
    parts = []
    loss = loss_name(run)
    if loss is not None:
        parts.append(with_null_layer(run, thin(logged(run, loss))).assign(quantity="loss"))
    for role in ROLE_STYLES:
        table = thin_groups(select_layers(role_series(run, "relative_gradient_norm", role)), "layer")
        parts.append(table.assign(quantity=role))
    return tidy(parts, "quantity", "step", "layer", "value", "low", "high", "stretch")


def gradient_norms_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """The loss, then a panel a role with a line a layer."""
    roles = [role for role in ROLE_STYLES if role == FEATURE or (table["quantity"] == role).any()]
    marks: list[Line2D] = []
    for axes, quantity in zip(panels(figure, 1 + len(roles)), ("loss", *roles), strict=True):
        part = table[table["quantity"] == quantity]
        if not len(part):
            note(axes, not_recorded("steps.loss" if quantity == "loss" else _RELATIVE))
        elif quantity == "loss":
            marks += draw_lines(axes, [(part, {"color": "black"})])
            axes.set_ylabel("loss")
            step_axis(axes, table["step"])
        else:
            marks += draw_lines(axes, layer_lines(part, 0.9), log=True)
            axes.set_ylabel(f"{symbol(_RELATIVE)}, {quantity}s")
            step_axis(axes, table["step"])
            layer_bar(figure, [axes], part)
    legend_below(figure, marks)


GRADIENT_NORMS = Figure(
    name="gradient_norms",
    title="Relative gradient norms by layer, and the training curve",
    shows="The training loss, and for evenly chosen layers the gradient norm relative to the weight norm: of the "
    "feature weights, and of the attention vectors where the network has them.",
    reading="Lines that run together are layers that train at the same pace. Layers whose line lies decades below the "
    "others hardly train; where the whole bundle is low while the loss is high, the network is stuck.",
    equation=equations(_RELATIVE),
    paper=f"{GATS}, figures 3b, 4b and 12",
    group="gradients",
    needs=("steps.loss", _RELATIVE),
    data=gradient_norms_data,
    drawing=gradient_norms_draw,
    height=lambda table, width: 2.1 if is_wide(width) else 1.6 * (2 + (table["quantity"] == ATTENTION).any()),
)


def chosen_layers_data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
    """Relative gradient norms of a few layers, thinned so that spikes stay.

    Args:
        run: The run.
        layers: Their names; by default the first, the middle and the last with feature weights.

    Returns:
        role, step, layer, value, low, high, stretch (of uninterrupted recording).

    Raises:
        InputError: A name is not one of the run's layers.
    """
    series = {role: role_series(run, "relative_gradient_norm", role) for role in ROLE_STYLES}
    chosen = check_layers(run, layers) or select_layers(series[FEATURE], 3)["layer"].unique().tolist()
    parts = [
        thin_groups(table[table["layer"].isin(chosen).to_numpy()], "layer").assign(role=role)
        for role, table in series.items()
    ]
    return tidy(parts, "role", "step", "layer", "value", "low", "high", "stretch")


def chosen_layers_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a layer: feature weights on the left axis, attention vectors on the right one."""
    layers = list(table.groupby("layer", observed=True, sort=True))
    shown: list[Line2D] = []
    for panel, (layer, part) in zip(panels(figure, len(layers), len(layers)), layers, strict=True):
        for role, curve in part.groupby("role", sort=False):
            style = ROLE_STYLES[str(role)]
            axes = panel if role == FEATURE else panel.twinx()
            shown += draw_lines(axes, [(curve, {**style, "label": f"{role}s"})], log=True)
            axes.set_ylabel(f"{role}s", color=style["color"])
            if role == ATTENTION:
                axes.spines["right"].set_visible(True)
                axes.grid(False)
        panel.set_title(plain(f"layer {layer}"), loc="left")
        step_axis(panel, table["step"])
    legend_below(figure, shown)


CHOSEN_LAYERS = Figure(
    name="chosen_layers",
    title="Relative gradient norms of feature weights and attention vectors",
    shows="For the first, a middle and the last layer: the relative gradient norm of the feature weights (solid, left "
    "axis) and of the attention vectors (dashed, right axis).",
    reading="Where attention moves much faster than the features it weighs, or not at all, attention and features are "
    "out of balance. A line that starts late began at zero, where the ratio is undefined.",
    equation=r"\|\nabla_{W^l}\mathcal{L}\|_F / \|W^l\|_F, \quad \|\nabla_{a^l}\mathcal{L}\|_2 / \|a^l\|_2",
    paper=f"{GATS}, figure 5",
    group="gradients",
    needs=(_RELATIVE,),
    data=chosen_layers_data,
    drawing=chosen_layers_draw,
    height=lambda table, width: 2.0 if is_wide(width) else 0.5 + 1.5 * max(table["layer"].nunique(), 1),
    applies=lambda runs: any(has_role(run, ATTENTION) for run in runs),
)


_LIMIT = 8  # runs beside each other


def gradient_evolution_data(*runs: Run) -> pd.DataFrame:
    """The gradient norm of the feature weights of each run, layer and step, thinned so that spikes stay.

    Args:
        *runs: The runs; the first eight are drawn.

    Returns:
        run (its place among the runs), label, step, until (where its cell ends), layer, value. A run without the
        column has one row of nulls; the table is empty if all are.
    """
    maps = [heat_table(role_series(run, "gradient_norm", FEATURE)) for run in runs[:_LIMIT]]
    nulls = pd.DataFrame({"step": [None], "until": [None], "layer": [None], "value": [np.nan]})
    parts = [
        (table if len(table) else nulls).assign(run=place, label=run.name, layer=lambda of: of["layer"].astype(object))
        for place, (run, table) in enumerate(zip(runs, maps, strict=False))
        if any(map(len, maps))
    ]
    return tidy(parts, "run", "label", "step", "until", "layer", "value")


def gradient_evolution_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A heat map a run, all with the same colors."""
    parts = [part for _, part in table.groupby("run", sort=True)]
    limits = shared_limits(table["value"].to_numpy(np.float64), "log")
    grid = panels(figure, len(parts), 2)
    cases = set[str]()
    for axes, part in zip(grid, parts, strict=True):
        axes.set_title(plain(part["label"].iloc[0], 44 if is_wide(figure) else 36), loc="left")
        if part["layer"].isna().all():
            note(axes, not_recorded(_NORM))
            continue
        names = list(dict.fromkeys(part["layer"]))
        cells = part.assign(layer=pd.Categorical(part["layer"], categories=names))
        cases |= heat_map(axes, cells.astype({"step": np.int64, "until": np.int64}), names, "log", limits)
        axes.set_xlabel("step")
    heat_bar(figure, grid, "log", limits, symbol(_NORM))
    legend_below(figure, heat_legend(cases))


GRADIENT_EVOLUTION = Figure(
    name="gradient_evolution",
    title="Evolution of the gradient by layer and step",
    shows="The gradient norm of each layer's feature weights at each step, one panel per run, in the same colors.",
    reading="A panel of one color is a network whose layers all receive gradients. Brightness that grows from layer "
    "to layer is an exploding or vanishing gradient; the run beside it shows whether the remedy helps.",
    equation=equations(_NORM),
    paper=f"{LIPSCHITZ} (evolution of the gradient)",
    group="comparison",
    needs=(_NORM,),
    data=gradient_evolution_data,
    drawing=gradient_evolution_draw,
    height=lambda table, width: 0.3 + 1.8 * -(-max(table["run"].nunique(), 1) // (2 if is_wide(width) else 1)),
)
