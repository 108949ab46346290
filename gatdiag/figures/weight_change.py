"""How far the weights of each layer have moved since initialization."""

from collections.abc import Callable
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from gatdiag.figures.axes import (
    add_legend_below,
    layer_axis,
    layer_label_height,
    layer_names,
    mark_handles,
    mark_hidden,
    note,
    panels,
    scale_axis,
)
from gatdiag.figures.figure import GATS, Figure, equations
from gatdiag.figures.style import BROKEN, COLORS, MUTED, ROLE_STYLES, Canvas, is_wide, plain_text
from gatdiag.quantities import HEALTHY
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary import LEVELS, weight_change

_HATCHES: dict[str, str] = {FEATURE: "", ATTENTION: "////"}
_BARS = 24  # layers
_CHANGED = ("changed_fraction_005", "changed_fraction_050")
_HEALTHY = {  # column -> 5th and 95th percentile of the layers' feature weights in the controls of tests/bank
    "changed_fraction_005": (0.3, 1.0),
    "changed_fraction_050": (0.04, 0.9),
    "unchanged_fraction": HEALTHY["parameters.unchanged_fraction"],
}
_LABELS = {
    "changed_fraction_005": "share of weights changed by over 0.05",
    "changed_fraction_050": "share of weights changed by over 0.5",
    "unchanged_fraction": "share of weights never changed",
}
_RANGE = "healthy feature weights (nine in ten layers)"
_TRAINED = (
    "The panel title names the trained weights: those of the best step if watch(best=...) kept them and it is not "
    "in the first 5% of the run, else the final ones."
)


def _data(*columns: str) -> Callable[[Run], pd.DataFrame]:
    def data(run: Run) -> pd.DataFrame:
        """Layer, role, source and some other columns of `gatdiag.summary.weight_change`, which describes them."""
        return weight_change(run)[["layer", "role", "source", *columns]]

    return data


