"""Loss, scores and gradient norm over training: of one run, and of several on top of each other."""

from collections.abc import Mapping, Sequence
from itertools import islice

import pandas as pd
from matplotlib.artist import Artist

from gatdiag.figures.look import (
    Canvas,
    Figure,
    category,
    curve_line,
    draw_lines,
    is_wide,
    legend_below,
    not_recorded,
    note,
    plain,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import accuracies, logged, loss_name, recorded, score, score_kind, scores, thin, training_facts

_LIMIT = 6  # lines in a panel
_KINDS = 4  # of scores, a panel each


def training_curves_data(run: Run) -> pd.DataFrame:
    """Every logged loss and score, and the gradient norm, each thinned so that spikes stay.

    Returns:
        panel ("loss", the kind of score such as "accuracy" or "AUC", "gradient norm"), name, step, value, low, high,
        best_step
        (null if no metric chose one).
    """
    losses = [name for name in run.logged if "loss" in name.lower()]
    first = loss_name(run)
    names = {
        "loss": sorted(losses, key=lambda name: name != first)[:_LIMIT],
        **{kind: names[:_LIMIT] for kind, names in islice(scores(run).items(), _KINDS)},
        "gradient norm": _gradients(run),
    }
    parts = []
    for panel, columns in names.items():
        parts += [thin(logged(run, name)).assign(panel=panel, name=name) for name in columns]
    columns = ["panel", "name", "step", "value", "low", "high"]
    table = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    return table.assign(best_step=training_facts(run).best_step)


def _gradients(run: Run) -> list[str]:
    """The gradient norm, and the one before clipping where the two differ."""
    before = "gradient_norm_before_clipping"
    clipped = recorded(run, "steps", before) and not run.steps[before].equals(run.steps["gradient_norm"])
    return [column for column in ("gradient_norm", *([before] if clipped else [])) if recorded(run, "steps", column)]


def training_curves_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """One panel per kind of curve."""
    panels = _panels(table)
    columns = min(len(panels), 3) if is_wide(figure) else 1
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (panel, column) in zip(grid.flat, panels.items(), strict=False):
        part = table[table["panel"] == panel]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        lines = []
        for index, (name, curve) in enumerate(part.groupby("name", sort=False)):
            style = {key: category(index)[key] for key in ("color", "linestyle")}
            lines.append(curve_line(curve, plain(name, 28), **style))
        is_score = panel not in _OTHERS
        share = (0.0, 1.0) if part["value"].max() <= 1 else ()  # and not a percentage
        hold = share if is_score else (0.0,) if panel == "gradient norm" else ()
        axes.legend(handles=draw_lines(axes, lines, log=False if is_score else None, hold=hold))
        best = table["best_step"].iloc[0]
        if pd.notna(best) and is_score:
            axes.axvline(float(best), color="#888888", linewidth=0.7, linestyle=":", zorder=1)
        axes.set_ylabel(panel)
        step_axis(axes, table["step"])


_OTHERS = {"loss": "steps.loss", "gradient norm": "steps.gradient_norm"}


def _panels(table: pd.DataFrame) -> dict[str, str]:
    """Panel -> the column that is missing where it has no row."""
    kinds = [kind for kind in dict.fromkeys(table["panel"]) if kind not in _OTHERS] or ["accuracy"]
    return {"loss": "steps.loss", **dict.fromkeys(kinds, "steps.val_accuracy"), "gradient norm": "steps.gradient_norm"}


def _height(table: pd.DataFrame, width: float) -> float:
    count = len(_panels(table))
    return 1.9 * -(-count // 3) if width > 4.5 else 1.55 * count


TRAINING_CURVES = Figure(
    name="training_curves",
    title="Loss, accuracy and gradient over training",
    shows="Every logged loss by step, every logged score (accuracy, AUC, F1, ...) in a panel of its kind, the best "
    "step (dotted), and the norm of the gradient of all parameters together.",
    reading="A loss that stays where it began, with a gradient that is small from the start, is a network that does "
    "not train. A gradient that falls together with the loss is a network that has finished.",
    equation=r"\|\nabla\mathcal{L}\|_2",
    paper="",
    group="training",
    needs=("steps.loss", "steps.gradient_norm"),
    per="run",
    data=training_curves_data,
    draw=training_curves_draw,
    height=_height,
)


def compared_curves_data(
    *runs: Run, names: Sequence[str] | None = None, variants: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The loss and other logged scalars of each run, thinned so that spikes stay.

    Args:
        *runs: The runs.
        names: The logged scalars; by default the loss, and the validation, training or test accuracy (or what other
            score a run is judged by), the first split that any run has.
        variants: What each run is called in the legend, by its name; by default its name.

    Returns:
        quantity, run (its place among the runs), label, step, value, low, high.
    """
    parts = []
    for place, run in enumerate(runs):
        for quantity, column in _columns(run, runs, names).items():
            label = (variants or {}).get(run.name, run.name)
            parts.append(thin(logged(run, column)).assign(quantity=quantity, run=place, label=label))
    columns = ["quantity", "run", "label", "step", "value", "low", "high"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _columns(run: Run, runs: Sequence[Run], names: Sequence[str] | None) -> dict[str, str]:
    """What a panel is called -> the run's column for it."""
    if names is not None:
        return {name: name for name in names if name in run.logged}
    loss = loss_name(run)
    found = {"loss": loss} if loss is not None else {}
    split = next((of for of in ("val", "train", "test") if any(of in accuracies(other) for other in runs)), None)
    words = {"val": "validation", "train": "training", "test": "test"}
    if split is not None and split in accuracies(run):
        found[f"{words[split]} {score_kind(run)}"] = accuracies(run)[split]
    return found


def compared_curves_draw(table: pd.DataFrame, figure: Canvas) -> None:
    """A panel a scalar, a line a run."""
    if not len(table):
        note(figure, not_recorded("steps.loss"))
        return
    parts = list(table.groupby("quantity", sort=False))
    shape = (1, len(parts)) if is_wide(figure) else (len(parts), 1)
    entries: list[Artist] = []
    for axes, (quantity, part) in zip(figure.subplots(*shape, squeeze=False).flat, parts, strict=True):
        lines = []
        for place, curve in part.groupby("run", sort=True):
            style = {key: category(int(str(place)))[key] for key in ("color", "linestyle")}
            lines.append(curve_line(curve, plain(curve["label"].iloc[0], 28), **style))
        accuracy = score(str(quantity)) is not None and part["value"].max() <= 1
        entries += draw_lines(axes, lines, log=False if accuracy else None, hold=(0.0, 1.0) if accuracy else ())
        axes.set_ylabel(plain(quantity, 30))
        step_axis(axes, part["step"])
    legend_below(figure, entries)


COMPARED_CURVES = Figure(
    name="compared_curves",
    title="Loss and accuracy of several runs",
    shows="The training loss, and an accuracy where one was logged, of each run.",
    reading="A run whose loss stays level while another's falls does not train. Where losses are alike and accuracies "
    "differ, it is generalization that differs and not training.",
    equation="",
    paper="Dasoulas et al., ICML 2021 (convergence)",
    group="comparison",
    needs=("steps.loss",),
    per="comparison",
    data=compared_curves_data,
    draw=compared_curves_draw,
    height=lambda table, width: (
        (2.0 if width > 4.5 else 1.6 * max(table["quantity"].nunique(), 1))
        + 0.13 * -(-table["run"].nunique() // (4 if width > 4.5 else 2))
    ),
)
