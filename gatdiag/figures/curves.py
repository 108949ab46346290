"""Loss, scores and gradient norm over training: of one run, and of several on top of each other."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.axes import draw_lines, legend_below, not_recorded, note, panels, step_axis
from gatdiag.figures.figure import Figure, equations, symbol, tidy
from gatdiag.figures.style import Canvas, category, is_wide, plain
from gatdiag.run import Run
from gatdiag.summary import (
    accuracies,
    bin_steps,
    default_variant,
    is_recorded,
    logged,
    loss_name,
    quantile,
    score,
    score_kind,
    scores,
    thin,
    training_facts,
)

_LIMIT = 6  # lines in a panel
_KINDS = 4  # of scores, a panel each
_POINTS = 150  # of a line that stands for several runs
_SPREAD = {"value": 0.5, "low": 0.0, "high": 1.0}  # of it: the share of the runs below
_SPLITS = {"val": "validation", "train": "training", "test": "test"}  # of which the first that any run has is compared
_OTHERS = {"loss": "steps.loss", symbol("steps.gradient_norm"): "steps.gradient_norm"}  # than scores: panel -> column


def training_curves_data(run: Run) -> pd.DataFrame:
    """Every logged loss and score, and the gradient norm, each thinned so that spikes stay.

    Returns:
        panel ("loss", the kind of score such as "accuracy" or "AUC", "gradient norm"), name, step, value, low, high,
        stretch (of uninterrupted recording), best_step (null if no metric chose one).
    """
    losses = [name for name in run.logged if "loss" in name.lower()]
    loss, gradient = _OTHERS
    names = {
        loss: sorted(losses, key=lambda name: name != loss_name(run)),
        **dict(islice(scores(run).items(), _KINDS)),
        gradient: _gradients(run),
    }
    parts = [
        thin(logged(run, name)).assign(panel=panel, name=name)
        for panel, columns in names.items()
        for name in columns[:_LIMIT]
    ]
    table = tidy(parts, "panel", "name", "step", "value", "low", "high", "stretch")
    return table.assign(best_step=training_facts(run).best_step)


def _gradients(run: Run) -> list[str]:
    """The gradient norm, and the one before clipping where the two differ."""
    after, before = "gradient_norm", "gradient_norm_before_clipping"
    clipped = is_recorded(run, "steps", before) and not run.steps[before].equals(run.steps[after])
    return [column for column in (after, *([before] if clipped else [])) if is_recorded(run, "steps", column)]


def _panels(table: pd.DataFrame) -> dict[str, str]:
    """Panel -> the column that is missing where it has no row."""
    loss, gradient = _OTHERS
    kinds = [kind for kind in dict.fromkeys(table["panel"]) if kind not in _OTHERS] or ["accuracy"]
    return {loss: _OTHERS[loss], **dict.fromkeys(kinds, "steps.val_accuracy"), gradient: _OTHERS[gradient]}


def training_curves_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """One panel per kind of curve."""
    kinds = _panels(table)
    for axes, (panel, column) in zip(panels(figure, len(kinds)), kinds.items(), strict=True):
        part = table[table["panel"] == panel]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        curves = [
            (curve, {**category(index), "label": plain(name, 28)})
            for index, (name, curve) in enumerate(part.groupby("name", sort=False))
        ]
        is_score = panel not in _OTHERS
        share = (0.0, 1.0) if part["value"].max() <= 1 else ()  # and not a percentage
        hold = share if is_score else (0.0,) if panel != "loss" else ()
        axes.legend(handles=draw_lines(axes, curves, log=False if is_score else None, hold=hold))
        best = table["best_step"].iloc[0]
        if pd.notna(best) and is_score:
            axes.axvline(float(best), color="#888888", linewidth=0.7, linestyle=":", zorder=1)
        axes.set_ylabel(panel)
        step_axis(axes, table["step"])


def _height(table: pd.DataFrame, width: float) -> float:
    count = len(_panels(table))
    return 1.9 * -(-count // 3) if is_wide(width) else 1.55 * count


TRAINING_CURVES = Figure(
    name="training_curves",
    title="Loss, accuracy and gradient over training",
    shows="Every logged loss by step, every logged score (accuracy, AUC, F1, ...) in a panel of its kind, the best "
    "step (dotted), and the norm of the gradient of all parameters together.",
    reading="A loss that stays where it began, with a gradient that is small from the start, is a network that does "
    "not train. A gradient that falls together with the loss is a network that has finished.",
    equation=equations("steps.gradient_norm"),
    paper="",
    group="training",
    needs=tuple(_OTHERS.values()),
    data=training_curves_data,
    drawing=training_curves_draw,
    height=_height,
)


def compared_curves_data(*runs: Run) -> pd.DataFrame:
    """The loss of each run, and the score it is judged by, thinned so that spikes stay.

    Args:
        *runs: The runs. Of scores those of validation data are shown, else of training, else of test data: the first
            split that any run has.

    Returns:
        quantity, run (its place among the runs), label, step, value, low, high, stretch (of uninterrupted recording).
    """
    parts = [
        thin(values).assign(quantity=quantity, run=place, label=runs[place].name)
        for place, quantity, values in _compared(runs)
    ]
    return tidy(parts, "quantity", "run", "label", "step", "value", "low", "high", "stretch")


def _compared(runs: Sequence[Run]) -> Iterator[tuple[int, str, pd.Series]]:
    """Place of a run, name of a panel, and what the run logged of it."""
    split = next((split for split in _SPLITS if any(split in accuracies(run) for run in runs)), "")
    for place, run in enumerate(runs):
        loss, known = loss_name(run), accuracies(run)
        if loss is not None:
            yield place, "loss", logged(run, loss)
        if split in known:
            yield place, f"{_SPLITS[split]} {score_kind(run)}", logged(run, known[split])


def compared_curves_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a scalar, a line a run."""
    parts = list(table.groupby("quantity", sort=False))
    entries: list[Artist] = []
    for axes, (quantity, part) in zip(panels(figure, len(parts), len(parts)), parts, strict=True):
        curves = [
            (curve, {**category(int(str(place))), "label": plain(curve["label"].iloc[0], 48)})
            for place, curve in part.groupby("run", sort=True)
        ]
        share = score(str(quantity)) is not None and part["value"].max() <= 1
        entries += draw_lines(axes, curves, log=False if share else None, hold=(0.0, 1.0) if share else ())
        axes.set_ylabel(plain(quantity, 30))
        step_axis(axes, part["step"])
    legend_below(figure, entries)


