"""How far the weights of each layer have moved since initialization (paper 1, figures 3a, 4a, 8 and 11)."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.look import (
    ATTENTION_STYLE,
    BROKEN,
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

_STYLES = {FEATURES: FEATURE_STYLE, ATTENTION: ATTENTION_STYLE}
_BARS = 24  # layers


def draw_fractions(axes: Axes, table: pd.DataFrame, column: str, *, value: str) -> list[Artist]:
    """Draw a fraction in [0, 1] of each layer, feature weights beside attention vectors.

    Args:
        axes: The axes.
        table: As from `gatdiag.summary.weight_change`.
        column: The fraction.
        value: The label of the axis.

    Returns:
        The legend's entries.
    """
    names = layer_names(table)
    roles = [role for role in _STYLES if (table["role"] == role).any()]
    for index, role in enumerate(roles):
        part = table[table["role"] == role]
        x, y = layer_codes(part["layer"]), part[column].to_numpy(np.float64)
        style = _STYLES[role]
        if len(names) <= _BARS:
            width = 0.8 / len(roles)
            axes.bar(x + (index - (len(roles) - 1) / 2) * width, np.nan_to_num(y), width, color=style["color"],
                     hatch=style["hatch"], edgecolor="white", linewidth=0.3, label=f"{role}s")  # fmt: skip
        else:
            axes.step(x, y, where="mid", color=style["color"], linestyle=style["linestyle"], label=f"{role}s")
        broken = np.isnan(y)
        if broken.any():
            axes.plot(x[broken], np.full(broken.sum(), 0.02), "x", color=BROKEN, markersize=3, label="undefined",
                      transform=axes.get_xaxis_transform())  # fmt: skip
    everywhere = "undefined" if table[column].isna().all() else "" if table[column].any() else "0"
    if everywhere:
        axes.text(0.5, 0.5, f"{everywhere} in every layer", transform=axes.transAxes, ha="center", color="#555555")
    axes.set_ylim(0, 1.03)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="x")
    axes.set_ylabel(value)
    layer_axis(axes, names)
    return list(axes.get_legend_handles_labels()[0])


_PANELS = {
    "changed_fraction_005": "part changed\nby more than 5 %",
    "changed_fraction_050": "part changed\nby more than 50 %",
}


def changed_fraction_data(run: Run) -> pd.DataFrame:
    """The part of the feature weights and attention vectors that changed by more than 0.05 and 0.5.

    Returns:
        layer, role, source (the snapshot compared with the initial one), changed_fraction_005, changed_fraction_050.
    """
    return weight_change(run)[["layer", "role", "source", *_PANELS]]


def changed_fraction_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a threshold, bars a layer."""
    if not len(table):
        note(figure, not_recorded(*(f"parameters.{name}" for name in _PANELS)))
        return
    shape = (1, 2) if is_wide(figure) else (2, 1)
    entries: list[Artist] = []
    for axes, (column, label) in zip(figure.subplots(*shape, sharey=True).flat, _PANELS.items(), strict=True):
        entries += draw_fractions(axes, table, column, value=label)
    name_change(figure.axes[0], table)
    legend_below(figure, entries)


CHANGED_FRACTION = Figure(
    name="changed_fraction",
    title="How much of each layer has changed",
    shows="The part of the significant feature weights (at least 1e-4 in size) whose relative change since "
    "initialization exceeds 0.05 and 0.5, and the part of the attention entries whose absolute change does. "
    "The title says up to when: the best model where watch(best=...) kept one, unless it came within the first 5 % of "
    "the run; else the final one.",
    reading="Bars near zero are layers that training has not touched: they still hold their initial values. In a "
    "network that trains, all layers change, middle ones included.",
    equation=r"\#\{|(w^* - w_0) / w^*| > \tau\} / \#\{|w^*| \geq 10^{-4}\}, \quad \#\{|a^* - a_0| > \tau\} / \#\{a\}",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figures 3a and 4a",
    group="changes",
    needs=("parameters.changed_fraction_005", "parameters.changed_fraction_050"),
    per="run",
    data=changed_fraction_data,
    draw=changed_fraction_draw,
    height=lambda table, width: layer_room(table) + 2.0 if width > 4.5 else 2 * layer_room(table) + 3.4,
)


def unchanged_fraction_data(run: Run) -> pd.DataFrame:
    """The part of the feature weights and attention vectors that is bit for bit as it was initialized.

    Returns:
        layer, role, source (the snapshot compared with the initial one), unchanged_fraction.
    """
    return weight_change(run)[["layer", "role", "source", "unchanged_fraction"]]


def unchanged_fraction_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Bars a layer."""
    if not len(table):
        note(figure, not_recorded("parameters.unchanged_fraction"))
        return
    axes = figure.subplots()
    entries = draw_fractions(axes, table, "unchanged_fraction", value="part unchanged")
    name_change(axes, table)
    legend_below(figure, entries)


UNCHANGED_FRACTION = Figure(
    name="unchanged_fraction",
    title="Weights that never changed",
    shows="For each layer the part of the weights that is exactly, to the last bit, what it was at initialization. "
    "The title says up to when: the best model where watch(best=...) kept one, unless it came within the first 5 % of "
    "the run; else the final one.",
    reading="Zero is healthy. A tall bar means that no gradient arrives: dead units, features that never occur in the "
    "training nodes, or steps too small for the number format to hold.",
    equation=r"\#\{w^* = w_0\} / \#\{w\}",
    paper="Mustafa et al., Are GATs Out of Balance?, NeurIPS 2023, figure 8",
    group="changes",
    needs=("parameters.unchanged_fraction",),
    per="run",
    data=unchanged_fraction_data,
    draw=unchanged_fraction_draw,
    height=lambda table, width: layer_room(table) + 1.9,
)


_QUANTILES = [f"q{level}" for level in LEVELS]
_BOX_PANELS = {
    FEATURES: ("relative change,\nfeature weights", FEATURE_STYLE),
    ATTENTION: ("absolute change,\nattention vectors", ATTENTION_STYLE),
}
_BOXES = 42  # layers


def change_boxes_data(run: Run) -> pd.DataFrame:
    """Quantiles of the change of each layer since initialization.

    Returns:
        layer, role, source (the snapshot compared with the initial one), q0, q5, q25, q50, q75, q95, q100.
    """
    return weight_change(run)[["layer", "role", "source", *_QUANTILES]]


def change_boxes_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a role: boxes, or bands where there are too many layers for boxes."""
    if not len(table):
        note(figure, not_recorded("parameters.relative_change_q50"))
        return
    roles = [role for role in _BOX_PANELS if (table["role"] == role).any()]
    entries: list[Artist] = []
    shape = (1, len(roles)) if is_wide(figure) else (len(roles), 1)
    for axes, role in zip(figure.subplots(*shape, squeeze=False).flat, roles, strict=True):
        label, style = _BOX_PANELS[role]
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


CHANGE_BOXES = Figure(
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
    data=change_boxes_data,
    draw=change_boxes_draw,
    height=_height,
)
