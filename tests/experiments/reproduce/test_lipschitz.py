import math
from dataclasses import replace

import pandas as pd
import pytest
from torch.nn import functional as F

import gatdiag
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.experiment import prepared_model, run_experiment
from gatdiag.experiments.reproduce.lipschitz import (
    DEEP_GAT,
    LIPSCHITZ_GRADIENTS,
    LIPSCHITZ_MISSING,
    LIPSCHITZ_TREES,
    best_accuracy,
    by_depth,
    by_tree_depth,
    gradient_spread,
    judge_gradients,
    variants,
)
from gatdiag.experiments.settings import Experiment


def test_gradients_are_those_of_autograd(tmp_path):
    """Of one step, on which the loss of the first weights was."""
    small = {**DEEP_GAT, "data": "csbm:nodes=200,features=16", "dropout": 0.0, "attention_dropout": 0.0, "epochs": 1}
    experiment = Experiment(**small, layers=4, width=8, lipschitz="paper")
    run_experiment(experiment, folder=tmp_path / "run", every=1)
    measured = gradient_spread(gatdiag.load(tmp_path / "run"))

    graph = load_graph(experiment.data)
    model = prepared_model(experiment, graph)
    F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask]).backward()
    weights = [model.first.weight, *(conv.lin.weight for conv in model.convs), model.last.weight]
    norms = sorted(float(sum(value**2 for value in weight.grad.flatten().tolist())) ** 0.5 for weight in weights)
    assert measured["largest_gradient"] == pytest.approx(norms[-1], rel=1e-4)
    assert measured["median_gradient"] == pytest.approx((norms[2] + norms[3]) / 2, rel=1e-4)
    decades = math.log10(norms[-1] / norms[0])
    assert measured["decades_between_layers"] == pytest.approx(decades, rel=1e-4)
    assert measured["decades_between_layers_at_first"] == pytest.approx(decades, rel=1e-4)


def test_the_protocol_is_that_of_the_released_scripts():
    without, with_norm = LIPSCHITZ_GRADIENTS.full
    assert replace(with_norm, lipschitz="none") == without
    assert (without.layers, without.heads, without.width, without.dropout, without.attention_dropout) == (
        *(25, 8, 64),
        *(0.6, 0.3),
    )
    assert (without.rate, without.weight_decay, without.schedule, without.transform) == (0.005, 5e-4, "plateau", "none")
    assert not without.stop_below


def test_published_accuracies_of_missing_features_are_of_their_depths():
    printed = {
        (one.where["data"], one.where["model"], one.where["norm"], one.where["lipschitz"]): one.value
        for one in LIPSCHITZ_MISSING.published
        if one.where["layers"] in (2, 11, 12, 15)
    }
    assert printed["Cora:missing=1", "gcn", "none", "none"] == 58.8
    assert printed["Cora:missing=1", "deep-gat", "none", "code"] == 75.3
    assert printed["PubMed:missing=1", "deep-gat", "pairnorm", "none"] == 70.4


def test_trees_are_trained_as_alon_and_yahav_do():
    cells = {(one.model, one.lipschitz, one.layers - 1): one for one in LIPSCHITZ_TREES.full}
    assert len(cells) == 35
    batches = [cells["gcn", "none", depth].trees for depth in range(2, 9)]
    assert batches == [64, 64, 1024, 1024, 1024, 2048, 2048]
    assert {one.passes * one.epochs for one in cells.values()} == {50000}
    assert {one.heads * one.width for one in cells.values()} == {32}
    assert all(one.data == f"tree:depth={depth}" for (_, _, depth), one in cells.items())
    bare = cells["ggnn", "none", 4]
    assert (bare.residual, bare.norm, bare.activation) == (False, "none", "none")


def test_the_best_accuracy_of_training_is_that_of_any_epoch(tmp_path):
    cell = replace(LIPSCHITZ_TREES.quick[-2], epochs=4, passes=2)
    accuracies = []
    run_experiment(cell, folder=tmp_path / "run", progress=lambda _, epoch: accuracies.append(epoch.train_accuracy))
    assert best_accuracy(gatdiag.load(tmp_path / "run"))["best_train_accuracy"] == max(accuracies)


def test_lines_are_of_normalizations_and_means_of_seeds():
    results = pd.DataFrame(
        {
            "model": "deep-gat",
            "norm": ["none", "none", "pairnorm", "none"],
            "lipschitz": ["none", "none", "none", "code"],
            "layers": [5, 5, 5, 5],
            "last_test_accuracy": [0.25, 0.75, 0.5, 0.125],
        }
    )
    assert variants(results) == ["deep-gat", "deep-gat", "deep-gat, pairnorm", "deep-gat, LipschitzNorm (code)"]
    table = by_depth(results).set_index("variant")
    assert table.loc["deep-gat", "mean"] == 0.5
    assert table.loc["deep-gat, LipschitzNorm (code)", ["size", "mean"]].tolist() == [5, 0.125]
    trees = by_tree_depth(results.assign(best_train_accuracy=results["last_test_accuracy"]))
    assert trees.groupby("variant")["mean"].max().to_dict() == {
        "deep-gat": 0.5,
        "deep-gat, LipschitzNorm (code)": 0.125,
    }
    assert {*trees["size"]} == {4}


def test_what_is_said_of_gradients_follows_the_numbers():
    results = pd.DataFrame(
        {
            "lipschitz": ["none", "paper"],
            "largest_gradient": [2e6, 4.0],
            "decades_between_layers": [1.9, 0.75],
            "last_train_accuracy": [0.14, 0.18],
        }
    )
    first, second = judge_gradients(results)
    assert first.startswith("Reproduced: without LipschitzNorm the largest gradient norm is 2e+06, with it 4;")
    assert "(accuracy 14.0% without LipschitzNorm, 18.0% with it)" in second
    (only,) = judge_gradients(results.assign(largest_gradient=[5.0, 4.0], last_train_accuracy=0.9))
    assert only.startswith("NOT reproduced")
    vanishing = results.assign(decades_between_layers=[1.9, 12.0])  # the largest is small for that reason
    (only, _) = judge_gradients(vanishing)
    assert only.startswith("NOT reproduced")
    assert judge_gradients(results[:1]) == []
