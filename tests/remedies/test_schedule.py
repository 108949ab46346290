"""Rebalancing during training: balance is kept, and nothing but the balance changes."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv

from gatdiag import find_laws
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.models import Stack, gat
from gatdiag.remedies import Rebalance, rebalance_

X = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, 8, (2, 30), generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 3


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack([GATv2Conv(5, 6), GATv2Conv(6, 6), GATv2Conv(6, 3)]).double()


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X, EDGES), LABELS).backward()
        optimizer.step()


OPTIMIZERS = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("criterion", ["c", "relative-gradients"])
def test_each_time_it_is_what_rebalance_does(model, kind, criterion):
    twin = copy.deepcopy(model)
    optimizer, other = OPTIMIZERS[kind](model), OPTIMIZERS[kind](twin)
    schedule = Rebalance(model, X, EDGES, optimizer=optimizer, every=2, towards=criterion)
    train(model, optimizer, 4)
    for step in range(4):
        other.zero_grad()
        nn.functional.cross_entropy(twin(X, EDGES), LABELS).backward()
        if step % 2 == 0:
            rebalance_(twin, X, EDGES, towards=criterion, optimizer=other)
        other.step()
    assert schedule.times == 2
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), weight, rtol=1e-9, atol=1e-12)


def sweep_as_the_paper_does(layers, criterion):
    """One pass of "Dynamic Rescaling for Training GNNs", without its limits of a factor."""
    for layer, following in pairwise(layers):
        for i in range(layer.out_channels):
            sides = [layer.lin_l.weight[i], layer.att[0, 0, i : i + 1], following.lin_l.weight[:, i]]
            gradients = [layer.lin_l.weight.grad[i], layer.att.grad[0, 0, i : i + 1], following.lin_l.weight.grad[:, i]]
            if criterion == "c":
                into, a, out = (side.square().sum() for side in sides)
                s = ((out + a) / into) ** (1 / 4)
            else:
                into, a, out = ((g / w).square().sum() for w, g in zip(sides, gradients, strict=True))
                s = torch.nan_to_num((into / (out + a)) ** (1 / 8), 1.0)  # a dead neuron has no gradients
            for weight, gradient, factor in zip(sides, gradients, (s, 1 / s, 1 / s), strict=True):
                weight *= factor
                gradient /= factor


@pytest.mark.parametrize("criterion", ["c", "relative-gradients"])
def test_it_is_where_the_sweeps_of_the_paper_end(criterion):
    torch.manual_seed(0)
    model = gat(5, 3, hidden_channels=4, layers=4).double()
    twin = copy.deepcopy(model)
    for network in (model, twin):
        nn.functional.cross_entropy(network(X, EDGES), LABELS).backward()
    with torch.no_grad():
        for _ in range(200):
            sweep_as_the_paper_does(twin.convs, criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Rebalance(model, X, EDGES, optimizer=optimizer, towards=criterion):
        optimizer.step()
    for weight, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(weight.grad, expected.grad, rtol=1e-9, atol=1e-12)


def test_c_stays_small_where_adam_would_move_it(model):
    laws, optimizer = find_laws(model, X, EDGES), OPTIMIZERS["Adam"](model)
    rebalance_(model, X, EDGES, optimizer=optimizer)
    train(model, optimizer, 40)
    drifted = float(laws.normalized_c().abs().max())
    with Rebalance(model, X, EDGES, optimizer=optimizer, every=1):
        train(model, optimizer, 40)
    kept = float(laws.normalized_c().abs().max())
    assert kept < drifted / 3


def test_undoing_ends_it(model):
    optimizer = OPTIMIZERS["SGD"](model)
    with Rebalance(model, X, EDGES, optimizer=optimizer, every=1) as schedule:
        train(model, optimizer, 2)
    train(model, optimizer, 2)
    assert schedule.times == 2
    assert str(schedule) == "rebalance:\n  Stack: 12 laws, towards c, every 1 steps"


def test_what_does_not_fit_is_refused(model):
    optimizer = OPTIMIZERS["SGD"](model)
    with pytest.raises(InputError, match="every to be a positive number of steps, got 0"):
        Rebalance(model, X, EDGES, optimizer=optimizer, every=0)
    with pytest.raises(InputError, match="'c' or 'relative-gradients', got 'norm'"):
        Rebalance(model, X, EDGES, optimizer=optimizer, towards="norm")
    line = nn.Linear(3, 2)
    with pytest.raises(ModelError, match="Expected a model with laws"):
        Rebalance(line, torch.ones(2, 3), optimizer=torch.optim.SGD(line.parameters()))
    gelu = nn.Sequential(line, nn.GELU(), nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"got none \([^(]*: gelu in 1 does not commute"):
        Rebalance(gelu, torch.ones(2, 3), optimizer=torch.optim.SGD(gelu.parameters()))
    assert not optimizer._optimizer_step_pre_hooks
