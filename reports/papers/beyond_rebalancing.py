"""Rebalancing a stuck network in the middle of its training.

A ten-layer GAT with Xavier's initial weights does not learn. After some steps it is copied, each copy is treated in
another way, and training continues.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.data import Data

from gatdiag.experiments.experiment import graph_of, prepared_model
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.training import accuracy, evaluate
from gatdiag.figures.style import category
from gatdiag.remedies import initialize_, rebalance_
from reports.papers.markdown import table as markdown
from reports.papers.measurements import backward, format_statements, render_png, run_steps
from reports.papers.study import Measured, Study

EXPERIMENT: Final = Experiment(layers=10, initialization="xavier")
STUCK: Final = 200  # steps before the treatment
EPOCHS: Final = 300  # steps after it


def grow_(model: Any, graph: Data, _seed: int = 0) -> None:
    """Multiply all feature weights by the factor, found iteratively, that makes the logits' root mean square 1."""
    weights = [conv.lin_l.weight for conv in model.convs]
    with torch.no_grad():
        for _ in range(10):
            size = model(graph.x, graph.edge_index).square().mean().sqrt()
            torch._foreach_mul_(weights, float(size ** (-1 / len(weights))))


def _rebalance(model: nn.Module, graph: Data, _seed: int) -> None:
    rebalance_(model, graph.x, graph.edge_index)


def _rebalance_gradients(model: nn.Module, graph: Data, _seed: int) -> None:
    backward(model, graph)
    rebalance_(model, graph.x, graph.edge_index, towards="relative-gradients")


def _rebalance_and_grow(model: nn.Module, graph: Data, seed: int) -> None:
    _rebalance(model, graph, seed)
    grow_(model, graph)


def _initialize(model: nn.Module, _graph: Data, seed: int) -> None:
    initialize_(model, "balanced_orthogonal", generator=torch.Generator().manual_seed(seed))


TREATMENTS: Final[Mapping[str, Callable[[nn.Module, Data, int], None]]] = {
    "nothing": lambda *_: None,
    "rebalance": _rebalance,
    "rebalance relative gradients": _rebalance_gradients,
    "grow": grow_,
    "rebalance and grow": _rebalance_and_grow,
    "balanced weights anew": _initialize,
}
"""Name -> in-place treatment of the stuck model. The last three change the function that it computes."""


