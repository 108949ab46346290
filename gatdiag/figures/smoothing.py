"""mu of layer outputs and their gradients, by layer and over training."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.figures.axes import (
    Curve,
    add_color_key,
    add_layer_bar,
    add_legend_below,
    draw_lines,
    layer_axis,
    layer_dots,
    layer_label_height,
    layer_lines,
    layer_names,
    note_missing_panels,
    step_axis,
)
from gatdiag.figures.figure import TAMING, Figure, axis_label, equations, has_steps, tidy
from gatdiag.figures.style import Canvas, is_wide, ordered_colors
from gatdiag.run import Run
from gatdiag.summary import check_layers, has_zero_norm, layer_series, select_layers, thin_groups

COLUMNS = ("mu", "relative_mu", "output_norm", "gradient_mu", "relative_gradient_mu", "output_gradient_norm")
_ZERO = {"relative_mu": "output is zero", "relative_gradient_mu": "gradient is zero"}  # why they can be undefined
_LETTERS = 20  # of unrotated labels that fit below a panel


def smoothing_by_layer_data(run: Run, steps: Sequence[int] | None = None) -> pd.DataFrame:
    """mu, relative mu and norm of each layer's output and of its gradient.

    Args:
        run: The run.
        steps: The steps; by default five, evenly spaced. The nearest recorded steps are used.

    Returns:
        quantity (the column of `run.layers`), step, layer, value, undefined (why the value is NaN where it is 0 / 0:
        "gradient is zero" or "output is zero"; else "").
    """
    parts = []
    for column in COLUMNS:
        table = layer_series(run, column)
        table["undefined"] = np.where(has_zero_norm(run, column), _ZERO.get(column, ""), "")
        known = np.unique(table["step"])
        if len(known):
            wanted = np.round(np.linspace(known[0], known[-1], 5)) if steps is None else steps
            nearest = [known[np.abs(known - step).argmin()] for step in wanted]
            parts.append(table[table["step"].isin(nearest)].assign(quantity=column))
    return tidy(parts, "quantity", "step", "layer", "value", "undefined")


def smoothing_over_training_data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
    """mu, relative mu and norm of a few layers' outputs and gradients, thinned so that spikes stay visible.

    Args:
        run: The run.
        layers: Names of the layers; by default five, evenly spaced.

    Returns:
        quantity (the column of `run.layers`), step, layer, value, low, high, undefined (why the value
        is NaN where it is 0 / 0: "gradient is zero" or "output is zero"; else "").

    Raises:
        InputError: A name is not one of the run's layers.
    """
    wanted, parts = check_layers(run, layers), []
    for column in COLUMNS:
        table = layer_series(run, column)
        table["broken"] = (~has_zero_norm(run, column) & ~np.isfinite(table["value"].to_numpy())).astype(float)
        chosen = table[table["layer"].isin(wanted).to_numpy()] if wanted else select_layers(table, 5)
        if len(chosen):
            thinned = thin_groups(chosen, "layer")
            broken = thin_groups(chosen.assign(value=chosen["broken"]), "layer")["high"] > 0
            undefined = np.where(thinned["value"].isna() & ~broken, _ZERO.get(column, ""), "")
            parts.append(thinned.assign(quantity=column, undefined=undefined))
    return tidy(parts, "quantity", "step", "layer", "value", "low", "high", "undefined")


def _draw_panels(
    table: pd.DataFrame, figure: Canvas, curves: Callable[[pd.DataFrame], list[Curve]], x: str
) -> tuple[list[Axes], list[Axes]]:
    """Draw outputs in the first row, gradients in the second. Returns all panels, and those that are not empty."""
    panels = figure.subplots(2, 3) if is_wide(figure) else figure.subplots(3, 2).T
    marks, absent = list[Line2D](), dict[str, Axes]()
    for axes, column in zip(panels.flat, COLUMNS, strict=True):
        part = table[table["quantity"] == column]
        if not len(part):
            absent[f"layers.{column}"] = axes
            continue
        relative = column.startswith("relative")
        include = (0.0, 1.0) if relative else ()
        marks += draw_lines(axes, curves(part), x=x, log=None if relative else True, include=include)
        axes.set_ylabel(axis_label(f"layers.{column}"))
    add_legend_below(figure, marks)
    note_missing_panels(figure, absent)
    return list(panels.flat), [axes for axes in panels.flat if axes not in absent.values()]


def draw_smoothing_by_layer(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one line per step."""
    names = layer_names(table)
    steps = sorted(table["step"].unique())
    colors = dict(zip(steps, ordered_colors(len(steps)), strict=True))
    marker = layer_dots(len(names), 3)

    def curves(part: pd.DataFrame) -> list[Curve]:
        part = part.sort_values("layer").assign(place=lambda of: of["layer"].cat.codes)
        return [(curve, {"color": colors[step], **marker}) for step, curve in part.groupby("step")]

    panels, drawn = _draw_panels(table, figure, curves, "place")
    for axes in drawn:
        axes.set_xlim(-0.5, max(len(names) - 0.5, 0.5))
        layer_axis(axes, names, limit=6 if is_wide(figure) else 5, letters=_LETTERS)
    add_color_key(figure, panels, [f"{step:,}" for step in steps], "step")


def draw_smoothing_over_training(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one line per layer."""
    panels, drawn = _draw_panels(table, figure, lambda part: layer_lines(part, 0.9), "step")
    for axes in drawn:
        step_axis(axes, table["step"])
    add_layer_bar(figure, panels, table)


SMOOTHING_BY_LAYER = Figure(
    name="smoothing_by_layer",
    title="Oversmoothing of outputs and gradients by layer",
    caption="For each layer's output X and its gradient, at a few steps of training: μ, the distance of the rows from "
    "their mean; μ relative to the norm; and the norm.",
    interpretation="Relative μ of the output that falls toward 0 with depth is oversmoothing; relative μ of the "
    "gradient that falls toward 0 from the last layer to the first is oversmoothing of gradients. If μ falls only as "
    "fast as the norm, outputs or gradients vanish, which is a different problem. μ of the gradient that grows toward "
    "the first layer is gradient expansion.",
    equation=equations("layers.mu"),
    paper=TAMING,
    group="smoothing",
    needs=tuple(f"layers.{column}" for column in COLUMNS),
    data=smoothing_by_layer_data,
    draw_table=draw_smoothing_by_layer,
    height=lambda table, width: (
        (3.4 if is_wide(width) else 4.4) + layer_label_height(table, _LETTERS) * (2 if is_wide(width) else 3)
    ),
)
SMOOTHING_OVER_TRAINING = replace(
    SMOOTHING_BY_LAYER,
    name="smoothing_over_training",
    title="Oversmoothing of outputs and gradients over training",
    caption="For a few layers over training: μ of the output and of its gradient, μ relative to the norm, and the "
    "norm.",
    interpretation="Lines run from dark (first layer) to light (last layer). Relative μ of the output near 0 in late "
    "layers is oversmoothing; relative μ of the gradient near 0 in early layers is oversmoothing of gradients. Check "
    "whether training repairs it.",
    data=smoothing_over_training_data,
    applies_to=has_steps,
    draw_table=draw_smoothing_over_training,
    height=lambda table, width: 3.4 if is_wide(width) else 4.4,
)
