"""mu of outputs and of gradients against the layer, and over training (paper 3)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.errors import InputError
from gatdiag.figures.look import (
    SMOOTHING,
    ZERO_NORM,
    Canvas,
    Figure,
    Line,
    draw_lines,
    is_wide,
    layer_axis,
    layer_bar,
    layer_codes,
    layer_lines,
    layer_names,
    layer_room,
    legend_below,
    not_recorded,
    note,
    note_panels,
    ordered_colors,
    step_axis,
    step_bar,
    undefined_of,
)
from gatdiag.run import Run
from gatdiag.summary import layer_series, some_layers, spaced, thin_groups, zero_norms

_LETTERS = 20  # that fit side by side below a panel


def smoothing_by_layer_data(run: Run, steps: Sequence[int] | None = None) -> pd.DataFrame:
    """Absolute and relative mu, and the norm, of each layer's output and of its gradient.

    Args:
        run: The run.
        steps: Which steps; by default five, evenly from the first to the last. The nearest recorded ones are taken.

    Returns:
        quantity (the column of `run.layers`), step, layer, value, undefined (why the value is NaN where it is 0 / 0:
        "gradient is zero" or "output is zero"; else "").
    """
    parts = []
    for column in SMOOTHING:
        table = layer_series(run, column)
        table["undefined"] = np.where(zero_norms(run, column), ZERO_NORM.get(column, ""), "")
        known = np.unique(table["step"])
        if len(known):
            wanted = (
                known[spaced(len(known), 5)] if steps is None else [known[np.abs(known - s).argmin()] for s in steps]
            )
            parts.append(table[table["step"].isin(wanted)].assign(quantity=column))
    columns = ["quantity", "step", "layer", "value", "undefined"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def smoothing_by_layer_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Outputs above, gradients below (beside each other's counterpart); a line a step."""
    if not len(table):
        note(figure, not_recorded("layers.mu", "layers.output_norm", "layers.gradient_mu"))
        return
    names = layer_names(table)
    wide = is_wide(figure)
    panels = figure.subplots(2, 3) if wide else figure.subplots(3, 2).T
    steps = sorted(table["step"].unique())
    colors = dict(zip(steps, ordered_colors(len(steps)), strict=True))
    marks, absent = list[Line2D](), dict[str, Axes]()
    for axes, (column, label) in zip(panels.flat, SMOOTHING.items(), strict=True):
        part = table[table["quantity"] == column].sort_values("layer")
        if not len(part):
            absent[f"layers.{column}"] = axes
            continue
        marker = {"marker": ".", "markersize": 3} if len(names) <= 40 else {}
        lines = [
            Line(
                layer_codes(curve["layer"]),
                curve["value"],
                style={"color": tuple(colors[step]), **marker},
                undefined=undefined_of(curve),
            )
            for step, curve in part.groupby("step")
        ]
        relative = column.startswith("relative")
        marks += draw_lines(axes, lines, log=None if relative else True, hold=(0.0, 1.0) if relative else ())
        axes.set_xlim(-0.5, max(len(names) - 0.5, 0.5))
        axes.set_ylabel(label)
        layer_axis(axes, names, limit=6 if wide else 5, letters=_LETTERS)
    step_bar(figure, list(panels.flat), [int(step) for step in steps])
    legend_below(figure, marks)
    note_panels(figure, absent)


SMOOTHING_BY_LAYER = Figure(
    name="smoothing_by_layer",
    title="Oversmoothing of outputs and gradients, layer by layer",
    shows="For each layer's output X and for its gradient, at a few steps of training: mu (how far the nodes' rows are "
    "from their mean), mu relative to the norm, and the norm itself.",
    reading="Relative mu that falls towards 0 with depth is oversmoothing of the outputs; one that falls towards 0 "
    "backwards is oversmoothing of the gradients. Where mu falls only as the norm does, everything vanishes, which is "
    "a different problem. mu that grows backwards is gradient expansion.",
    equation=r"\mu(X) = \|X - \mathbf{1}\gamma_X\|_F, \quad \gamma_X = \mathbf{1}^\top X / N",
    paper="Park & Kim, Taming Gradient Oversmoothing and Expansion in GNNs, arXiv 2410.04824",
    group="smoothing",
    needs=tuple(f"layers.{column}" for column in SMOOTHING),
    per="run",
    data=smoothing_by_layer_data,
    draw=smoothing_by_layer_draw,
    height=lambda table, width: (
        2 * layer_room(table, _LETTERS) + 3.4 if width > 4.5 else 3 * layer_room(table, _LETTERS) + 4.4
    ),
)