def draw_fractions(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per fraction, with feature weights beside attention vectors."""
    columns = [str(column) for column in table.columns[3:]]
    entries: list[Artist] = []
    for axes, column in zip(panels(figure, len(columns)), columns, strict=True):
        entries += _draw_fraction(axes, table, column)
        axes.set_ylabel(fill(_LABELS[column], 20))
        entries.append(
            axes.axhspan(*_HEALTHY[column], color=COLORS[2], alpha=0.15, linewidth=0, zorder=0.5, label=_RANGE)
        )
    _finish(figure, table, entries)


def _draw_fraction(axes: Axes, table: pd.DataFrame, column: str) -> list[Artist]:
    names = layer_names(table)
    parts = list(table.groupby("role", sort=False))
    width = 0.8 / len(parts)
    for index, (role, part) in enumerate(parts):
        x, y = part["layer"].cat.codes, part[column].to_numpy(np.float64)
        style: dict[str, Any] = {**ROLE_STYLES[str(role)], "label": f"{role}s"}
        if len(names) <= _BARS:
            axes.bar(x + (index - (len(parts) - 1) / 2) * width, np.nan_to_num(y), width, edgecolor="white",
                     hatch=_HATCHES[str(role)], **(style | {"linestyle": "-", "linewidth": 0.3}))  # fmt: skip
        else:
            axes.step(x, y, where="mid", **style)
        broken = x[np.isnan(y)]
        if len(broken):
            axes.plot(broken, np.full(len(broken), 0.02), "x", color=BROKEN, markersize=3, label="undefined",
                      transform=axes.get_xaxis_transform())  # fmt: skip
    everywhere = "undefined" if table[column].isna().all() else "" if table[column].any() else "0"
    if everywhere:
        axes.text(0.5, 0.5, f"{everywhere} in every layer", transform=axes.transAxes, ha="center", color=MUTED)
    axes.set_ylim(0, 1.03)
    _layers_below(axes, names)
    return list(axes.get_legend_handles_labels()[0])


def _layers_below(axes: Axes, names: list[str]) -> None:
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.grid(False, axis="x")
    layer_axis(axes, names)


def _finish(figure: Canvas, table: pd.DataFrame, entries: list[Artist]) -> None:
    """Title the first panel with the weights that are compared, and add the legend."""
    figure.axes[0].set_title(plain_text(f"initial → {table['source'].iloc[0]}"), loc="left")
    add_legend_below(figure, entries)


CHANGED_FRACTION = Figure(
    name="changed_fraction",
    title="Fraction of weights that changed, by layer",
    caption="The fraction of feature weights of magnitude 1e-4 or more whose relative change since initialization "
    "exceeds 0.05 and 0.5, and the fraction of attention weights whose absolute change does. " + _TRAINED,
    interpretation="In the green range are the feature weights of nine in ten layers of healthy trainings: few of "
    "these change by 0.5. Bars below it are layers that still have their initial weights. Bars of attention vectors "
    "are often near zero in healthy trainings, too: three in four layers have none that changed by 0.5.",
    equation="#{|w − w₀| / |w| > τ, |w| ≥ 10⁻⁴} / #{|w| ≥ 10⁻⁴}; #{|a − a₀| > τ} / #{a}",
    paper=f"{GATS}, figures 3a and 4a",
    group="changes",
    needs=tuple(f"parameters.{column}" for column in _CHANGED),
    data=_data(*_CHANGED),
    draw_table=draw_fractions,
    height=lambda table, width: (
        layer_label_height(table) + 2.0 if is_wide(width) else 2 * layer_label_height(table) + 3.4
    ),
)
UNCHANGED_FRACTION = Figure(
    name="unchanged_fraction",
    title="Fraction of weights that never changed, by layer",
    caption="For each layer, the fraction of weights that are bit for bit what they were at initialization. "
    + _TRAINED,
    interpretation="Zero is healthy. A tall bar means that weights get no gradient (dead units, or input features "
    "that never occur in training nodes) or that steps are too small for the precision of the weights.",
    equation=equations("parameters.unchanged_fraction"),
    paper=f"{GATS}, figure 8",
    group="changes",
    needs=("parameters.unchanged_fraction",),
    data=_data("unchanged_fraction"),
    draw_table=draw_fractions,
    height=lambda table, width: layer_label_height(table) + 1.9,
)


_QUANTILES = [f"q{level}" for level in LEVELS]
_CHANGES: dict[str, str] = {FEATURE: "relative change", ATTENTION: "absolute change"}
_BOXES = 42  # layers


def draw_change_boxes(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per role: boxes, or bands if there are too many layers for boxes."""
    names, parts = layer_names(table), list(table.groupby("role", sort=False))
    entries: list[Artist] = []
    for axes, (role, rows) in zip(panels(figure, len(parts)), parts, strict=True):
        change, part = _CHANGES[str(role)], rows.dropna(subset=_QUANTILES)
        if not len(part):
            note(axes, f"{change}, {role}s: undefined in every layer (NaN weights, or none large enough)")
            continue
        inner = part[_QUANTILES[1:]].to_numpy(np.float64)
        scale_axis(axes, inner[inner > 0] if (inner > 0).any() else inner, log=bool((inner > 0).any()))
        (_boxes if len(names) <= _BOXES else _bands)(axes, part, str(ROLE_STYLES[str(role)]["color"]))
        _layers_below(axes, names)
        axes.set_ylabel(f"{change},\n{role}s")
        entries += axes.get_legend_handles_labels()[0]
        entries += mark_handles(mark_hidden(axes, part["layer"].cat.codes.to_numpy(), part["q50"].to_numpy(np.float64)))
    _finish(figure, table, entries)


def _boxes(axes: Axes, part: pd.DataFrame, color: str) -> None:
    low, high = axes.get_ylim()
    named = part.rename(columns={"q5": "whislo", "q25": "q1", "q50": "med", "q75": "q3", "q95": "whishi"})
    boxes = named[["whislo", "q1", "med", "q3", "whishi"]].clip(lower=low if axes.get_yscale() == "log" else None)
    thin = {"linewidth": 0.6}
    axes.bxp(
        [{str(name): value for name, value in box.items()} for box in boxes.to_dict("records")],
        positions=part["layer"].cat.codes,
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": color, "alpha": 0.35, **thin},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops=thin,
        capprops=thin,
    )
    axes.plot(part["layer"].cat.codes, part["q100"].clip(upper=high), "_", color="#777777", markersize=3)


def _bands(axes: Axes, part: pd.DataFrame, color: str) -> None:
    x, drawn = part["layer"].cat.codes, part[_QUANTILES]
    drawn = drawn.clip(lower=axes.get_ylim()[0]) if axes.get_yscale() == "log" else drawn
    axes.fill_between(x, drawn["q5"], drawn["q95"], color=color, alpha=0.2, linewidth=0, label="5 to 95%")
    axes.fill_between(x, drawn["q25"], drawn["q75"], color=color, alpha=0.45, linewidth=0, label="25 to 75%")
    axes.plot(x, drawn["q50"], color="black", linewidth=0.9, label="median")


CHANGE_BOXES = Figure(
    name="change_boxes",
    title="Distribution of weight changes, by layer",
    caption="For each layer, the change since initialization: relative to the trained weight for feature weights of "
    "magnitude 1e-4 or more, absolute for attention vectors. Box: quartiles; bar: median; whiskers: 5 and 95% "
    "quantiles; dash: maximum; triangle on the axis: median exactly 0. " + _TRAINED,
    interpretation="Layers whose median is orders of magnitude below the others have not trained. A relative change "
    "of 2 is a weight that flipped its sign.",
    equation="|w − w₀| / |w|, |w| ≥ 10⁻⁴; |a − a₀|",
    paper=f"{GATS}, figure 11",
    group="changes",
    needs=("parameters.relative_change_q50", "parameters.absolute_change_q50"),
    data=_data(*_QUANTILES),
    draw_table=draw_change_boxes,
    height=lambda table, width: (
        (layer_label_height(table) + 1.9) * (1 if is_wide(width) else max(table["role"].nunique(), 1))
    ),
)
