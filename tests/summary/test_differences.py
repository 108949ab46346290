"""Differences of two runs, against known differences."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.summary import differences, results


def recorded(folder, *, scale=1.0, freeze=None, steps=4, hidden=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    with torch.no_grad():
        model[0].weight *= scale
    if freeze is not None:
        model[freeze].requires_grad_(False)
    x = torch.randn(8, 4)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with gatdiag.watch(model, folder) as recorder:
        for _ in range(steps):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.log(loss=loss)
    return gatdiag.load(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("runs") / "plain")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("runs") / "scaled", scale=1.5)


def row(table, layer, quantity, role="feature weight"):
    found = table[(table.layer == layer) & (table.quantity == quantity) & (table.role == role)]
    assert len(found) == 1
    return found.iloc[0]


def test_a_run_does_not_differ_from_its_repetition(tmp_path, plain):
    table = differences(plain, recorded(tmp_path / "b"))
    assert len(table) > 20
    assert (table.difference == 0).all()


@pytest.mark.parametrize("when", ["last", "median"])
def test_values_are_those_of_the_tables(plain, scaled, when):
    runs = plain, scaled
    table = differences(*runs, when=when)
    found = row(table, "0", "norm")
    for run, value in zip(runs, (found["first"], found["second"]), strict=True):
        norms = run.parameters[run.parameters.parameter == "0.weight"].norm
        assert value == (norms.iloc[-1] if when == "last" else norms.median())
    a, b = found["first"], found["second"]
    assert found.factor == b / a
    assert found.difference == pytest.approx(abs(math.log10(a) - math.log10(b)))
    assert table.difference.min() >= 0
    assert table.difference.is_monotonic_decreasing


def test_shares_differ_by_themselves(tmp_path, plain):
    table = differences(plain, recorded(tmp_path / "b", freeze=0), when="last")
    found = row(table, "0", "unchanged_fraction")
    assert found["second"] == 1
    assert found.difference == pytest.approx(1 - found["first"])
    assert math.isnan(found.factor)


def test_c_is_compared_with_the_weights_of_a_neuron(plain, scaled):
    table = differences(plain, scaled, when="last")
    found = row(table, "0", "c", role="")
    squares = sum(
        run.parameters[run.parameters.parameter == "0.weight"].norm.iloc[-1] ** 2 / 5 for run in (plain, scaled)
    )
    assert found.difference == pytest.approx(min(1, abs(found["first"] - found["second"]) / squares))


def test_what_is_not_finite_in_one_run_alone_differs_most(tmp_path, plain):
    table = differences(plain, recorded(tmp_path / "b", scale=math.inf), when="last")
    assert row(table, "0", "norm").difference == math.inf
    assert not np.isnan(table.difference).any()


def test_layers_of_one_run_alone_are_left_out(tmp_path, plain):
    with gatdiag.watch(nn.Sequential(nn.Linear(4, 4)), tmp_path / "b") as recorder:
        recorder.step()
    assert set(differences(plain, gatdiag.load(tmp_path / "b")).layer) <= {"0", ""}


def test_results_are_the_loss_and_the_scores_at_the_best_step(tmp_path):
    model = nn.Linear(2, 2)
    for name, logged in (("a", {"val_acc": 0.5, "test_acc": 0.375}), ("b", {"val_auc": 0.25})):
        with gatdiag.watch(model, tmp_path / name, metrics="fast", every=1 + (name == "b")) as recorder:
            for step, loss in enumerate((3.0, 1.0, 2.0)):
                recorder.step()
                recorder.log(loss=loss, **{key: value - step / 8 for key, value in logged.items()})
    runs = [gatdiag.load(tmp_path / name) for name in "ab"]
    assert results(runs) == {
        "validation score": [0.5, 0.25], "test score": [0.375, None], "best step": [0, 0], "first loss": [3, 3],
        "best loss": [1, 1], "last loss": [2, 2], "depth": [1, 1], "steps": [3, 3],
        "recorded steps": [3, 2],
    }  # fmt: skip
    assert [*results(runs[:1])][:2] == ["validation accuracy", "test accuracy"]