def smoothing_over_training_data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
    """Absolute and relative mu, and the norm, of a few layers' outputs and gradients, thinned so that spikes stay.

    Args:
        run: The run.
        layers: Their names; by default five, evenly from the first to the last.

    Returns:
        quantity (the column of `run.layers`), step, layer, value, low, high, undefined (why the value is NaN where it
        is 0 / 0: "gradient is zero" or "output is zero"; else "").

    Raises:
        InputError: A name is not one of the run's layers.
    """
    unknown = sorted(set(layers or ()) - set(run.layer_names))
    if unknown:
        raise InputError(f"layers must be names from run.layer_names, got {unknown[0]!r}")
    parts = []
    for column in SMOOTHING:
        zero = zero_norms(run, column)
        table = layer_series(run, column)
        table["broken"] = ~zero & ~np.isfinite(table["value"].to_numpy())
        chosen = some_layers(table, 5) if layers is None else table[table["layer"].isin(layers).to_numpy()]
        if len(chosen):
            thinned = thin_groups(chosen, "layer")
            broken = thin_groups(chosen.assign(value=chosen["broken"].astype(float)), "layer")["high"] > 0
            undefined = np.where(thinned["value"].isna() & ~broken, ZERO_NORM.get(column, ""), "")
            parts.append(thinned.assign(quantity=column, undefined=undefined))
    columns = ["quantity", "step", "layer", "value", "low", "high", "undefined"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def smoothing_over_training_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Outputs above, gradients below (beside each other's counterpart); a line a layer."""
    if not len(table):
        note(figure, not_recorded("layers.mu", "layers.output_norm", "layers.gradient_mu"))
        return
    panels = figure.subplots(2, 3) if is_wide(figure) else figure.subplots(3, 2).T
    marks, layers, absent = list[Line2D](), list[int](), dict[str, Axes]()
    for axes, (column, label) in zip(panels.flat, SMOOTHING.items(), strict=True):
        part = table[table["quantity"] == column]
        if not len(part):
            absent[f"layers.{column}"] = axes
            continue
        lines, layers = layer_lines(part, linewidth=0.9)
        relative = column.startswith("relative")
        marks += draw_lines(axes, lines, log=None if relative else True, hold=(0.0, 1.0) if relative else ())
        axes.set_ylabel(label)
        step_axis(axes, table["step"])
    layer_bar(figure, list(panels.flat), layer_names(table), layers)
    legend_below(figure, marks)
    note_panels(figure, absent)


SMOOTHING_OVER_TRAINING = Figure(
    name="smoothing_over_training",
    title="Oversmoothing of outputs and gradients over training",
    shows="For a few layers over training: mu of the output and of its gradient, mu over the norm, and the norm.",
    reading="Compare the lines, dark (first layer) to light (last): relative mu near 0 in late layers is an "
    "oversmoothed output; near 0 in early layers of the gradient's panel, an oversmoothed gradient. See whether "
    "training repairs it.",
    equation=r"\mu(X) = \|X - \mathbf{1}\gamma_X\|_F, \quad \gamma_X = \mathbf{1}^\top X / N",
    paper="Park & Kim, Taming Gradient Oversmoothing and Expansion in GNNs, arXiv 2410.04824",
    group="smoothing",
    needs=tuple(f"layers.{column}" for column in SMOOTHING),
    per="run",
    data=smoothing_over_training_data,
    draw=smoothing_over_training_draw,
    height=lambda table, width: 3.4 if width > 4.5 else 4.4,
)
