"""The conservation laws over training: c of single neurons with its prediction, and delta (paper 1, figure 2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.figures.axes import draw_lines, layer_bar, layer_lines, legend_below, panels, step_axis
from gatdiag.figures.figure import GATS, Figure, equations, symbol, tidy
from gatdiag.figures.style import PREDICTED, Canvas, is_wide, ordered_colors, plain
from gatdiag.run import Run
from gatdiag.summary import check_layers, evenly_spaced, neuron_series, select_layers, thin_groups

_NEURONS = 9
_PREDICTIONS = 12  # marks on a line
_CIRCLE: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.2,
    "color": PREDICTED,
    "markerfacecolor": "none",
    "markeredgewidth": 0.7,
}


def balance_data(run: Run, layers: Sequence[str] | None = None, neurons: int = _NEURONS) -> pd.DataFrame:
    """c and its prediction for a few neurons of a few layers, thinned so that spikes stay.

    Args:
        run: The run.
        layers: Their names; by default the first, the middle and the last that have laws.
        neurons: How many laws of each layer: those with the largest and the smallest c at the end, and evenly by rank
            between.

    Returns:
        layer, neuron (null for a law of the whole layer), law, step, c, low, high, stretch (of uninterrupted
        recording), predicted_c (null at most rows).

    Raises:
        InputError: A name is not one of the run's layers.
    """
    frame, chosen = run.neurons, check_layers(run, layers)
    columns = ("layer", "neuron", "law", "step", "c", "low", "high", "stretch", "predicted_c")
    if not len(frame):
        return tidy([], *columns)
    rows = frame[np.isin(frame["law"].to_numpy(), _laws(frame, chosen, neurons))].sort_values(["law", "step"])
    table = thin_groups(rows.assign(value=rows["c"]), "law").rename(columns={"value": "c"})
    predicted = thin_groups(rows.assign(value=rows["predicted_c"]), "law")["value"]
    sizes = table.groupby("law").size()
    marked = np.concatenate([np.isin(np.arange(size), evenly_spaced(size, _PREDICTIONS)) for size in sizes])
    known = rows.drop_duplicates("law").set_index("law")
    about = {name: known[name].reindex(table["law"]).array for name in ("layer", "neuron")}
    return table.assign(**about, predicted_c=predicted.where(marked))[list(columns)]


def _laws(frame: pd.DataFrame, layers: Sequence[str], neurons: int) -> np.ndarray:
    """The laws to draw, chosen by the rank of c at the last step at which it is finite."""
    known = frame[np.isfinite(frame["c"].to_numpy(np.float64))]
    known = known if len(known) else frame
    last = known[(known["step"] == known["step"].iloc[-1]).to_numpy()].sort_values("c", kind="stable")
    last = last if layers else select_layers(last, 3)
    by_layer = [laws.to_numpy() for layer, laws in last.groupby("layer", observed=True)["law"]
                if layer in layers or not layers]  # fmt: skip
    return np.concatenate([laws[evenly_spaced(len(laws), neurons)] for laws in by_layer] or [np.empty(0, np.int64)])


def balance_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a layer, a line a neuron, circles where the prediction stands."""
    parts = list(table.rename(columns={"c": "value"}).groupby("layer", observed=True, sort=True))
    hold = (-0.1, 0.1, *table["c"][np.isfinite(table["c"])].quantile([0.02, 0.98]))
    entries = [
        Line2D([], [], color=ordered_colors(1)[0], label="a neuron"),
        Line2D([], [], label="predicted from the step before", **_CIRCLE),
    ]
    for place, (axes, (layer, part)) in enumerate(zip(panels(figure, len(parts), len(parts)), parts, strict=True)):
        entries += _draw_layer(axes, part, hold)
        step_axis(axes, table["step"])
        axes.set_title(plain(f"layer {layer}"), loc="left")
        if place == 0 or not is_wide(figure):
            axes.set_ylabel(symbol("neurons.c"))
    legend_below(figure, entries)


def _draw_layer(axes: Axes, part: pd.DataFrame, hold: Sequence[float]) -> list[Line2D]:
    laws = sorted((law for _, law in part.groupby("law", sort=False)), key=lambda law: float(law["value"].iloc[0]))
    lines = [(law, {"color": color}) for law, color in zip(laws, ordered_colors(len(laws)), strict=True)]
    marks = draw_lines(axes, lines, log=False, hold=hold)
    axes.axhline(0, color="black", linewidth=0.5, zorder=1)
    known = part.dropna(subset=["predicted_c"])
    axes.plot(known["step"], known["predicted_c"], label="_predicted", **_CIRCLE)
    return marks


BALANCE = Figure(
    name="balance",
    title="Balance of single neurons over training: c and its prediction",
    shows="For the first, a middle and the last layer with laws: c of up to nine laws over training (lines), from the "
    "most negative to the most positive at the end, and the c predicted from the optimizer's last step (circles).",
    reading="Zero is balanced. Lines that stay where they start are the conservation law at work: gradient descent "
    "with small steps cannot repair the imbalance it was given. Large steps, weight decay and optimizers such as Adam "
    "move c. Circles off their line mean that something else changes the weights.",
    equation=equations("neurons.c", "neurons.predicted_c"),
    paper=f"{GATS}, figures 2c and 2d",
    group="balance",
    needs=("neurons.c", "neurons.predicted_c"),
    data=balance_data,
    drawing=balance_draw,
    height=lambda table, width: 2.2 if is_wide(width) else 0.4 + 1.5 * max(table["layer"].nunique(), 1),
)


def conservation_data(run: Run) -> pd.DataFrame:
    """The largest |delta| over the neurons of at most ten hidden layers, thinned so that spikes stay.

    Returns:
        step, layer, value, low, high, stretch (of uninterrupted recording).
    """
    return thin_groups(select_layers(neuron_series(run, "delta", "largest")), "layer")


def conservation_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A line a layer."""
    axes = figure.subplots()
    legend_below(figure, draw_lines(axes, layer_lines(table, 0.8), log=True))
    axes.set_ylabel(f"largest |{symbol('neurons.delta')}|")
    step_axis(axes, table["step"])
    layer_bar(figure, [axes], table)


CONSERVATION = Figure(
    name="conservation",
    title="The conservation law at every step: delta",
    shows="For each hidden layer the largest |delta| of its neurons: by how much the law between a neuron's incoming "
    "and outgoing gradients is missed.",
    reading="Zero up to rounding (about 1e-7 of the terms in float32) whatever the optimizer. A layer well above that "
    "breaks the law: an activation that is not homogeneous, or something done to the gradients.",
    equation=equations("neurons.delta"),
    paper=f"{GATS}, figures 2a and 2b",
    group="balance",
    needs=("neurons.delta",),
    data=conservation_data,
    drawing=conservation_draw,
    height=lambda table, width: 2.2,
)
