"""Gradients by layer: relative norms with the loss, of chosen layers, and of several runs side by side."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.figures.axes import (
    add_layer_bar,
    add_legend_below,
    draw_lines,
    layer_lines,
    not_recorded,
    note,
    panels,
    step_axis,
)
from gatdiag.figures.figure import GATS, LIPSCHITZ, Figure, axis_label, equations, has_steps, tidy
from gatdiag.figures.heat import add_heat_bar, color_limits, draw_heat_map, heat_legend, heat_table
from gatdiag.figures.style import ROLE_STYLES, Canvas, is_wide, plain_text
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary import (
    UNNAMED,
    check_layers,
    has_role,
    lines_of_runs,
    logged_series,
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
    """The loss, and the relative gradient norms of at most ten layers, thinned so that spikes stay visible.

    Returns:
        quantity ("loss" or the role of the parameters), step, layer (null for the loss), value, low, high.
    """
    parts = []
    loss = loss_name(run)
    if loss is not None:
        parts.append(with_null_layer(run, thin(logged_series(run, loss))).assign(quantity="loss"))
    for role in ROLE_STYLES:
        table = thin_groups(select_layers(role_series(run, "relative_gradient_norm", role)), "layer")
        parts.append(table.assign(quantity=role))
    return tidy(parts, "quantity", "step", "layer", "value", "low", "high")


def draw_gradient_norms(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw the loss, and one panel per role with one line per layer."""
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
            axes.set_ylabel(axis_label(_RELATIVE))
            axes.set_title(f"{quantity}s", loc="left")
            step_axis(axes, table["step"])
            add_layer_bar(figure, [axes], part)
    add_legend_below(figure, marks)


_NORMS = (
    "The training loss, and for up to ten evenly spaced layers the gradient norm divided by the weight norm, of the "
    "feature weights{}."
)


def _norms_words(table: pd.DataFrame) -> tuple[str, str]:
    has_attention = (table["quantity"] == ATTENTION).any()
    return GRADIENT_NORMS.caption if has_attention else _NORMS.format(""), GRADIENT_NORMS.interpretation


GRADIENT_NORMS = Figure(
    name="gradient_norms",
    title="Relative gradient norms by layer, and the loss",
    caption=_NORMS.format(" and of the attention vectors"),
    interpretation="Layers whose lines are close together learn at the same rate. Layers orders of magnitude below "
    "the others hardly train. If all lines are low while the loss is high, the network is stuck.",
    equation=equations(_RELATIVE),
    paper=f"{GATS}, figures 3b, 4b and 12",
    group="gradients",
    needs=("steps.loss", _RELATIVE),
    data=gradient_norms_data,
    draw_table=draw_gradient_norms,
    wording=_norms_words,
    applies_to=has_steps,
    height=lambda table, width: 2.1 if is_wide(width) else 1.6 * (2 + (table["quantity"] == ATTENTION).any()),
)


def chosen_layers_data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
    """Relative gradient norms of a few layers, thinned so that spikes stay visible.

    Args:
        run: The run.
        layers: Names of the layers; by default the first, the middle and the last with feature weights.

    Returns:
        role, step, layer, value, low, high.

    Raises:
        InputError: A name is not one of the run's layers.
    """
    series = {role: role_series(run, "relative_gradient_norm", role) for role in ROLE_STYLES}
    chosen = check_layers(run, layers) or select_layers(series[FEATURE], 3)["layer"].unique().tolist()
    parts = [
        thin_groups(table[table["layer"].isin(chosen).to_numpy()], "layer").assign(role=role)
        for role, table in series.items()
    ]
    return tidy(parts, "role", "step", "layer", "value", "low", "high")


