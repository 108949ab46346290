"""Loss, accuracies and the gradient of the whole network over training."""

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
from gatdiag.summary import accuracies, logged, loss_name, recorded, thin, training_facts

_LIMIT = 6  # lines in a panel


def data(run: Run) -> pd.DataFrame:
    """Every logged loss and accuracy, and the gradient norm, each thinned so that spikes stay.

    Returns:
        panel ("loss", "accuracy", "gradient norm"), name, step, value, low, high, best_step
        (null if no metric chose one).
    """
    found = accuracies(run)
    losses = [name for name in run.logged if "loss" in name.lower()]
    first = loss_name(run)
    names = {
        "loss": sorted(losses, key=lambda name: name != first)[:_LIMIT],
        "accuracy": [found[split] for split in ("train", "val", "test") if split in found],
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
    """One panel a kind of curve."""
    missing = {"loss": "steps.loss", "accuracy": "steps.val_accuracy", "gradient norm": "steps.gradient_norm"}
    holds = {"loss": (), "accuracy": (0.0, 1.0), "gradient norm": (0.0,)}
    shape = (1, 3) if is_wide(figure) else (3, 1)
    for axes, (panel, column) in zip(figure.subplots(*shape).flat, missing.items(), strict=True):
        part = table[table["panel"] == panel]
        if not len(part):
            note(axes, not_recorded(column))
            continue
        lines = []
        for index, (name, curve) in enumerate(part.groupby("name", sort=False)):
            style = {key: category(index)[key] for key in ("color", "linestyle")}
            lines.append(curve_line(curve, plain(name, 28), **style))
        handles = draw_lines(axes, lines, log=False if panel == "accuracy" else None, hold=holds[panel])
        axes.legend(handles=handles)
        best = table["best_step"].iloc[0]
        if pd.notna(best) and panel == "accuracy":
            axes.axvline(float(best), color="#888888", linewidth=0.7, linestyle=":", zorder=1)
        axes.set_ylabel(panel)
        step_axis(axes, part["step"])


FIGURE = Figure(
    name="training_curves",
    title="Loss, accuracy and gradient over training",
    shows="Every logged loss and accuracy by step, the best step (dotted), and the norm of the gradient of all "
    "parameters together.",
    reading="A loss that stays where it began, with a gradient that is small from the start, is a network that does "
    "not train. A gradient that falls together with the loss is a network that has finished.",
    equation=r"\|\nabla\mathcal{L}\|_2",
    paper="",
    group="training",
    needs=("steps.loss", "steps.gradient_norm"),
    per="run",
    data=data,
    draw=draw,
    height=lambda table, width: 1.9 if width > 4.5 else 4.6,
)
