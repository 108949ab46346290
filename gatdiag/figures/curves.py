"""Learning curves: loss, scores and gradient norm of one run, and loss and score of several runs compared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from gatdiag.figures.axes import (
    MARKS,
    add_legend_below,
    draw_lines,
    legend_height,
    not_recorded,
    note,
    panels,
    step_axis,
    threshold_line,
)
from gatdiag.figures.figure import Figure, axis_label, equations, tidy
from gatdiag.figures.style import Canvas, category, is_wide, plain_text
from gatdiag.names import join_names
from gatdiag.quantities import Side, get_quantity
from gatdiag.run import Run
from gatdiag.summary import (
    UNNAMED,
    bin_steps,
    compared_score,
    default_variant,
    in_words,
    is_recorded,
    kind_of_score,
    lines_of_runs,
    logged_series,
    loss_name,
    quantile,
    score_names,
    scores,
    thin,
    training_facts,
)

_MAX_LINES = 6  # per panel
_MAX_KINDS = 4  # of scores, one panel each
_OTHERS = "other runs"
_FAR = 1e3  # of the median: values that may be outside of the axis
_MARKS = [MARKS[case][2] for case in ("broken", "above")]
_AMID_MARKS = (0.0, 0.04, 1.0, 0.91)  # where in the axes a legend hides no mark at the edge
_POINTS = 150  # on a line that summarizes several runs
_SPREAD = {"value": 0.5, "low": 0.0, "high": 1.0}  # column of that line -> quantile over the runs
_SPLITS = {"val": "validation", "train": "training", "test": "test"}  # preferred first
_GRADIENT = "steps.gradient_norm"
_OF_STEPS = (_GRADIENT, "steps.overshoot", "steps.learning_rate", "steps.stale_gradient")
_NOT_SCORES = {"loss": "steps.loss", **{axis_label(column): column for column in _OF_STEPS}}  # panel -> column
_WIDEST_LABEL = 20  # letters
_LIKE_THRESHOLD = 1  # the category that looks like the line of a threshold


def training_curves_data(
    run: Run,
    *,
    gradients: bool = True,
    metrics: bool = True,
    column: str = "",
    line: float | None = None,
    beyond: Side = "above",
) -> pd.DataFrame:
    """Every logged loss and score, and the gradient norm, each thinned so that spikes stay visible.

    Args:
        run: The run.
        gradients: Whether to add the gradient norm.
        metrics: Whether to add the scores.
        column: A further quantity of steps, as "table.column".
        line: A threshold of that quantity.
        beyond: On which side of it values are flagged.

    Returns:
        panel ("loss", "gradient norm" or the kind of score, such as "accuracy" or "AUC"), name, step, value, low, high,
        best_step (null if `watch` got no `best=`), line (null for other quantities) and beyond.
    """
    losses = [name for name in run.logged_names if "loss" in name.lower()]
    shown = dict.fromkeys(filter(None, [_GRADIENT if gradients else "", column]))
    names = {
        "loss": sorted(losses, key=lambda name: name != loss_name(run)),
        **dict(islice(scores(run).items(), _MAX_KINDS if metrics else 0)),
        **{axis_label(one): _columns(run, one) for one in shown},
    }
    parts = [
        thin(logged_series(run, name)).assign(panel=panel, name=name)
        for panel, columns in names.items()
        for name in columns[:_MAX_LINES]
    ]
    table = tidy(parts, "panel", "name", "step", "value", "low", "high")
    ends = np.where(
        table["panel"] == (axis_label(column) if column else ""), math.nan if line is None else line, np.nan
    )
    return table.assign(best_step=training_facts(run).best_step, line=ends, beyond=beyond)


def _columns(run: Run, column: str) -> list[str]:
    """The columns of a quantity of steps; of the gradient norm also that before clipping, if it differs."""
    if column != _GRADIENT:
        table, _, name = column.partition(".")
        return [name] if table == "steps" and is_recorded(run, "steps", name) else []
    after, before = "gradient_norm", "gradient_norm_before_clipping"
    clipped = is_recorded(run, "steps", before) and not run.steps[before].equals(run.steps[after])
    return [column for column in (after, *([before] if clipped else [])) if is_recorded(run, "steps", column)]


def _panels(table: pd.DataFrame) -> dict[str, str]:
    """Panel -> the column to record if the panel is empty: the loss, and whatever else there is."""
    kinds = [kind for kind in dict.fromkeys(table["panel"]) if kind != "loss"]
    return {"loss": _NOT_SCORES["loss"], **{kind: _NOT_SCORES.get(kind, "steps.val_accuracy") for kind in kinds}}


def draw_training_curves(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per kind of curve."""
    kinds = _panels(table)
    for axes, (panel, column) in zip(panels(figure, len(kinds)), kinds.items(), strict=True):
        part = table[table["panel"] == panel]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        line, beyond = part[["line", "beyond"]].iloc[0]
        ends = [] if pd.isna(line) else [float(line)]
        looks = [category(index) for index in range(_MAX_LINES + 1) if not ends or index != _LIKE_THRESHOLD]
        curves = [
            (curve, {**look, "label": plain_text(_in_words(str(name)), 30)})
            for look, (name, curve) in zip(looks, part.groupby("name", sort=False), strict=False)
        ]
        is_score = panel not in _NOT_SCORES
        share = (0.0, 1.0) if part["value"].max() <= 1 else ()  # not a percentage
        include = (*(share if is_score else (0.0,) if panel != "loss" else ()), *ends)
        handles = draw_lines(axes, curves, log=False if is_score else None, include=include)
        handles += [threshold_line(axes, end, beyond) for end in ends]
        if len(handles) > 1 or any(handle.get_linestyle() == "None" for handle in handles):
            axes.legend(handles=handles, frameon=True, facecolor="white", edgecolor="none", framealpha=0.8,
                        loc="best", bbox_to_anchor=_AMID_MARKS)  # fmt: skip
        best = table["best_step"].iloc[0]
        if pd.notna(best) and is_score:
            axes.axvline(float(best), color="#888888", linewidth=0.7, linestyle=":", zorder=1)
        axes.set_ylabel(fill(str(panel), _WIDEST_LABEL))
        step_axis(axes, table["step"])


