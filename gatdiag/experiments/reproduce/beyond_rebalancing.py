"""Rebalancing a network that is stuck, in the middle of its training.

A ten-layer GAT begins from Xavier's weights and does not learn. After a number of steps it is copied; each copy is
treated in its own way, and training goes on.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.data import Data

from gatdiag.experiments.experiment import graph_of, prepared_model
from gatdiag.experiments.markdown import table as markdown
from gatdiag.experiments.reproduce.findings import backward, descent, outcome, picture
from gatdiag.experiments.reproduce.reproduction import Evidence, Options, Reproduction
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.training import accuracy, evaluated
from gatdiag.figures.style import category
from gatdiag.remedies import initialize_, rebalance_

EXPERIMENT: Final = Experiment(layers=10, initialization="xavier")


def grow_(model: Any, graph: Data, _seed: int = 0) -> None:
    """Multiply all feature weights by one factor, found in a few steps, so that the logits' root mean square is 1."""
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


def _begin_anew(model: nn.Module, _graph: Data, seed: int) -> None:
    initialize_(model, "balanced_orthogonal", generator=torch.Generator().manual_seed(seed))


TREATMENTS: Final[Mapping[str, Callable[[nn.Module, Data, int], None]]] = {
    "nothing": lambda *_: None,
    "rebalance": _rebalance,
    "rebalance relative gradients": _rebalance_gradients,
    "grow": grow_,
    "rebalance and grow": _rebalance_and_grow,
    "balanced weights anew": _begin_anew,
}
"""Name -> what is done to the stuck model, in place. The last three change the function it computes."""


