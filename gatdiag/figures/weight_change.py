"""How far the weights of each layer have moved since initialization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch

from gatdiag.figures.axes import (
    Handle,
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
from gatdiag.quantities import HEALTHY, HEALTHY_RANGE
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary import LEVELS, weight_change

_HATCHES: dict[str, str] = {FEATURE: "", ATTENTION: "////"}
_BARS = 24  # layers
_UNDEFINED = "undefined"
_LEVELS = {  # how much of the weights' color -> column, what it is a share of
    0.25: ("unchanged_fraction", "changed at all"),
    0.55: ("changed_fraction_005", "by over 0.05"),
    1.0: ("changed_fraction_050", "by over 0.5"),
}
_TRAINED = (
    "The panel title names the trained weights: those of the best step if watch(best=...) kept them and it is not "
    "in the first 5% of the run, else the final ones."
)


def _data(*columns: str) -> Callable[[Run], pd.DataFrame]:
    def data(run: Run) -> pd.DataFrame:
        """Layer, role, source and some other columns of `gatdiag.summary.weight_change`, which describes them."""
        return weight_change(run)[["layer", "role", "source", *columns]]

    return data


def draw_changed(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per role, in which bars of larger changes are in front of those of smaller ones."""
    parts, entries = list(table.groupby("role", sort=False)), list[Artist]()
    swatches: dict[str, tuple[Patch, ...]] = {}
    for axes, (role, part) in zip(panels(figure, len(parts)), parts, strict=True):
        shares = {words: 1 - part[of] if of == "unchanged_fraction" else part[of] for of, words in _LEVELS.values()}
        shade = LinearSegmentedColormap.from_list("shade", ["white", ROLE_STYLES[str(role)]["color"]])
        _draw_shares(axes, part, shares, [shade(level) for level in _LEVELS], _HATCHES[str(role)])
        for level, (_, words) in _LEVELS.items():
            swatch = Patch(
                facecolor=shade(level), edgecolor="black", linewidth=0.3, hatch=_HATCHES[str(role)], label=words
            )
            swatches[words] = (*swatches.get(words, ()), swatch)
        axes.set(ylabel=f"share of {role}s")
        entries += axes.get_legend_handles_labels()[0]
    undefined = [entry for entry in entries if entry.get_label() == _UNDEFINED]
    _finish(figure, table, [*swatches.values(), *undefined])


