"""One quantity by layer, at the start, at the end and at the steps of a finding, beside the range of healthy runs."""

import math
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gatdiag.figures.axes import (
    add_legend_below,
    draw_lines,
    layer_axis,
    layer_dots,
    layer_label_height,
    layer_names,
    threshold_line,
)
from gatdiag.figures.figure import Figure, axis_label, tidy
from gatdiag.figures.style import COLORS, Canvas, plain_text
from gatdiag.names import join_names, short
from gatdiag.quantities import COMPARED_WITH, HEALTHY, HEALTHY_RANGE, Side, compared_label, get_quantity, healthy_range
from gatdiag.run import Run
from gatdiag.summary import compared_series, describe_steps, shown_values, why_undefined

_NEAR = 0.01  # share of the range of values within which lines cannot be told apart
DEFAULT = "parameters.relative_gradient_norm"
_WIDEST_LABEL: Final = 22  # characters beside the axis


def data(
    run: Run,
    column: str = DEFAULT,
    concerned: Sequence[str] = (),
    steps: Sequence[int] = (),
    line: float | None = None,
    beyond: Side = "above",
    over: str = "",
) -> pd.DataFrame:
    """A quantity of each layer at the first and the last recorded step, and at the steps in question.

    Args:
        run: The run.
        column: The quantity as "table.column"; of parameters, of each layer's feature weights.
        concerned: Layers that are marked.
        steps: The median is over the recorded steps from the first to the last of these; by default over all.
        line: A threshold.
        beyond: On which side of it values are flagged.
        over: The layer that a quantity is compared with; by default that of `gatdiag.quantities.COMPARED_WITH`.

    Returns:
        column, line, beyond, over, curve ("at step 0", "at step 90", "median over training"; the last one is what the
        figure is about), layer, value, undefined (as from `why_undefined`), is_concerned.
    """
    columns = ("column", "line", "beyond", "over", "curve", "layer", "value", "undefined", "is_concerned")
    series = compared_series(run, column, over).assign(undefined=why_undefined(run, column, over))
    if not len(series):
        return tidy([], *columns)
    known, chosen = shown_values(series, column, steps)
    layers = [layer for layer in series["layer"].cat.categories if layer in known]
    main = pd.DataFrame({"layer": pd.Series(layers).astype(series["layer"].dtype), "value": [*map(known.get, layers)]})
    main["undefined"] = ""
    curves = {describe_steps(series, (step,)): series[series["step"] == step] for step in _ends(series["step"])}
    curves = {label: part for label, part in curves.items() if label != chosen} | {chosen: main}
    about = {"column": column, "line": line, "beyond": beyond, "over": over}
    parts = [
        part.assign(**about, curve=curve, is_concerned=part["layer"].isin(list(concerned)))
        for curve, part in curves.items()
    ]
    return tidy(parts, *columns)


def _ends(steps: pd.Series) -> tuple[int, int]:
    return int(steps.min()), int(steps.max())


