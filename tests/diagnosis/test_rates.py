"""The learning rates that are recommended, on a quadratic whose best rate is known and on a deep network."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, Sequential

import gatdiag
from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.models import gcn
from gatdiag.experiments.synthetic import block_model
from tests.diagnosis.watched import train

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
Y = X @ torch.randn(6, 1, generator=torch.Generator().manual_seed(2))


def trained(folder, lr, momentum=0.0, steps=60, kind=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = kind(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    with gatdiag.watch(model, folder, every=1) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(X) - Y).square().mean()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("wrong", [1e-6, 30.0])
def test_the_rate_that_is_recommended_trains(tmp_path, wrong, momentum):
    trained(tmp_path / "wrong", wrong, momentum)
    verdict = gatdiag.diagnose(tmp_path / "wrong").verdict
    assert verdict.code == ("lr-too-small" if wrong < 1 else "lr-too-large")
    (action,) = verdict.actions
    better = wrong * action.settings["factor"]
    assert f"lr={better:g}" in verdict.remedy
    assert 1e-4 < better < 0.2
    losses = trained(tmp_path / "better", better, momentum, steps=200)
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("momentum", [0.999, 1 - 1e-9])
def test_momentum_that_adds_up_more_steps_than_there_are_is_shortened(tmp_path, momentum):
    trained(tmp_path / "wrong", 30.0, momentum)
    memory, rate = gatdiag.diagnose(tmp_path / "wrong").verdict.actions
    assert memory.settings["value"] == 0.9
    losses = trained(tmp_path / "better", 30.0 * rate.settings["factor"], 0.9, steps=200)
    assert losses[-1] < 0.3 * losses[0]


def test_the_first_step_of_rmsprop_is_longer_than_later_ones(tmp_path):
    trained(tmp_path / "wrong", 100.0, kind=torch.optim.RMSprop)
    (rate,) = gatdiag.diagnose(tmp_path / "wrong").verdict.actions
    losses = trained(tmp_path / "better", 100.0 * rate.settings["factor"], kind=torch.optim.RMSprop)
    assert losses[-1] < 0.3 * losses[0]


def test_where_only_a_huge_rate_would_do_adam_is_recommended_and_trains(tmp_path):
    graph, losses = block_model(nodes=120), {}

    def train(name, make_optimizer):
        torch.manual_seed(0)
        model = gcn(graph.num_features, 4, 16, layers=8)
        optimizer = make_optimizer(model)
        with gatdiag.watch(model, tmp_path / name, every=1) as recorder:
            for _ in range(60):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(graph.x, graph.edge_index), graph.y)
                loss.backward()
                optimizer.step()
                recorder.log(loss=loss)
        losses[name] = float(loss.detach())
        return gatdiag.diagnose(tmp_path / name)

    verdict = train("sgd", lambda model: torch.optim.SGD(model.parameters(), lr=1e-3)).verdict
    assert verdict.code == "lr-too-small"
    assert verdict.remedy.startswith("optimizer = torch.optim.Adam(model.parameters(), lr=0.005)")
    assert [action.name for action in verdict.actions] == ["adam"]
    train("adam", lambda model: torch.optim.Adam(model.parameters(), lr=0.005))
    assert losses["adam"] < 0.8 * losses["sgd"]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_deep_elu_gat_that_hardly_moves_by_gradient_descent_trains_with_the_adam_that_is_recommended(tmp_path, name):
    graph = block_model(nodes=120)
    torch.manual_seed(0)
    sizes = [graph.num_features, *[32] * 11, 4]
    layers = [(GATConv(*pair), "x, edges -> x") for pair in pairwise(sizes)]
    model = Sequential("x, edges", [step for layer in layers for step in (layer, nn.ELU())][:-1])
    optimizer = {"SGD": partial(torch.optim.SGD, lr=0.01), "Adam": partial(torch.optim.Adam, lr=0.003)}[name]
    verdict = train(
        tmp_path / "run",
        model,
        lambda step: F.cross_entropy(model(graph.x, graph.edge_index), graph.y),
        optimizer=lambda parameters, lr: optimizer(parameters),
    ).verdict
    assert verdict.code == ("lr-too-small" if name == "SGD" else HEALTHY)
    assert verdict.remedy.startswith("optimizer = torch.optim.Adam(model.parameters(), lr=0.003)") is (name == "SGD")


@pytest.mark.parametrize(("decay", "code"), [(0.5, "weight-decay-too-strong"), (5e-4, HEALTHY)])
def test_decay_is_weighed_against_gradients_of_weights_not_of_the_bias_of_the_output(tmp_path, decay, code):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=decay)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for rows in [rows for _ in range(30) for rows in torch.randperm(80).split(10)]:  # each with another mean
            optimizer.zero_grad()
            loss = F.mse_loss(model(X[rows]), Y[rows] / Y.std())
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    assert gatdiag.diagnose(tmp_path / "run").verdict.code == code


def test_a_rate_that_drives_the_weights_away_little_by_little_is_named(tmp_path):
    """No step is half as large as the weights, and units die."""
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    y = torch.tanh(x @ torch.randn(10, 4)).sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for _ in range(180):
            rows = torch.randperm(400)[:32]
            optimizer.zero_grad()
            loss = (model(x[rows]) - y[rows]).square().mean()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    assert gatdiag.diagnose(tmp_path / "run").verdict.code == "lr-too-large"
