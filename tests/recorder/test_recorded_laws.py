"""c can be computed again from a run's laws and snapshots, without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.recorder import RecordingWarning


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(7, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.second.weight

    def forward(self, x, edge_index):
        return self.last(self.second(self.first(x).relu()).relu())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.convs = nn.Linear(7, 6), nn.ModuleList(gnn.GCNConv(6, 6) for _ in range(2))
        self.outward = nn.Linear(6, 3)

    def forward(self, x, edge_index):
        x = self.inward(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.outward(x)


MODELS = {
    "GAT, averaged heads": lambda: nn.ModuleList([gnn.GATConv(7, 4, heads=2, concat=False), gnn.GATConv(4, 3)]),
    "GATv2, heads": lambda: gnn.GAT(7, 8, 3, out_channels=3, heads=4, v2=True),
    "residual": Residual,
    "batch norm": lambda: gnn.GCN(7, 8, 3, out_channels=3, norm="batch_norm"),
    "tied weights": Tied,
}


class Chain(nn.Module):
    def __init__(self, convs):
        super().__init__()
        self.convs = convs

    def forward(self, x, edge_index):
        first, last = self.convs
        return last(first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("name", MODELS)
def test_c_can_be_computed_again(tmp_path, name):
    torch.manual_seed(1)
    model = MODELS[name]()
    model = Chain(model) if isinstance(model, nn.ModuleList) else model
    x, edges = torch.randn(30, 7), torch.randint(0, 30, (2, 90))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(5):
            last = {key: value.detach().clone().numpy() for key, value in model.named_parameters()}
            model(x, edges).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    found = gatdiag.find_laws(model, x, edges)
    assert [(law.name, law.terms) for law in run.laws] == [(law.name, law.terms) for law in found]
    recorded = run.neurons.pivot_table(index="step", columns="law", values="c").to_numpy()
    close = {"rel": 1e-12, "abs": 1e-12}
    assert len(found) > 0
    assert run.laws.c(run.snapshot("initial")) == pytest.approx(recorded[0], **close)
    assert run.laws.c(last) == pytest.approx(recorded[-1], **close)
    assert run.laws.c(run.snapshot("final")) == pytest.approx(found.c().numpy(), **close)
    assert np.abs(recorded[-1] - recorded[0]).max() > 1e-9


def test_where_layers_are_left_out_c_is_undefined(tmp_path):
    model = gnn.GCN(7, 8, 3, out_channels=3)
    x, edges = torch.randn(30, 7), torch.randint(0, 30, (2, 90))
    with gatdiag.watch(model, tmp_path / "run", include="convs.0"):
        model(x, edges).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.05).step()
    run = gatdiag.load(tmp_path / "run")
    assert len(run.laws) == 8
    assert np.isnan(run.laws.c(run.snapshot("initial"))).all()
    assert run.laws.c({name: value.detach().numpy() for name, value in model.named_parameters()}).shape == (8,)


def test_torch_is_not_needed_to_read_them(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(5, 4)
    with gatdiag.watch(model, tmp_path / "run"):
        model(x).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.05).step()
    code = (
        "import sys, gatdiag; run = gatdiag.load(sys.argv[1]); print(run.laws[1]); "
        "print(len(run.laws.c(run.snapshot('initial')))); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["layer 1 (0), neuron 1: 0.weight[1, :] + 0.bias[1] - 2.weight[:, 1]", "3"]


class Switching(nn.Module):
    """Takes another branch from a step on, in which its units do not scale."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.has_switched = False

    def forward(self, x):
        h = self.first(x)
        return self.last(h.tanh() if self.has_switched else h.relu())


def test_laws_that_are_violated_later_are_marked_from_that_step_and_said_once(tmp_path):
    model, x, y = Switching(), torch.randn(20, 5), torch.arange(20) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(RecordingWarning, match="from step 3 on, 8 of 8 conservation laws are violated") as caught:
        with gatdiag.watch(model, tmp_path / "run"):
            for step in range(8):
                model.has_switched = step >= 3
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert len(caught) == 1
    run = gatdiag.load(tmp_path / "run")
    violated = {one["law"]: one["step"] for one in run.meta["laws"]["violated"]}
    assert [*violated] == [*range(8)]
    assert {3} <= {*violated.values()} <= {3, 4}  # a unit may be dead at one of them
    delta = run.neurons.groupby("step")["delta"].apply(lambda values: values.abs().max())
    assert (delta[:3] < 1e-6).all()
    assert (delta[3:] > 1e-4).all()
    assert "law-broken" in [finding.code for finding in gatdiag.diagnose(run).findings]