def draw(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw a line for each curve, the last one thick, over the range of healthy trainings."""
    (column, beyond, over), axes = table[["column", "beyond", "over"]].iloc[0], figure.subplots()
    quantity, names = get_quantity(column), layer_names(table)
    styles = (
        {"color": "#777777", "linestyle": ":", "linewidth": 1.0},
        {"color": COLORS[0], "linestyle": "--", "linewidth": 1.0},
        {"color": "black", "linewidth": 1.6},
    )
    labels = table["curve"].unique()
    looks = dict(zip(labels, styles[-len(labels) :], strict=True))
    curves, (apart, marked_only) = [], _told_apart(table)
    for label, part in apart.groupby("curve", sort=False):
        style = dict(looks.get(str(label), styles[-1]))
        if label not in marked_only:
            style["label"] = plain_text(label, 60)
        ordered = part.sort_values("layer").assign(place=lambda of: of["layer"].cat.codes)
        curves.append((ordered, {**style, **layer_dots(len(names), 4)}))
    is_log, known = quantity.is_over_orders, table["value"]
    scale: dict[str, Any] = {"log": is_log, "include": () if is_log else (0.0, 1.0)}
    if is_log and column in HEALTHY and not (known > 0).any():  # zeros are marked below the range
        scale["scaled_to"] = HEALTHY[column]
    entries: list[Artist] = [*draw_lines(axes, curves, x="place", **scale)]
    line = None if pd.isna(table["line"].iloc[0]) else float(table["line"].iloc[0])
    entries += [Line2D([], [], linestyle="none", label=f"{label}: only marks") for label in marked_only]
    entries += _limits(axes, column, line, beyond)
    low, high = healthy_range(column, line, beyond) if column in HEALTHY else (math.inf, -math.inf)
    last = curves[-1][0]
    marked = last[last["is_concerned"] & ~last["value"].between(low, high)]
    if 0 < len(marked) < len(names):
        size = 8 if layer_dots(len(names), 4) else 3
        (ring,) = axes.plot(
            marked["place"], marked["value"].clip(*axes.get_ylim()), "o", markersize=size, markerfacecolor="none",
            color=COLORS[1], label="layers of the finding", clip_on=False,
        )  # fmt: skip
        entries.append(ring)
    axes.set_xlim(-0.5, max(len(names) - 0.5, 0.5))
    label = compared_label(column, plain_text(short(over, 24)) if over else "")
    axes.set_ylabel(fill(label if column in COMPARED_WITH else axis_label(column), _WIDEST_LABEL))
    layer_axis(axes, names)
    add_legend_below(figure, entries)


def _told_apart(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without curves that lie under the last one, which is named after them, too.

    Also returns the curves of which only marks can be seen: elsewhere they lie under the last one, or nowhere.
    """
    is_log = get_quantity(str(table["column"].iloc[0])).is_over_orders
    values = table["value"].where(table["value"] > 0) if is_log else table["value"]
    heights = pd.Series(np.log10(values) if is_log else values).where(np.isfinite(values))
    usual = [
        one for one in HEALTHY.get(str(table["column"].iloc[0]), ()) if math.isfinite(one) and (one > 0 or not is_log)
    ]
    ends = [*heights.dropna(), *(np.log10(usual) if is_log else usual)]
    near = _NEAR * max(max(ends, default=0.0) - min(ends, default=0.0), 1.0)  # of what the axis shows
    by_layer = heights.set_axis(table["layer"].astype(str)).groupby(table["curve"].to_numpy())
    drawn = {str(curve): part for curve, part in by_layer}
    *others, last = table["curve"].unique()
    hidden = {*drawn[last].index[drawn[last].isna()]}
    under: list[str] = []
    marked: list[str] = []
    for curve in others:
        apart = (drawn[curve].dropna() - drawn[last].reindex(drawn[curve].dropna().index)).abs()
        if (apart <= near).all():
            (under if {*drawn[curve].index[drawn[curve].isna()]} <= hidden else marked).append(str(curve))
    table = table[~table["curve"].isin(under)]
    return table.assign(curve=table["curve"].replace(last, ", ".join(filter(None, [last, join_names(under)])))), marked


def _limits(axes: Axes, column: str, line: float | None, beyond: Side) -> Iterator[Artist]:
    """Draw the range of healthy trainings and the threshold."""
    bottom, top = axes.get_ylim()
    if column in HEALTHY:
        low, high = healthy_range(column, line, beyond)
        bottom, top = min(bottom, low / 1.5 if low else bottom), max(top, 1.5 * (high if math.isfinite(high) else low))
        band = low, min(high, top)
        label = HEALTHY_RANGE if (low, high) == HEALTHY[column] else f"{HEALTHY_RANGE}, to the threshold"
        yield axes.axhspan(*band, color=COLORS[2], alpha=0.15, linewidth=0, zorder=0.5, label=label)
    if line is not None:
        beside = 1.5 if get_quantity(column).is_over_orders else 1.05
        bottom, top = min(bottom, line / beside), max(top, line * beside)
        yield threshold_line(axes, line, beyond)
    axes.set_ylim(bottom, top)


def _words(table: pd.DataFrame) -> tuple[str, str]:
    table, marked_only = _told_apart(table)
    known = table[np.isfinite(table["value"]) & ~table["curve"].isin(marked_only)]
    curves = [f"{curve} (black)" if curve == table["curve"].iloc[-1] else curve for curve in known["curve"].unique()]
    has_range = table["column"].iloc[0] in HEALTHY
    return (
        f"By layer, {join_names(curves) or 'without a finite value'}.{f' {GREEN}' if has_range else ''}",
        BY_LAYER.interpretation if has_range else "Layers that are orders of magnitude apart do not train alike.",
    )


GREEN: Final = f"In the green range are {HEALTHY_RANGE}."
BY_LAYER = Figure(
    name="by_layer",
    title="One quantity by layer, beside healthy trainings",
    caption="By layer, at the first and the last recorded step, and at the steps in question (black). " + GREEN,
    interpretation="Layers whose black dots are in the green range are as in networks that train. Far outside of it, "
    "or orders of magnitude apart from each other, they are not.",
    paper="",
    group="gradients",
    needs=(DEFAULT,),
    data=data,
    draw_table=draw,
    wording=_words,
    height=lambda table, width: 2.4 + layer_label_height(table),
)