def _in_words(name: str) -> str:
    """What a logged value or a column is called in a legend."""
    split = next((words for split, words in _SPLITS.items() if split in name.lower().split("_")), "")
    if split and kind_of_score(name):
        return split
    column = f"steps.{name}"
    return get_quantity(column).label if column in _OF_STEPS else in_words(name)


def _height(table: pd.DataFrame, width: float) -> float:
    count = len(_panels(table))
    return 1.9 * -(-count // 3) if is_wide(width) else 1.55 * count


_READ = {
    "loss": "If the loss stays where it started, the network does not train.",
    axis_label(_GRADIENT): "A gradient norm that is small from the start goes with that; if it falls as "
    "the loss does, training has converged.",
}


def _words(table: pd.DataFrame) -> tuple[str, str]:
    loss, gradient = "loss", axis_label(_GRADIENT)
    drawn = table.groupby("panel", sort=False)["name"].nunique()
    said = {loss: f"the logged loss{'es' if drawn.get(loss, 0) > 1 else ''}",
            gradient: "the norm of the gradient of all parameters together"}  # fmt: skip
    said |= {panel: f"the {panel}" for panel in _NOT_SCORES if panel not in said}
    best = "; the best step is dotted" if not {*drawn.index} <= {*said} and table["best_step"].notna().any() else ""
    caption = join_names([said.get(str(panel), str(panel)) for panel in drawn.index])
    return f"{caption[0].upper()}{caption[1:]}{best}.", " ".join(_READ[panel] for panel in _READ if panel in drawn)


TRAINING_CURVES = Figure(
    name="training_curves",
    title="Learning curves",
    caption="Logged losses and scores (accuracy, AUC, F1, ...), the best step dotted, and the norm of the gradient of "
    "all parameters together.",
    interpretation=" ".join(_READ.values()),
    equation=equations(_GRADIENT),
    paper="",
    group="training",
    needs=("steps.loss", _GRADIENT),
    data=training_curves_data,
    draw_table=draw_training_curves,
    height=_height,
    wording=_words,
)


def compared_curves_data(*runs: Run) -> pd.DataFrame:
    """The loss and one score of each run, thinned so that spikes stay visible.

    Args:
        *runs: The runs. The score is that of validation data, else of training data, else of test data: the first
            split that any run has logged.

    Returns:
        quantity, run (its index), line (the index of its color and style; -1 for runs that are not told apart), label,
        step, value, low, high.
    """
    lines = lines_of_runs(runs)
    parts = [
        thin(values).assign(quantity=quantity, run=place, line=lines[place], label=runs[place].name)
        for place, quantity, values in _compared(runs)
    ]
    return tidy(parts, "quantity", "run", "line", "label", "step", "value", "low", "high")


def _compared(runs: Sequence[Run]) -> Iterator[tuple[int, str, pd.Series]]:
    """Index of a run, name of a panel, and the logged values."""
    split = next((split for split in _SPLITS if any(split in score_names(run) for run in runs)), "")
    for place, run in enumerate(runs):
        loss, known = loss_name(run), score_names(run)
        if loss is not None:
            yield place, "loss", logged_series(run, loss)
        if split in known:
            yield place, f"{_SPLITS[split]} {compared_score(run)}", logged_series(run, known[split])


def draw_compared_curves(table: pd.DataFrame, figure: Canvas) -> None:
    """Draw one panel per scalar, with one line per run and its marks in its color."""
    parts = list(table.groupby("quantity", sort=False))
    entries: dict[str, Line2D] = {}
    for axes, (quantity, part) in zip(panels(figure, len(parts), len(parts)), parts, strict=True):
        curves = [
            (curve, {**category(int(curve["line"].iloc[0])), "label": _label(curve)})
            for _, curve in part.groupby("run", sort=True)
        ]
        share = kind_of_score(str(quantity)) is not None and part["value"].max() <= 1
        scale: dict[str, Any] = {"log": False if share else None, "include": (0.0, 1.0) if share else ()}
        for handle in draw_lines(axes, curves, **scale, has_own_marks=True):
            known = entries.get(label := str(handle.get_label()))
            if known is None or known.get_linestyle() == "None":  # a run of which a line is seen in this panel alone
                entries[label] = handle
        axes.set_ylabel(plain_text(quantity, 30))
        step_axis(axes, part["step"])
    add_legend_below(figure, [entries[label] for label in sorted(entries, key=lambda label: label == _OTHERS)])


def _label(curve: pd.DataFrame) -> str:
    return plain_text(curve["label"].iloc[0], 48) if curve["line"].iloc[0] != UNNAMED else _OTHERS


def _compared_height(table: pd.DataFrame, width: float) -> float:
    labels = {_label(curve) for _, curve in table.groupby("run")}
    wide = 2.0 if is_wide(width) else 1.6 * max(table["quantity"].nunique(), 1)
    values = table["value"].to_numpy(np.float64)
    is_marked = bool(len(values)) and (not np.isfinite(values).all() or values.max() > _FAR * np.median(values))
    return wide + legend_height([*labels, *(_MARKS if is_marked else ())], width)


_TWELVE = "twelve are named, from the lowest to the highest last loss; the others are gray"
_LEVEL = "A run whose loss stays level while that of another falls does not train."
_AGREE = "If losses agree and scores differ, the runs differ in generalization, not in training."


def _compared_words(table: pd.DataFrame) -> tuple[str, str]:
    quantities = [str(quantity) for quantity in table["quantity"].unique()]
    has_both = "loss" in quantities and len(quantities) > 1
    more = f" Of the runs, {_TWELVE}." if (table["line"] == UNNAMED).any() else ""
    return f"The {join_names(quantities)} of each run.{more}", f"{_LEVEL} {_AGREE}" if has_both else _LEVEL


COMPARED_CURVES = Figure(
    name="compared_curves",
    title="Learning curves of all runs",
    caption="The training loss of each run, and its accuracy (or another score) if one was logged. Of more than "
    f"twelve runs, {_TWELVE}.",
    interpretation=f"{_LEVEL} {_AGREE}",
    wording=_compared_words,
    paper="Dasoulas et al., ICML 2021 (convergence)",
    group="comparison",
    needs=("steps.loss",),
    data=compared_curves_data,
    draw_table=draw_compared_curves,
    height=_compared_height,
)


def spread_curves_data(*runs: Run, groups: Sequence[str] | None = None) -> pd.DataFrame:
    """Loss and score of each group of runs, such as seeds: their median, minimum and maximum.

    Args:
        *runs: The runs.
        groups: The group of each run, in order; by default its name without numbers.

    Returns:
        quantity, run and line (index of the group), label (its name), step, value, low, high. Where runs recorded
        different steps, nearby steps are pooled. NaN counts as greater than any number: value is NaN where half of the
        runs are NaN, and high where one is.
    """
    labels = [default_variant(run.name) for run in runs] if groups is None else [*groups]
    parts = [
        pd.DataFrame({"quantity": quantity, "label": labels[own], "own": own, "step": values.index, "value": values})
        for own, quantity, values in _compared(runs)
    ]
    found = []
    order = list(dict.fromkeys(labels))
    for (quantity, label), part in pd.concat(parts).groupby(["quantity", "label"], sort=False) if parts else ():
        steps = np.unique(part["step"])
        amid = pd.Series(steps).groupby(bin_steps(steps, _POINTS)).median()
        place = np.searchsorted(steps, part["step"])
        own = part.groupby([bin_steps(steps, _POINTS)[place], "own"])["value"].agg(quantile, share=0.5)
        bins = own.groupby(level=0)
        line = pd.DataFrame({name: bins.agg(quantile, share=share) for name, share in _SPREAD.items()})
        line["step"] = amid.loc[line.index]
        found.append(line.assign(quantity=str(quantity), label=str(label), run=order.index(str(label))))
    table = tidy(found, "quantity", "run", "label", "step", "value", "low", "high")
    return table.assign(line=table["run"])


SPREAD_CURVES = replace(
    COMPARED_CURVES,
    name="spread_curves",
    title="Learning curves, with their spread over runs",
    caption="The training loss, and the accuracy (or another score) if one was logged: the median over the runs of "
    "each group, for example over seeds, shaded from minimum to maximum. A line ends where half of the runs are NaN.",
    interpretation="Where the shaded bands of two groups do not overlap, every run of one group is better than all "
    "runs of the other.",
    paper="",
    wording=None,
    data=spread_curves_data,
    applies_to=lambda runs: False,  # drawn only if requested by name
)
