"""The conservation laws over training: measured and predicted c of individual neurons, and delta."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.figures.axes import add_layer_bar, add_legend_below, draw_lines, layer_lines, panels, step_axis
from gatdiag.figures.figure import GATS, Figure, axis_label, equations, has_steps, tidy
from gatdiag.figures.style import COLORS, Canvas, is_wide, ordered_colors, plain_text
from gatdiag.run import Run
from gatdiag.summary import check_layers, evenly_spaced, neuron_series, select_layers, thin_groups

_NEURONS = 9
_PREDICTIONS = 12  # markers per line
_CIRCLE: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.2,
    "color": COLORS[1],
    "markerfacecolor": "none",
    "markeredgewidth": 0.7,
}


def balance_data(run: Run, layers: Sequence[str] | None = None, neurons: int = _NEURONS) -> pd.DataFrame:
    """Measured and predicted c for a few neurons of a few layers, thinned so that spikes stay visible.

    Args:
        run: The run.
        layers: Names of the layers; by default the first, the middle and the last that have laws.
        neurons: Number of laws per layer: evenly spaced by the rank of c at the end, from smallest to largest.

    Returns:
        layer, neuron (null for a law of the whole layer), law, step, c, low, high, predicted_c (null in most rows).

    Raises:
        InputError: A name is not one of the run's layers.
    """
    frame, chosen = run.neurons, check_layers(run, layers)
    columns = ("layer", "neuron", "law", "step", "c", "low", "high", "predicted_c")
    if not len(frame):
        return tidy([], *columns)
    rows = frame[np.isin(frame["law"].to_numpy(), _choose_laws(frame, chosen, neurons))].sort_values(["law", "step"])
    table = thin_groups(rows.assign(value=rows["c"]), "law").rename(columns={"value": "c"})
    predicted = thin_groups(rows.assign(value=rows["predicted_c"]), "law")["value"]
    sizes = table.groupby("law").size()
    marked = np.concatenate([np.isin(np.arange(size), evenly_spaced(size, _PREDICTIONS)) for size in sizes])
    known = rows.drop_duplicates("law").set_index("law")
    about = {name: known[name].reindex(table["law"]).array for name in ("layer", "neuron")}
    return table.assign(**about, predicted_c=predicted.where(marked))[list(columns)]


def _choose_laws(frame: pd.DataFrame, layers: Sequence[str], neurons: int) -> np.ndarray:
    """The laws to draw, chosen by the rank of c at the last step at which it is finite."""
    known = frame[np.isfinite(frame["c"].to_numpy(np.float64))]
    known = known if len(known) else frame
    last = known[(known["step"] == known["step"].iloc[-1]).to_numpy()].sort_values("c", kind="stable")
    last = last if layers else select_layers(last, 3)
    by_layer = [laws.to_numpy() for layer, laws in last.groupby("layer", observed=True)["law"]
                if layer in layers or not layers]  # fmt: skip
    return np.concatenate([laws[evenly_spaced(len(laws), neurons)] for laws in by_layer] or [np.empty(0, np.int64)])


def draw_balance(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per layer, with one line per neuron and circles for predictions."""
    parts = list(table.rename(columns={"c": "value"}).groupby("layer", observed=True, sort=True))
    include = (-0.1, 0.1, *table["c"][np.isfinite(table["c"])].quantile([0.02, 0.98]))
    entries = [
        Line2D([], [], color=ordered_colors(1)[0], label="neuron"),
        Line2D([], [], label="predicted from the previous step", **_CIRCLE),
    ]
    for place, (axes, (layer, part)) in enumerate(zip(panels(figure, len(parts), len(parts)), parts, strict=True)):
        entries += _draw_layer(axes, part, include)
        step_axis(axes, table["step"])
        axes.set_title(plain_text(f"layer {layer}"), loc="left")
        if place == 0 or not is_wide(figure):
            axes.set_ylabel(axis_label("neurons.c"))
    add_legend_below(figure, entries)


def _draw_layer(axes: Axes, part: pd.DataFrame, include: Sequence[float]) -> list[Line2D]:
    laws = sorted((law for _, law in part.groupby("law", sort=False)), key=lambda law: float(law["value"].iloc[0]))
    lines = [(law, {"color": color}) for law, color in zip(laws, ordered_colors(len(laws)), strict=True)]
    marks = draw_lines(axes, lines, log=False, include=include)
    axes.axhline(0, color="black", linewidth=0.5, zorder=1)
    known = part.dropna(subset=["predicted_c"])
    axes.plot(known["step"], known["predicted_c"], label="_predicted", **_CIRCLE)
    return marks


BALANCE = Figure(
    name="balance",
    title="Balance c of individual neurons, measured and predicted",
    caption="For the first, a middle and the last layer with laws: c, the squared norm of a neuron's incoming weights "
    "minus that of its outgoing and attention weights, for up to nine neurons from the smallest to the largest c "
    "(lines), and c predicted from the previous optimizer step (circles).",
    interpretation="Zero is balanced. Level lines are the conservation law: gradient descent with small steps cannot "
    "repair an imbalance of the initialization. Large steps, weight decay and optimizers such as Adam change c. "
    "Circles off their line mean that something other than the optimizer changes the weights.",
    equation=equations("neurons.c", "neurons.predicted_c"),
    paper=f"{GATS}, figures 2c and 2d",
    group="balance",
    applies_to=has_steps,
    needs=("neurons.c", "neurons.predicted_c"),
    data=balance_data,
    draw_table=draw_balance,
    height=lambda table, width: 2.2 if is_wide(width) else 0.4 + 1.5 * max(table["layer"].nunique(), 1),
)


def conservation_data(run: Run) -> pd.DataFrame:
    """The largest |delta| over the neurons of at most ten hidden layers, thinned so that spikes stay visible.

    Returns:
        step, layer, value, low, high.
    """
    return thin_groups(select_layers(neuron_series(run, "delta", "largest")), "layer")


def draw_conservation(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one line per layer."""
    axes = figure.subplots()
    add_legend_below(figure, draw_lines(axes, layer_lines(table, 0.8), log=True))
    axes.set_ylabel(f"largest |{axis_label('neurons.delta')}|")
    step_axis(axes, table["step"])
    add_layer_bar(figure, [axes], table)


CONSERVATION = Figure(
    name="conservation",
    title="Violation of the conservation law: delta",
    caption="For up to ten hidden layers, the largest |delta| over their neurons: by how much the law between a "
    "neuron's incoming and outgoing gradients is violated.",
    interpretation="Zero up to rounding (about 10⁻⁷ of its terms in float32), whatever the optimizer. A layer well "
    "above that breaks the law: its activation is not homogeneous, or the gradients were modified.",
    equation=equations("neurons.delta"),
    paper=f"{GATS}, figures 2a and 2b",
    group="balance",
    applies_to=has_steps,
    needs=("neurons.delta",),
    data=conservation_data,
    draw_table=draw_conservation,
    height=lambda table, width: 2.2,
)
