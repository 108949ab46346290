import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv

import gatdiag
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.experiment import prepared_model, run_experiment
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import grid, read_results, sweep
from reports.papers.lipschitz import (
    DEEP_GAT,
    as_released,
    gradient_spread,
    judge_gradients,
    normalize_as_released_,
)


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


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5, 5], [1, 2, 3, 4, 0, 2, 0, 1, 3]])


def test_the_released_code_with_its_errors():
    torch.manual_seed(0)
    layer = GATConv(4, 3, heads=2).double()
    nn.init.normal_(layer.att_src, std=3.0)
    nn.init.normal_(layer.att_dst, std=3.0)
    x = torch.randn(6, 4, dtype=torch.float64)
    normalize_as_released_(layer)
    _, (edges, found) = layer(x, EDGES, return_attention_weights=True)
    h = layer.lin(x).view(6, 2, 3)
    norm = torch.cat([layer.att_src, layer.att_dst], -1).norm()
    maxima = torch.stack(
        [torch.stack([h[s] for s, t in edges.t().tolist() if t == node]).norm(dim=-1).amax(0) for node in range(6)]
    ).view(-1)
    scores = []
    for source, target in edges.t().tolist():
        score = (h[source] * layer.att_src[0]).sum(-1) + (h[target] * layer.att_dst[0]).sum(-1)
        divisor = 4 * norm * (maxima[target] ** 2 + h[source].square().sum(-1)).sqrt() + 1e-12
        scores.append(nn.functional.leaky_relu(score / divisor, 0.2))
    for node in range(6):
        at = [number for number, target in enumerate(edges[1].tolist()) if target == node]
        torch.testing.assert_close(found[at], torch.stack([scores[number] for number in at]).softmax(0))


def test_a_training_of_the_released_code_is_one_of_the_sweep(tmp_path):
    (plain,) = grid(**DEEP_GAT, data="csbm:nodes=100,features=8", layers=2, width=4, heads=2)
    cells = as_released([replace(plain, epochs=2)])
    assert sweep(cells, tmp_path) == {}
    assert [one["settings"]["lipschitz"] for one in read_results(cells, tmp_path).values()] == ["code"]
    graph = load_graph(plain.data)
    scores = [prepared_model(cell, graph).eval()(graph.x, graph.edge_index) for cell in (plain, *cells)]
    assert not torch.allclose(*scores)
