"""Relative gradient norms of a few layers, feature weights against attention (paper 1, figure 5)."""

from collections.abc import Sequence

import pandas as pd

from gatdiag.errors import InputError
from gatdiag.figures.look import (
    ATTENTION_STYLE,
    FEATURE_STYLE,
    Canvas,
    Figure,
    curve_line,
    draw_lines,
    is_wide,
    legend_below,
    not_recorded,
    note,
    plain,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import ATTENTION, FEATURES, role_series, some_layers, thin_groups


def data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
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


def draw(table: pd.DataFrame, figure: Canvas) -> None:
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


FIGURE = Figure(
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
    data=data,
    draw=draw,
    height=lambda table, width: 2.0 if width > 4.5 else 0.5 + 1.5 * max(table["layer"].nunique(), 1),
)
