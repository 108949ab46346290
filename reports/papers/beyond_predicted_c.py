"""Predicted against measured c under several optimizers, in trainings of a GAT."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch_geometric.data import Data

from gatdiag.experiments.experiment import graph_of, prepared_model
from gatdiag.experiments.settings import Experiment
from gatdiag.figures.style import category
from gatdiag.run import load
from gatdiag.watching import watch
from reports.papers.markdown import table as markdown
from reports.papers.measurements import format_statements, render_png, run_steps, to_double
from reports.papers.study import Measured, Study

EXPERIMENT: Final = Experiment(layers=3, transform="none", epochs=150)
OPTIMIZERS: Final[Mapping[str, Callable[[Iterable[Parameter]], Optimizer]]] = {
    "SGD": lambda parameters: SGD(parameters, lr=0.1),
    "SGD, weight decay": lambda parameters: SGD(parameters, lr=0.1, weight_decay=5e-4),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "momentum, weight decay": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "Nesterov, weight decay": lambda parameters: SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    ),
    "Adam": lambda parameters: Adam(parameters, lr=0.005),
    "Adam, weight decay": lambda parameters: Adam(parameters, lr=0.005, weight_decay=5e-4),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.005, weight_decay=0.01),
}
CONTROL: Final = "SGD, and noise"
"""SGD, and after each step noise of 1e-4 of their size is added to the weights, unknown to the optimizer."""


def record_predictions(
    graph: Data, optimizer: str, double: bool = False, experiment: Experiment = EXPERIMENT
) -> pd.DataFrame:
    """Record c and predicted c of each law before each step of a training with `gatdiag.watch`.

    The optimizer is a key of `OPTIMIZERS`, or `CONTROL`; ``double`` is in float64.
    """
    model = prepared_model(experiment, graph)
    if double:
        model, graph = model.double(), to_double(graph)
    optimizing = OPTIMIZERS["SGD" if optimizer == CONTROL else optimizer](model.parameters())
    generator = torch.Generator().manual_seed(0)

    def add_noise(*_: object) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 1e-4 * torch.randn(weight.shape, dtype=weight.dtype, generator=generator))

    if optimizer == CONTROL:
        optimizing.register_step_post_hook(add_noise)
    with TemporaryDirectory(prefix="gatdiag-") as folder:
        run = Path(folder) / "run"
        with watch(model, run, every=1, metrics=["balance"], laws=True) as recorder:
            for _, loss in run_steps(model, graph, optimizing, experiment.epochs):
                recorder.log(loss=loss)
        recorded = load(run)
        return recorded.neurons[["step", "law", "c", "predicted_c"]].merge(recorded.steps[["step", "loss"]])


def summarize(table: pd.DataFrame) -> dict[str, float]:
    """Summarize the drift of c and the error of its prediction over all laws and steps of a training.

    Returns:
        drift: largest |c - c at the beginning|; step: largest change of c in one step; error: largest |c - predicted
        c|; relative_error: the same, relative to the largest |c| of the law; of_step: error / step; accumulated:
        largest |sum of c - predicted c over the training|; loss: the last.
    """
    c, predicted = (table.pivot(index="step", columns="law", values=name) for name in ("c", "predicted_c"))
    error = (c - predicted).iloc[1:]
    size = c.abs().max()
    step = _largest(c.diff().iloc[1:])
    return {
        "drift": _largest(c - c.iloc[0]),
        "step": step,
        "error": _largest(error),
        "relative_error": _largest(error / size),
        "of_step": _largest(error) / step,
        "accumulated": float(error.sum().abs().max()),
        "loss": float(table["loss"].iloc[-1]),
    }


def _largest(values: pd.DataFrame) -> float:
    return float(values.abs().to_numpy().max())


def measure(root: Path) -> Measured:
    """Train in float32 and in float64; one row per training, from `summarize`."""
    graph = graph_of(EXPERIMENT, root)
    table = pd.concat(
        record_predictions(graph, name, double, EXPERIMENT).assign(optimizer=name, precision=precision)
        for precision, double in (("float32", False), ("float64", True))
        for name in (*OPTIMIZERS, CONTROL)
    )
    return summarize_all(table), {"predicted-c.png": render_png(lambda figure: _draw(figure, table), height=3.0)}


def summarize_all(table: pd.DataFrame) -> pd.DataFrame:
    """One row per training."""
    groups = table.groupby(["precision", "optimizer"], sort=False)
    return pd.DataFrame([{"precision": key[0], "optimizer": key[1], **summarize(run)} for key, run in groups])


def describe(numbers: pd.DataFrame) -> str:
    """The statements that the trainings show or not."""
    control = numbers[numbers["optimizer"] == CONTROL]
    statements = []
    for precision, bound in (("float32", 1e-6), ("float64", 1e-13)):
        rows = numbers[(numbers["precision"] == precision) & (numbers["optimizer"] != CONTROL)]
        if rows.empty:
            continue
        error = float(rows["relative_error"].max())
        statements.append((error < bound, f"In {precision} the c predicted before a step is the c measured after it, "
                           f"for {len(rows)} optimizers, all laws and all steps, up to {error:.0e} of the law's "
                           "largest |c|: rounding."))  # fmt: skip
    drifts = numbers.groupby("optimizer")["drift"].max()
    statements += [
        (bool((control["of_step"] > 0.5).all()), "With noise added to the weights, the prediction is off by "
         f"{float(control['of_step'].min()):.0%} of the largest step or more: it can fail."),
        (drifts["Adam"] > 10 * drifts["SGD"], f"Adam moves c {drifts['Adam'] / drifts['SGD']:.0f} times as far as "
         "plain gradient descent, and the prediction follows."),
    ]  # fmt: skip
    return format_statements(
        statements,
        "All laws and steps of trainings of a three-layer GAT on Cora, with features as stored, from Xavier's initial "
        "weights. drift: largest |c - c at the beginning|; step: largest change in one step; error: largest |c - "
        "predicted c|; relative_error: the same relative to the largest |c| of the law; of_step: error / step; "
        "accumulated: largest sum of c - predicted c over the training; loss: the last.",
        markdown(numbers.drop(columns="commit", errors="ignore")),
    )


def _draw(figure: Figure, table: pd.DataFrame) -> None:
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    table = table[table["precision"] == "float32"]
    for number, (name, run) in enumerate(table.groupby("optimizer", sort=False)):
        c, predicted = (run.pivot(index="step", columns="law", values=of) for of in ("c", "predicted_c"))
        for axes, values in zip(panels, (c - c.iloc[0], c - predicted), strict=True):
            largest = values.iloc[1:].abs().max(axis=1)
            axes.plot(largest.index, largest, label=str(name), **category(number))
    for axes, label in zip(panels, ("largest |c - c at the beginning|", "largest |c - predicted c|"), strict=True):
        axes.set(yscale="log", xlabel="step", ylabel=label)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)


STUDY = Study(
    name="beyond-predicted-c",
    title="Predicted and measured c under SGD, momentum, weight decay, Adam and AdamW",
    claim="If delta is zero, the optimizer's state and the gradients determine c after the step, for each of these "
    "optimizers.",
    script=measure,
    describe=describe,
)
