"""mu of outputs and of gradients over training, at a few layers (paper 3)."""

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
    draw_lines,
    is_wide,
    layer_bar,
    layer_lines,
    layer_names,
    legend_below,
    not_recorded,
    note,
    note_panels,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import layer_series, some_layers, thin_groups, zero_norms


def data(run: Run, layers: Sequence[str] | None = None) -> pd.DataFrame:
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


def draw(table: pd.DataFrame, figure: Canvas) -> None:
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


FIGURE = Figure(
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
    data=data,
    draw=draw,
    height=lambda table, width: 3.4 if width > 4.5 else 4.4,
)
