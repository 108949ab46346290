"""Loss, accuracies and the gradient of the whole network over training."""

from itertools import islice

import pandas as pd

from gatdiag.figures.look import (
    Canvas,
    Figure,
    category,
    curve_line,
    draw_lines,
    is_wide,
    not_recorded,
    note,
    plain,
    step_axis,
)
from gatdiag.run import Run
from gatdiag.summary import logged, loss_name, recorded, scores, thin, training_facts

_LIMIT = 6  # lines in a panel
_KINDS = 4  # of scores, a panel each


def data(run: Run) -> pd.DataFrame:
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


def draw(table: pd.DataFrame, figure: Canvas) -> None:
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


FIGURE = Figure(
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
    data=data,
    draw=draw,
    height=_height,
)
