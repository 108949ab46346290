"""The conservation laws over training: c of single neurons with its prediction, and delta (paper 1, figure 2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.errors import InputError
from gatdiag.figures.look import (
    OKABE_ITO,
    Canvas,
    Figure,
    Line,
    draw_lines,
    is_wide,
    layer_bar,
    layer_lines,
    layer_names,
    legend_below,
    not_recorded,
    note,
    ordered_colors,
    plain,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import envelope, neuron_series, some_layers, spaced, thin_groups

_NEURONS = 9
_PREDICTIONS = 12  # marks on a line


def balance_data(run: Run, layers: Sequence[str] | None = None, neurons: int = _NEURONS) -> pd.DataFrame:
    """c and its prediction for a few neurons of a few layers, thinned so that spikes stay.

    Args:
        run: The run.
        layers: Their names; by default the first, the middle and the last that have laws.
        neurons: How many laws of each layer: those with the largest and the smallest c at the end, and evenly by rank
            between.

    Returns:
        layer, neuron (null for a law of the whole layer), law, step, c, predicted_c (null at most rows).

    Raises:
        InputError: A name is not one of the run's layers.
    """
    unknown = sorted(set(layers or ()) - set(run.layer_names))
    if unknown:
        raise InputError(f"layers must be names from run.layer_names, got {unknown[0]!r}")
    frame = run.neurons
    columns = ["layer", "neuron", "law", "step", "c", "predicted_c"]
    if not {"c", "law"} <= set(frame.columns) or not len(frame):
        return pd.DataFrame(columns=columns).astype({"c": np.float64})
    chosen = _laws(frame, layers, neurons)
    rows = frame[np.isin(frame["law"].to_numpy(), chosen)].reindex(columns=columns).sort_values(["law", "step"])
    parts = []
    for _, part in rows.groupby("law", sort=True):
        kept = part.iloc[envelope(part["c"].to_numpy(np.float64), 200)]
        shown = kept.index[spaced(len(kept), _PREDICTIONS)]
        parts.append(kept.assign(predicted_c=kept["predicted_c"].where(kept.index.isin(shown))))
    return pd.concat(parts, ignore_index=True)


def _laws(frame: pd.DataFrame, layers: Sequence[str] | None, neurons: int) -> np.ndarray:
    """The laws to draw, chosen by the rank of c at the last step at which it is a number."""
    known = frame[np.isfinite(frame["c"].to_numpy(np.float64))]
    known = known if len(known) else frame
    last = known[(known["step"] == known["step"].iloc[-1]).to_numpy()]
    present = last["layer"].cat.remove_unused_categories().cat.categories
    kept = list(layers) if layers is not None else [present[i] for i in spaced(len(present), 3)]
    chosen = []
    for layer in kept:
        laws = last.loc[(last["layer"] == layer).to_numpy(), ["c", "law"]].sort_values("c", kind="stable")["law"]
        chosen.append(laws.to_numpy()[spaced(len(laws), neurons)])
    return np.concatenate(chosen) if chosen else np.empty(0, np.int64)


def balance_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a layer, a line a neuron, circles where the prediction stands."""
    if not len(table):
        note(figure, not_recorded("neurons.c"))
        return
    parts = [part for _, part in table.groupby("layer", observed=True, sort=True)]
    shape = (1, len(parts)) if is_wide(figure) else (len(parts), 1)
    panels = figure.subplots(*shape, squeeze=False)
    hold = (-0.1, 0.1, *table["c"][np.isfinite(table["c"])].quantile([0.02, 0.98]))
    marks = []
    for axes, part in zip(panels.flat, parts, strict=True):
        marks += _draw_layer(axes, part, hold)
        step_axis(axes, table["step"])
        axes.set_title(plain(f"layer {part['layer'].iloc[0]}"), loc="left")
    for axes in panels[:, 0]:
        axes.set_ylabel("c")
    entries = [
        Line2D([], [], color=tuple(ordered_colors(1)[0]), label="a neuron"),
        _prediction("predicted from the step before"),
    ]
    legend_below(figure, entries + marks)


