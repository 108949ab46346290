"""Box plots of how far the weights of each layer have moved (paper 1, figure 11)."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.look import (
    ATTENTION_STYLE,
    FEATURE_STYLE,
    Canvas,
    Figure,
    is_wide,
    layer_axis,
    layer_codes,
    layer_names,
    layer_room,
    legend_below,
    mark_handles,
    mark_hidden,
    name_change,
    not_recorded,
    note,
    scale_axis,
)
from gatdiag.run import Run
from gatdiag.summary import ATTENTION, FEATURES, LEVELS, weight_change

_QUANTILES = [f"q{level}" for level in LEVELS]
_PANELS = {
    FEATURES: ("relative change,\nfeature weights", FEATURE_STYLE),
    ATTENTION: ("absolute change,\nattention vectors", ATTENTION_STYLE),
}
_BOXES = 42  # layers


def data(run: Run) -> pd.DataFrame:
    """Quantiles of the change of each layer since initialization.

    Returns:
        layer, role, source (the snapshot compared with the initial one), q0, q5, q25, q50, q75, q95, q100.
    """
    return weight_change(run)[["layer", "role", "source", *_QUANTILES]]


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a role: boxes, or bands where there are too many layers for boxes."""
    if not len(table):
        note(figure, not_recorded("parameters.relative_change_q50"))
        return
    roles = [role for role in _PANELS if (table["role"] == role).any()]
    entries: list[Artist] = []
    shape = (1, len(roles)) if is_wide(figure) else (len(roles), 1)
    for axes, role in zip(figure.subplots(*shape, squeeze=False).flat, roles, strict=True):
        label, style = _PANELS[role]
        part = table[table["role"] == role].dropna(subset=_QUANTILES)
        if not len(part):
            note(axes, f"{' '.join(label.split())}: undefined in every layer (NaN weights, or none large enough)")
            continue
        inner = part[_QUANTILES[1:]].to_numpy(np.float64)
        scale_axis(axes, inner[inner > 0] if (inner > 0).any() else inner, log=bool((inner > 0).any()))
        (_boxes if len(layer_names(table)) <= _BOXES else _bands)(axes, part, str(style["color"]))
        axes.set_xlim(-0.7, len(layer_names(table)) - 0.3)
        axes.grid(False, axis="x")
        axes.set_ylabel(label)
        layer_axis(axes, layer_names(table))
        entries += axes.get_legend_handles_labels()[0]
        medians = part["q50"].to_numpy(np.float64)
        entries += mark_handles(mark_hidden(axes, layer_codes(part["layer"]), medians))
    name_change(figure.axes[0], table)
    legend_below(figure, entries)


def _boxes(axes: Axes, part: pd.DataFrame, color: str) -> None:
    low, high = axes.get_ylim()
    boxes = [
        {"whislo": q[1], "q1": q[2], "med": q[3], "q3": q[4], "whishi": q[5], "fliers": []}
        for q in part[_QUANTILES].clip(lower=low if axes.get_yscale() == "log" else None).to_numpy(np.float64)
    ]
    axes.bxp(
        boxes,
        positions=layer_codes(part["layer"]),
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": color, "alpha": 0.35, "linewidth": 0.6},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops={"linewidth": 0.6},
        capprops={"linewidth": 0.6},
    )
    axes.plot(layer_codes(part["layer"]), part["q100"].clip(upper=high), "_", color="#777777", markersize=3)


def _bands(axes: Axes, part: pd.DataFrame, color: str) -> None:
    low = axes.get_ylim()[0] if axes.get_yscale() == "log" else None
    x, drawn = layer_codes(part["layer"]), part[_QUANTILES].clip(lower=low)
    axes.fill_between(x, drawn["q5"], drawn["q95"], color=color, alpha=0.2, linewidth=0, label="5 to 95 %")
    axes.fill_between(x, drawn["q25"], drawn["q75"], color=color, alpha=0.45, linewidth=0, label="25 to 75 %")
    axes.plot(x, drawn["q50"], color="black", linewidth=0.9, label="median")


def _height(table: pd.DataFrame, width: float) -> float:
    panels = 1 if width > 4.5 else max(table["role"].nunique(), 1)
    return panels * (layer_room(table) + 1.9)


FIGURE = Figure(
    name="change_boxes",
    title="Distribution of the change of each layer's weights",
    shows="For each layer the change since initialization: relative to the trained weight for feature weights of at "
    "least 1e-4, absolute for attention vectors. Box: 25 to 75 %, bar: median, whiskers: 5 to 95 %, dash: largest; a "
    "triangle on the axis: a median of exactly 0. "
    "The title says up to when: the best model where watch(best=...) kept one, unless it came within the first 5 % of "
    "the run; else the final one.",
    reading="Compare the medians: layers decades below the others have not trained. A relative change of 2 is a weight "
    "that flipped its sign.",
    equation=r"|(w^* - w_0) / w^*|, \quad |a^* - a_0|",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figure 11",
    group="changes",
    needs=("parameters.relative_change_q50", "parameters.absolute_change_q50"),
    per="run",
    data=data,
    draw=draw,
    height=_height,
)