def draw_chosen_layers(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per layer, all on the same scale, so that attention can be compared with features by eye."""
    layers = list(table.groupby("layer", observed=True, sort=True))
    shown: list[Line2D] = []
    grid = panels(figure, len(layers), len(layers))
    for axes, (layer, part) in zip(grid, layers, strict=True):
        roles = part.groupby("role", sort=False)
        curves = [(curve, {**ROLE_STYLES[str(role)], "label": f"{role}s"}) for role, curve in roles]
        shown += draw_lines(axes, curves, log=True, scaled_to=table["value"])
        axes.set_title(plain_text(f"layer {layer}"), loc="left")
        step_axis(axes, table["step"])
        if axes is grid[0] or not is_wide(figure):
            axes.set_ylabel(axis_label(_RELATIVE))
    add_legend_below(figure, shown)


CHOSEN_LAYERS = Figure(
    name="chosen_layers",
    title="Relative gradient norms: feature weights vs. attention vectors",
    caption="For the first, a middle and the last layer: the gradient norm divided by the weight norm, of the feature "
    "weights (solid) and of the attention vectors (dashed), all on one scale.",
    interpretation="Attention orders of magnitude below the features it weights hardly trains. Balanced attention "
    "vectors start close to zero, so that their ratio starts high and falls. A line that starts late belongs to "
    "weights that were initialized to zero, where the ratio is undefined.",
    equation="‖∇Wˡ‖_F / ‖Wˡ‖_F; ‖∇aˡ‖₂ / ‖aˡ‖₂",
    paper=f"{GATS}, figure 5",
    group="gradients",
    needs=(_RELATIVE,),
    data=chosen_layers_data,
    draw_table=draw_chosen_layers,
    height=lambda table, width: 2.0 if is_wide(width) else 0.5 + 1.5 * max(table["layer"].nunique(), 1),
    applies_to=lambda runs: has_steps(runs) and any(has_role(run, ATTENTION) for run in runs),
)


_MAX_RUNS = 8
_MOST_DECADES = 8.0  # of one color scale: on a longer one, differences within a run cannot be seen


def gradient_evolution_data(*runs: Run) -> pd.DataFrame:
    """The gradient norm of the feature weights by run, layer and step, thinned so that spikes stay visible.

    Args:
        *runs: The runs; of more than eight, those at evenly spaced ranks of the last loss.

    Returns:
        run (its index), label, step, until, recorded, layer, value, as from `heat_table`. A run without the column has
        one row of nulls; the table is empty if no run has it.
    """
    lines = lines_of_runs(runs, _MAX_RUNS)
    drawn = {place: run for place, run in enumerate(runs) if lines[place] != UNNAMED}
    maps = [heat_table(role_series(run, "gradient_norm", FEATURE), run.steps["step"].max()) for run in drawn.values()]
    nulls = pd.DataFrame({"step": [None], "until": [None], "recorded": [None], "layer": [None], "value": [np.nan]})
    parts = [
        (table if len(table) else nulls).assign(run=place, label=run.name, layer=lambda of: of["layer"].astype(object))
        for (place, run), table in zip(drawn.items(), maps, strict=True)
        if any(map(len, maps))
    ]
    return tidy(parts, "run", "label", "step", "until", "recorded", "layer", "value")


def draw_gradient_evolution(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one heat map per run, all with the same color limits unless these would hide what differs within a run."""
    parts = [part for _, part in table.groupby("run", sort=True)]
    limits = color_limits(table["value"].to_numpy(np.float64))
    is_shared = np.log10(limits[1]) - np.log10(limits[0]) <= _MOST_DECADES
    ends = np.array([table["step"].min(), table["until"].max() - 1])
    grid = panels(figure, len(parts), 2)
    cases = set[str]()
    for axes, part in zip(grid, parts, strict=True):
        axes.set_title(plain_text(part["label"].iloc[0], 40 if is_wide(figure) else 24), loc="left")
        if part["layer"].isna().all():
            note(axes, not_recorded(_NORM))
            continue
        names = list(dict.fromkeys(part["layer"]))
        cells = part.assign(layer=pd.Categorical(part["layer"], categories=names))
        cells = cells.astype(dict.fromkeys(("step", "until", "recorded"), np.int64))
        own = limits if is_shared else color_limits(cells["value"].to_numpy(np.float64))
        cases |= draw_heat_map(axes, cells, names, "log", own, ends)
        axes.set_xlabel("step")
        if not is_shared and (cells["value"] > 0).any():
            add_heat_bar(figure, [axes], "log", own, axis_label(_NORM))
    if is_shared:
        add_heat_bar(figure, grid, "log", limits, axis_label(_NORM))
    add_legend_below(figure, heat_legend(cases))


GRADIENT_EVOLUTION = Figure(
    name="gradient_evolution",
    title="Gradient norm by layer and step",
    caption="The gradient norm of each layer's feature weights at each step, one panel per run (of more than "
    "eight runs, eight from the lowest to the highest last loss). All have the same colors, or, where these would span "
    "more than eight orders of magnitude, each its own. A color lasts until the next recorded step; ticks above mark "
    "these if some were left out.",
    interpretation="In a panel of one color all layers receive gradients. If brightness grows or fades from layer to "
    "layer, gradients vanish or explode; compare the runs to see whether a remedy helps.",
    equation=equations(_NORM),
    paper=f"{LIPSCHITZ} (evolution of the gradient)",
    group="comparison",
    needs=(_NORM,),
    data=gradient_evolution_data,
    draw_table=draw_gradient_evolution,
    height=lambda table, width: 0.3 + 1.8 * -(-max(table["run"].nunique(), 1) // (2 if is_wide(width) else 1)),
)