def treat_stuck(
    graph: Data, seed: int, experiment: Experiment = EXPERIMENT, stuck: int = 200, epochs: int = 300
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train a network, which gets stuck; treat copies of it, and go on with these.

    Args:
        graph: The graph.
        seed: Of the first weights.
        experiment: What is trained, from which weights, and at which rate.
        stuck: Steps before the treatment.
        epochs: Steps after it.

    Returns:
        The trainings at every tenth step and the last: seed, treatment, step, loss, test_accuracy. And what a treatment
        did at once: seed, treatment, layer (from 1), relative gradient norms of its feature weight and of its attention
        vector (weight, attention), and of the whole network the logits' root mean square (size) and the largest change
        of a logit relative to the largest logit (moved).
    """
    model = prepared_model(replace(experiment, seed=seed), graph)
    before = list(_trained(model, graph, experiment.rate, stuck))
    logits = evaluated(model, (graph.x, graph.edge_index))
    trained, treated = [], []
    for treatment, treat in TREATMENTS.items():
        copied = copy.deepcopy(model)
        treat(copied, graph, seed)
        treated += [{"seed": seed, "treatment": treatment, **row} for row in _layers(copied, graph, logits)]
        after = [{**row, "step": row["step"] + stuck} for row in _trained(copied, graph, experiment.rate, epochs)]
        trained += [{"seed": seed, "treatment": treatment, **row} for row in (*before, *after)]
    return pd.DataFrame(trained), pd.DataFrame(treated)


def _trained(model: nn.Module, graph: Data, rate: float, steps: int) -> Iterator[dict[str, float]]:
    for step, loss in descent(model, graph, torch.optim.SGD(model.parameters(), lr=rate), steps):
        if step % 10 == 0 or step == steps:
            yield {"step": step, "loss": loss, "test_accuracy": accuracy(model, graph)[2]}


def _layers(model: Any, graph: Data, untreated: Tensor) -> Iterator[dict[str, float]]:
    """Of each layer, before the next step is made."""
    backward(model, graph)
    logits = evaluated(model, (graph.x, graph.edge_index))
    size, moved = logits.square().mean().sqrt(), (logits - untreated).abs().max() / untreated.abs().max()
    for layer, conv in enumerate(model.convs, 1):
        weight, attention = (float(held.grad.norm() / held.detach().norm()) for held in (conv.lin_l.weight, conv.att))
        yield {"layer": layer, "weight": weight, "attention": attention, "size": float(size), "moved": float(moved)}


def evidence(options: Options) -> Evidence:
    """Measures and reports."""
    graph = graph_of(EXPERIMENT, options.root)
    trained, treated = zip(*(treat_stuck(graph, seed) for seed in range(3 if options.full else 1)), strict=True)
    return report(pd.concat(trained), pd.concat(treated))


def report(trained: pd.DataFrame, treated: pd.DataFrame) -> Evidence:
    """What was measured, in words, tables and a picture."""
    table = _table(trained, treated)
    seeds = table["seed"].nunique()
    of = {name: rows.set_index("seed") for name, rows in table.groupby("treatment")}
    alone = pd.concat([of["rebalance"], of["rebalance relative gradients"]])
    statements = (
        (bool((of["nothing"]["fell"] < 0.01).all()), "The network is stuck: without treatment its loss goes on from "
         f"{_range(of['nothing']['loss_before'])} to {_range(of['nothing']['loss'])}."),
        (bool((alone["moved"] < 1e-5).all()), "Rebalancing leaves the logits as they were, up to "
         f"{alone['moved'].max():.0e} of the largest."),
        (bool((of["rebalance"]["spread"] < of["nothing"]["spread"]).all()), "Rebalancing c brings the relative "
         f"gradient norms of the layers closer together: largest by smallest {_range(of['rebalance']['spread'])}, "
         f"before {_range(of['nothing']['spread'])}."),
        (bool((alone["fell"] < 0.01).all()), "Rebalancing alone does not make the network train: the loss falls by "
         f"{_range(alone['fell'])} of itself."),
        (bool((of["grow"]["fell"] > 0.1).all()), "One factor for all feature weights that makes the logits' root mean "
         "square 1 does, without rebalancing."),
        (bool((of["rebalance and grow"]["fell"] > 0.1).all()), "Rebalancing followed by that factor does."),
        (bool((of["rebalance and grow"]["loss"] < of["grow"]["loss"]).all()), "The loss falls lower with "
         "both than with the factor alone, which gives the same function at that moment."),
        (bool((of["balanced weights anew"]["fell"] > 0.1).all()), "Balanced orthogonal weights, drawn anew, train."),
    )  # fmt: skip
    text = outcome(
        statements,
        f"A GAT of ten layers on Cora, Xavier's weights, gradient descent at {EXPERIMENT.rate}; seeds: {seeds}. "
        f"Logits have a root mean square of {_range(of['nothing']['size'])} when it is stuck: they have vanished, "
        "and gradients with them. Rebalancing keeps the function, so it keeps that, too. Trainings go on for "
        f"{int(trained['step'].max())} steps in all; the paper makes up to 5000.",
        "size: root mean square of the logits after the treatment; moved: largest change of a logit by it, "
        "relative to the largest logit; spread: largest relative gradient norm of a layer's feature weight by the "
        "smallest; loss_before, loss: at the treatment and at the end; fell: by which share; test_accuracy: at "
        "the end.",
        markdown(table),
    )
    return Evidence(
        table, text, {"rebalancing.png": picture(lambda figure: _draw(figure, trained, treated), height=3.0)}
    )


def _table(trained: pd.DataFrame, treated: pd.DataFrame) -> pd.DataFrame:
    """A row a training; the step at which it was treated is in `trained` twice, before and after."""
    keys = ["treatment", "seed"]
    layers, runs = (table.groupby(keys, sort=False) for table in (treated, trained))
    least, most = layers["weight"].min(), layers["weight"].max()
    before = trained[trained.duplicated([*keys, "step"], keep="last")].set_index(keys)["loss"]
    found = layers[["size", "moved"]].first().assign(smallest=least, spread=most / least, loss_before=before)
    found = found.join(runs[["loss", "test_accuracy"]].last()).reset_index()
    return found.assign(fell=1 - found["loss"] / found["loss_before"])


def _range(values: pd.Series) -> str:
    least, most = f"{values.min():.4g}", f"{values.max():.4g}"
    return least if least == most else f"{least} to {most}"


def _draw(figure: Figure, trained: pd.DataFrame, treated: pd.DataFrame) -> None:
    """Loss and accuracy, means over seeds; and the gradients of each layer at once after the treatment."""
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


REPRODUCTION = Reproduction(
    name="beyond-rebalancing",
    title="A stuck network, rebalanced in the middle of its training",
    claim="Rebalancing keeps the function of a stuck network, and so logits that have vanished: alone it does not make "
    "the network train.",
    left_out="Two of three seeds.",
    evidence=evidence,
)