COMPARED_CURVES = Figure(
    name="compared_curves",
    title="Loss and accuracy of several runs",
    shows="The training loss, and an accuracy where one was logged, of each run.",
    reading="A run whose loss stays level while another's falls does not train. Where losses are alike and accuracies "
    "differ, it is generalization that differs and not training.",
    paper="Dasoulas et al., ICML 2021 (convergence)",
    group="comparison",
    needs=("steps.loss",),
    data=compared_curves_data,
    drawing=compared_curves_draw,
    height=lambda table, width: (
        (2.0 if is_wide(width) else 1.6 * max(table["quantity"].nunique(), 1))
        + 0.13 * -(-table["run"].nunique() // (4 if is_wide(width) else 2))
    ),
)


def spread_curves_data(*runs: Run, groups: Sequence[str] | None = None) -> pd.DataFrame:
    """Loss and score, a line a group: the median of its runs (seeds, say), with the lowest and the highest of them.

    Args:
        *runs: The runs.
        groups: The group of each run, in their order; by default its name without numbers.

    Returns:
        quantity, run (the place of the group), label (of the group), step, value, low, high, stretch. Of runs that
        recorded other steps, those close to each other are taken together. NaN counts as more than any number: value
        is NaN where it is NaN in half of the runs, and high where it is NaN in one.
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
        found.append(line.assign(quantity=str(quantity), label=str(label), run=order.index(str(label)), stretch=0))
    return tidy(found, "quantity", "run", "label", "step", "value", "low", "high", "stretch")


SPREAD_CURVES = replace(
    COMPARED_CURVES,
    name="spread_curves",
    title="Loss and accuracy, with their spread",
    shows="The training loss, and an accuracy where one was logged: the median of the runs of each group, such as "
    "the seeds of a training, shaded from the lowest of them to the highest. A line ends where half of them are NaN.",
    reading="Where the shaded bands of two groups do not touch, no run of the one does as well as any of the other.",
    paper="",
    data=spread_curves_data,
    applies=lambda runs: False,  # drawn when asked for by name
)