def draw_unchanged(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw feature weights beside attention vectors."""
    axes = figure.subplots()
    by_layer = table.pivot_table("unchanged_fraction", "layer", "role", observed=True, sort=False, dropna=False)
    shares = {f"{role}s": by_layer[role] for role in dict.fromkeys(table["role"])}
    colors = [ROLE_STYLES[role.removesuffix("s")]["color"] for role in shares]
    _draw_shares(axes, by_layer.reset_index(), shares, colors, *(_HATCHES[role.removesuffix("s")] for role in shares))
    low, high = HEALTHY["parameters.unchanged_fraction"]
    axes.axhspan(low, high, color=COLORS[2], alpha=0.15, linewidth=0, zorder=0.5, label=HEALTHY_RANGE)
    axes.set(ylabel="share of weights\nnever changed")
    _finish(figure, table, list(axes.get_legend_handles_labels()[0]))


def _draw_shares(
    axes: Axes, table: pd.DataFrame, shares: Mapping[str, pd.Series], colors: Sequence[Any], *hatches: str
) -> None:
    """Draw bars of several shares for each layer, with a hatch each side by side, else in front of each other."""
    import seaborn as sns

    names, x = layer_names(table), table["layer"].cat.codes
    long = pd.concat([pd.DataFrame({"x": x, "share": share.to_numpy(), "of": of}) for of, share in shares.items()])
    if len(names) <= _BARS:
        is_beside = len(hatches) == len(shares)
        drawn = long.fillna({"share": 0.0})
        look = {"palette": [*colors], "saturation": 1, "linewidth": 0.3, "dodge": is_beside, "legend": False}
        sns.barplot(drawn, x="x", y="share", hue="of", order=range(len(names)), hue_order=[*shares], orient="x",
                    errorbar=None, ax=axes, **look)  # fmt: skip
        each = hatches if is_beside else hatches * len(shares)
        for bars, of, hatch in zip(axes.containers, shares, each, strict=True):
            bars.set_label(of)
            for bar in bars:
                bar.set(hatch=hatch)
    else:
        for (of, share), color in zip(shares.items(), colors, strict=True):
            axes.step(x, share, where="mid", color=color, label=of)
    broken = long[long["share"].isna()]["x"].unique()
    if len(broken):
        axes.plot(broken, np.full(len(broken), 0.02), "x", color=BROKEN, markersize=3, label=_UNDEFINED,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    known = long["share"].dropna()
    everywhere = _UNDEFINED if not len(known) else "" if known.any() else "0"
    if everywhere:
        axes.text(0.5, 0.5, f"{everywhere} in every layer", transform=axes.transAxes, ha="center", color=MUTED)
    axes.set_ylim(0, 1.03)
    _layers_below(axes, names)


def _layers_below(axes: Axes, names: list[str]) -> None:
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.grid(False, axis="x")
    layer_axis(axes, names)


def _finish(figure: Canvas, table: pd.DataFrame, entries: Sequence[Handle]) -> None:
    """Title the first panel with the weights that are compared, and add the legend."""
    figure.axes[0].set_title(plain_text(f"initial → {table['source'].iloc[0]}"), loc="left")
    add_legend_below(figure, entries)


class _Words(NamedTuple):
    """The texts of a figure, each with a place for what is said if there are attention vectors."""

    caption: str
    interpretation: str
    of_attention: tuple[str, str]

    def filled(self, *, has_attention: bool = True) -> tuple[str, str]:
        """Caption and interpretation."""
        moved, read = self.of_attention if has_attention else ("", "")
        return self.caption.format(moved), self.interpretation.format(read)

    def of_table(self, table: pd.DataFrame) -> tuple[str, str]:
        """The same for the data of the figure."""
        return self.filled(has_attention=bool((table["role"] == ATTENTION).any()))


_CHANGED = _Words(
    "The share of weights that differ at all from those at initialization (pale), and that differ by more than 0.05 "
    f"and 0.5 (darker): by relative change for feature weights of magnitude 10⁻⁴ or more{{}}. {_TRAINED}",
    "In a network that trains, pale bars are full in all layers, including those in the middle: every weight moves. "
    "How dark they are depends on the rate and the length of the training{}. Short pale bars are layers that still "
    "have their initial weights.",
    (", by absolute change for attention vectors", "; attention vectors seldom move by 0.5"),
)
CHANGED_FRACTION = Figure(
    name="changed_fraction",
    title="Fraction of weights that changed, by layer",
    caption=_CHANGED.filled()[0],
    interpretation=_CHANGED.filled()[1],
    equation="#{|w − w₀| / |w| > τ, |w| ≥ 10⁻⁴} / #{|w| ≥ 10⁻⁴}; #{|a − a₀| > τ} / #{a}",
    paper=f"{GATS}, figures 3a and 4a",
    group="changes",
    needs=tuple(f"parameters.{column}" for column, _ in _LEVELS.values()),
    data=_data(*(column for column, _ in _LEVELS.values())),
    draw_table=draw_changed,
    wording=_CHANGED.of_table,
    height=lambda table, width: (
        (layer_label_height(table) + 1.8) * (1 if is_wide(width) else max(table["role"].nunique(), 1))
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
    draw_table=draw_unchanged,
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


_DISTRIBUTION = _Words(
    "For each layer, the change since initialization: relative to the trained weight for feature weights of magnitude "
    "10⁻⁴ or more{}. Box: quartiles; bar: median; whiskers: 5 and 95% quantiles; dash: maximum; triangle on the axis: "
    f"median exactly 0. {_TRAINED}",
    "Layers whose median is orders of magnitude below the others have not trained. A relative change of 2 is a weight "
    "that flipped its sign.",
    (", absolute for attention vectors", ""),
)
CHANGE_BOXES = Figure(
    name="change_boxes",
    title="Distribution of weight changes, by layer",
    caption=_DISTRIBUTION.filled()[0],
    interpretation=_DISTRIBUTION.filled()[1],
    equation="|w − w₀| / |w|, |w| ≥ 10⁻⁴; |a − a₀|",
    paper=f"{GATS}, figure 11",
    group="changes",
    needs=("parameters.relative_change_q50", "parameters.absolute_change_q50"),
    data=_data(*_QUANTILES),
    draw_table=draw_change_boxes,
    wording=_DISTRIBUTION.of_table,
    height=lambda table, width: (
        (layer_label_height(table) + 1.9) * (1 if is_wide(width) else max(table["role"].nunique(), 1))
    ),
)
