"""Loss and chosen logged scalars of several runs, on top of each other."""

from collections.abc import Mapping, Sequence

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
from gatdiag.summary import accuracies, logged, loss_name, score, score_kind, thin


def data(*runs: Run, names: Sequence[str] | None = None, variants: Mapping[str, str] | None = None) -> pd.DataFrame:
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


def draw(table: pd.DataFrame, figure: Canvas) -> None:
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


FIGURE = Figure(
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
    data=data,
    draw=draw,
    height=lambda table, width: (
        (2.0 if width > 4.5 else 1.6 * max(table["quantity"].nunique(), 1))
        + 0.13 * -(-table["run"].nunique() // (4 if width > 4.5 else 2))
    ),
)