def _draw_layer(axes: Axes, part: pd.DataFrame, hold: Sequence[float]) -> list[Line2D]:
    laws = [law for _, law in part.groupby("law", sort=False)]
    laws.sort(key=lambda law: float(law["c"].iloc[0]))
    colors = ordered_colors(len(laws))
    lines = [Line(law["step"], law["c"], style={"color": tuple(c)}) for law, c in zip(laws, colors, strict=True)]
    marks = draw_lines(axes, lines, log=False, hold=hold)
    axes.axhline(0, color="black", linewidth=0.5, zorder=1)
    for law in laws:
        known = law.dropna(subset=["predicted_c"])
        mark = _prediction("_predicted")
        axes.plot(known["step"], known["predicted_c"], linestyle="none", marker=mark.get_marker(), label="_predicted",
                  markersize=mark.get_markersize(), color=OKABE_ITO["vermilion"], markerfacecolor="none",
                  markeredgewidth=0.7)  # fmt: skip
    return marks


def _prediction(label: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker="o", markersize=3.2, color=OKABE_ITO["vermilion"],
                  markerfacecolor="none", markeredgewidth=0.7, label=label)  # fmt: skip


BALANCE = Figure(
    name="balance",
    title="Balance of single neurons over training: c and its prediction",
    shows="For the first, a middle and the last layer with laws: c of up to nine laws over training (lines), from the "
    "most negative to the most positive at the end, and the c predicted from the optimizer's last step (circles).",
    reading="Zero is balanced. Lines that stay where they start are the conservation law at work: gradient descent "
    "with small steps cannot repair the imbalance it was given. Large steps, weight decay and optimizers such as Adam "
    "move c. Circles off their line mean that something else changes the weights.",
    equation=r"c_i = \|W^l_{i,:}\|^2 - (a^l_i)^2 - \|W^{l+1}_{:,i}\|^2, \quad "
    r"c_{t+1} = (1 - \eta\lambda)^2 c_t + \eta^2 d_i, \quad "
    r"d_i = \|\nabla W^l_{i,:}\|^2 - (\nabla a^l_i)^2 - \|\nabla W^{l+1}_{:,i}\|^2 \quad (\mathrm{SGD},\ \delta_i = 0)",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 2c and 2d",
    group="balance",
    needs=("neurons.c", "neurons.predicted_c"),
    per="run",
    data=balance_data,
    draw=balance_draw,
    height=lambda table, width: 2.2 if width > 4.5 else 0.4 + 1.5 * max(table["layer"].nunique(), 1),
)


def conservation_data(run: Run) -> pd.DataFrame:
    """The largest |delta| over the neurons of at most ten hidden layers, thinned so that spikes stay.

    Returns:
        step, layer, value, low, high.
    """
    return thin_groups(some_layers(neuron_series(run, "delta", "largest")), "layer")


def conservation_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A line a layer."""
    if not len(table):
        note(figure, not_recorded("neurons.delta"))
        return
    axes = figure.subplots()
    lines, layers = layer_lines(table, linewidth=0.8)
    legend_below(figure, draw_lines(axes, lines, log=True))
    axes.set_ylabel("largest |δ|")
    step_axis(axes, table["step"])
    layer_bar(figure, [axes], layer_names(table), layers)


CONSERVATION = Figure(
    name="conservation",
    title="The conservation law at every step: delta",
    shows="For each hidden layer the largest |delta| of its neurons: by how much the law between a neuron's incoming "
    "and outgoing gradients is missed.",
    reading="Zero up to rounding (about 1e-7 of the terms in float32) whatever the optimizer. A layer well above that "
    "breaks the law: an activation that is not homogeneous, or something done to the gradients.",
    equation=r"\delta_i = \langle W^l_{i,:}, \nabla W^l_{i,:} \rangle - a^l_i \nabla a^l_i - "
    r"\langle W^{l+1}_{:,i}, \nabla W^{l+1}_{:,i} \rangle",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 2a and 2b",
    group="balance",
    needs=("neurons.delta",),
    per="run",
    data=conservation_data,
    draw=conservation_draw,
    height=lambda table, width: 2.2,
)