def treat_stuck(
    graph: Data, seed: int, experiment: Experiment = EXPERIMENT, stuck: int = STUCK, epochs: int = EPOCHS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train a network until it is stuck, treat copies of it, and continue their trainings.

    There are ``stuck`` steps before the treatment, and ``epochs`` after it.

    Returns:
        The trainings at every tenth step and the last: seed, treatment, step, loss, test_accuracy. And the immediate
        effect of the treatments: seed, treatment, layer (from 1), relative gradient norms of its feature weight and
        attention vector (weight, attention), root mean square of the logits (size), and the largest change of a logit
        relative to the largest logit (moved).
    """
    model = prepared_model(replace(experiment, seed=seed), graph)
    before = list(_train(model, graph, experiment.rate, stuck))
    logits = evaluate(model, (graph.x, graph.edge_index))
    trained, treated = [], []
    for treatment, treat in TREATMENTS.items():
        copied = copy.deepcopy(model)
        treat(copied, graph, seed)
        treated += [{"seed": seed, "treatment": treatment, **row} for row in _measure_layers(copied, graph, logits)]
        after = [{**row, "step": row["step"] + stuck} for row in _train(copied, graph, experiment.rate, epochs)]
        trained += [{"seed": seed, "treatment": treatment, **row} for row in (*before, *after)]
    return pd.DataFrame(trained), pd.DataFrame(treated)


def _train(model: nn.Module, graph: Data, rate: float, steps: int) -> Iterator[dict[str, float]]:
    for step, loss in run_steps(model, graph, torch.optim.SGD(model.parameters(), lr=rate), steps):
        if step % 10 == 0 or step == steps:
            yield {"step": step, "loss": loss, "test_accuracy": accuracy(model, graph)[2]}


def _measure_layers(model: Any, graph: Data, untreated: Tensor) -> Iterator[dict[str, float]]:
    backward(model, graph)
    logits = evaluate(model, (graph.x, graph.edge_index))
    size, moved = logits.square().mean().sqrt(), (logits - untreated).abs().max() / untreated.abs().max()
    for layer, conv in enumerate(model.convs, 1):
        weight, attention = (float(w.grad.norm() / w.detach().norm()) for w in (conv.lin_l.weight, conv.att))
        yield {"layer": layer, "weight": weight, "attention": attention, "size": float(size), "moved": float(moved)}


def measure(root: Path) -> Measured:
    """Train with three seeds; one row per training, from `summarize`."""
    graph = graph_of(EXPERIMENT, root)
    parts = zip(*(treat_stuck(graph, seed) for seed in range(3)), strict=True)
    trained, treated = (pd.concat(part) for part in parts)
    picture = render_png(lambda figure: _draw(figure, trained, treated), height=3.0)
    return summarize(trained, treated), {"rebalancing.png": picture}


def describe(table: pd.DataFrame) -> str:
    """The statements that the trainings show or not."""
    seeds = table["seed"].nunique()
    of = {name: rows.set_index("seed") for name, rows in table.groupby("treatment")}
    alone = pd.concat([of["rebalance"], of["rebalance relative gradients"]])
    statements = (
        (bool((of["nothing"]["fell"] < 0.01).all()), "The network is stuck: without treatment, its loss goes from "
         f"{_range(of['nothing']['loss_before'])} to {_range(of['nothing']['loss'])}."),
        (bool((alone["moved"] < 1e-5).all()), "Rebalancing preserves the logits, up to "
         f"{alone['moved'].max():.0e} of the largest."),
        (bool((of["rebalance"]["spread"] < of["nothing"]["spread"]).all()), "Rebalancing c brings the relative "
         f"gradient norms of the layers closer together: the ratio of largest to smallest is "
         f"{_range(of['rebalance']['spread'])}, before {_range(of['nothing']['spread'])}."),
        (bool((alone["fell"] < 0.01).all()), "Rebalancing alone does not make the network train: its loss falls by "
         f"a fraction of {_range(alone['fell'])}."),
        (bool((of["grow"]["fell"] > 0.1).all()), "One factor for all feature weights that makes the logits' root mean "
         "square 1 does, without rebalancing."),
        (bool((of["rebalance and grow"]["fell"] > 0.1).all()), "Rebalancing followed by that factor does."),
        (bool((of["rebalance and grow"]["loss"] < of["grow"]["loss"]).all()), "The loss falls lower with "
         "both than with the factor alone, which at that moment gives the same function."),
        (bool((of["balanced weights anew"]["fell"] > 0.1).all()), "New balanced orthogonal weights train."),
    )  # fmt: skip
    return format_statements(
        statements,
        f"A ten-layer GAT on Cora, Xavier's initial weights, gradient descent at {EXPERIMENT.rate}; seeds: {seeds}. "
        f"The logits of the stuck network have a root mean square of {_range(of['nothing']['size'])}: they have "
        "vanished, and gradients with them. Rebalancing preserves the function, and so the vanished logits. Trainings "
        f"have {STUCK + EPOCHS} steps in total; the paper has up to 5000.",
        "size: root mean square of the logits after the treatment; moved: largest change of a logit relative to the "
        "largest logit; spread: ratio of the largest to the smallest relative gradient norm of a layer's feature "
        "weight; loss_before, loss: at the treatment and at the end; fell: fraction by which the loss fell; "
        "test_accuracy: at the end.",
        markdown(table.drop(columns="commit", errors="ignore")),
    )


def summarize(trained: pd.DataFrame, treated: pd.DataFrame) -> pd.DataFrame:
    """One row per training; in `trained`, the step of the treatment has two rows, before and after."""
    keys = ["treatment", "seed"]
    layers, runs = (table.groupby(keys, sort=False) for table in (treated, trained))
    least, most = layers["weight"].min(), layers["weight"].max()
    before = trained[trained.duplicated([*keys, "step"], keep="last")].set_index(keys)["loss"]
    rows = layers[["size", "moved"]].first().assign(smallest=least, spread=most / least, loss_before=before)
    rows = rows.join(runs[["loss", "test_accuracy"]].last()).reset_index()
    return rows.assign(fell=1 - rows["loss"] / rows["loss_before"])


def _range(values: pd.Series) -> str:
    least, most = f"{values.min():.4g}", f"{values.max():.4g}"
    return least if least == most else f"{least} to {most}"


def _draw(figure: Figure, trained: pd.DataFrame, treated: pd.DataFrame) -> None:
    panels = figure.subplots(1, 3)
    runs = trained.drop_duplicates(["treatment", "seed", "step"], keep="last")
    means = runs.groupby(["treatment", "step"], sort=False)[["loss", "test_accuracy"]].mean().reset_index()
    layers = treated.groupby(["treatment", "layer"], sort=False)["weight"].mean().reset_index()
    for number, treatment in enumerate(TREATMENTS):
        run, layer = (table[table["treatment"] == treatment] for table in (means, layers))
        drawn = ((run["step"], run["loss"]), (run["step"], run["test_accuracy"]), (layer["layer"], layer["weight"]))
        for axes, (x, y) in zip(panels, drawn, strict=True):
            axes.plot(x, y, label=treatment, **category(number))
    panels[0].set(xlabel="step", ylabel="loss")
    panels[1].set(xlabel="step", ylabel="test accuracy")
    panels[2].set(xlabel="layer", ylabel="relative gradient norm of W at the treatment", yscale="log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


STUDY = Study(
    name="beyond-rebalancing",
    title="Rebalancing a stuck network in the middle of its training",
    claim="Rebalancing preserves the function of a stuck network, and so its vanished logits: alone it does not make "
    "the network train.",
    script=measure,
    describe=describe,
)
