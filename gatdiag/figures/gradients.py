"""Gradients by layer: relative norms beside the training curve, of chosen layers, and run beside run."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.errors import InputError
from gatdiag.figures.look import (
    ATTENTION_STYLE,
    FEATURE_STYLE,
    Canvas,
    Figure,
    curve_line,
    draw_lines,
    heat_legend,
    heat_map,
    heat_steps,
    heat_table,
    is_wide,
    layer_bar,
    layer_lines,
    layer_names,
    legend_below,
    log_bar,
    not_recorded,
    note,
    plain,
    shared_limits,
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


def gradient_norms_data(run: Run) -> pd.DataFrame:
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


def gradient_norms_draw(table: pd.DataFrame, figure: Canvas) -> None:
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


GRADIENT_NORMS = Figure(
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
    data=gradient_norms_data,
    draw=gradient_norms_draw,
    height=lambda table, width: 2.1 if width > 4.5 else 1.6 * (2 + (table["quantity"] == ATTENTION).any()),
)


def chosen_layers_data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
    """Relative gradient norms of a few layers, thinned so that spikes stay.

    Args:
        run: The run.
        layers: Their names; by default the first, the middle and the last with feature weights.

    Returns:
        role, step, layer, value, low, high.

    Raises:
        InputError: A name is not one of the run's layers.
    """
    unknown = sorted(set(layers or ()) - set(run.layer_names))
    if unknown:
        raise InputError(f"layers must be names from run.layer_names, got {unknown[0]!r}")
    features = role_series(run, "relative_gradient_norm", FEATURES)
    if layers is None:
        layers = some_layers(features, 3)["layer"].unique().tolist()
    both = ((FEATURES, features), (ATTENTION, role_series(run, "relative_gradient_norm", ATTENTION)))
    parts = [
        thin_groups(table[table["layer"].isin(layers).to_numpy()], "layer").assign(role=role) for role, table in both
    ]
    return pd.concat(parts, ignore_index=True)[["role", "step", "layer", "value", "low", "high"]]


def chosen_layers_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a layer: feature weights on the left axis, attention vectors on the right one."""
    if not len(table):
        note(figure, not_recorded("parameters.relative_gradient_norm"))
        return
    layers = [part for _, part in table.groupby("layer", observed=True, sort=True)]
    shape = (1, len(layers)) if is_wide(figure) else (len(layers), 1)
    panels = figure.subplots(*shape, squeeze=False).flat
    shown = []
    for panel, part in zip(panels, layers, strict=True):
        for role, style in ((FEATURES, FEATURE_STYLE), (ATTENTION, ATTENTION_STYLE)):
            curve = part[part["role"] == role]
            if not len(curve):
                continue
            axes = panel if role == FEATURES else panel.twinx()
            line = {key: style[key] for key in ("color", "linestyle")}
            shown += draw_lines(axes, [curve_line(curve, f"{role}s", **line)], log=True)
            axes.set_ylabel(f"{role}s", color=style["color"])
            if role == ATTENTION:
                axes.spines["right"].set_visible(True)
                axes.grid(False)
        panel.set_title(plain(f"layer {part['layer'].iloc[0]}"), loc="left")
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
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figure 5",
    group="gradients",
    needs=("parameters.relative_gradient_norm",),
    per="run",
    data=chosen_layers_data,
    draw=chosen_layers_draw,
    height=lambda table, width: 2.0 if width > 4.5 else 0.5 + 1.5 * max(table["layer"].nunique(), 1),
)


_LIMIT = 8  # runs beside each other


def gradient_evolution_data(*runs: Run, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The gradient norm of the feature weights of each run, layer and step, thinned so that spikes stay.

    Args:
        *runs: The runs; the first eight are drawn.
        variants: What each run is called, by its name; by default its name.

    Returns:
        run (its place among the runs), label, step, layer, value. A run without the column has one row of nulls.
    """
    parts = []
    for place, run in enumerate(runs[:_LIMIT]):
        table = heat_table(role_series(run, "gradient_norm", FEATURES), "max")
        if not len(table):
            table = pd.DataFrame({"step": [None], "layer": [None], "value": [np.nan]})
        label = (variants or {}).get(run.name, run.name)
        parts.append(table.assign(run=place, label=label, layer=table["layer"].astype(object)))
    columns = ["run", "label", "step", "layer", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def gradient_evolution_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A heat map a run, all with the same colors."""
    parts = [part for _, part in table.groupby("run", sort=True)]
    known = table[table["layer"].notna()]
    if not len(known):
        note(figure, not_recorded("parameters.gradient_norm"))
        return
    limits = shared_limits(known["value"].to_numpy(np.float64), "log")
    columns = min(len(parts), 2) if is_wide(figure) else 1
    grid = figure.subplots(-(-len(parts) // columns), columns, squeeze=False)
    panels = iter(grid.flat)
    cases = set[str]()
    for axes, part in zip(panels, parts, strict=False):
        axes.set_title(plain(part["label"].iloc[0], 44 if is_wide(figure) else 36), loc="left")
        if part["layer"].isna().all():
            note(axes, not_recorded("parameters.gradient_norm"))
            continue
        names = list(dict.fromkeys(part["layer"]))
        cells = part.assign(layer=pd.Categorical(part["layer"], categories=names), step=part["step"].astype(np.int64))
        cases |= heat_map(axes, cells, names, kind="log", label="", limits=limits, bar=False)
        heat_steps(axes, cells["step"])
    for axes in panels:
        axes.set_visible(False)
    log_bar(figure, list(grid.flat), limits, "‖∇W‖")
    legend_below(figure, heat_legend(cases))


def _height(table: pd.DataFrame, width: float) -> float:
    rows = -(-table["run"].nunique() // 2) if width > 4.5 else table["run"].nunique()
    return 0.3 + 1.8 * max(rows, 1)


GRADIENT_EVOLUTION = Figure(
    name="gradient_evolution",
    title="Evolution of the gradient by layer and step",
    shows="The gradient norm of each layer's feature weights at each step, one panel per run, in the same colors.",
    reading="A panel of one color is a network whose layers all receive gradients. Brightness that grows from layer "
    "to layer is an exploding or vanishing gradient; the run beside it shows whether the remedy helps.",
    equation=r"\|\nabla_{W^l}\mathcal{L}\|_F",
    paper="Dasoulas et al., Lipschitz Normalization for Self-Attention Layers, ICML 2021 (evolution of the gradient)",
    group="comparison",
    needs=("parameters.gradient_norm",),
    per="comparison",
    data=gradient_evolution_data,
    draw=gradient_evolution_draw,
    height=_height,
)
