from dataclasses import replace

import pytest
import torch

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from reports.papers.beyond_rebalancing import EXPERIMENT, TREATMENTS, describe, grow_, summarize, treat_stuck
from tests.reports.by_hand import descend, loss_of

SMALL = replace(EXPERIMENT, data="csbm", layers=4, width=6, learning_rate=0.05)
STUCK, EPOCHS = 10, 10


@pytest.fixture(scope="module")
def graph():
    return prepared_graph("csbm:nodes=100,classes=2,features=8,degree=4")


@pytest.fixture(scope="module")
def measured(graph):
    return treat_stuck(graph, 0, SMALL, STUCK, EPOCHS)


def test_without_treatment_training_goes_on_as_if_nothing_had_been(graph, measured):
    trained, treated = measured
    model = prepared_model(SMALL, graph)
    alone = trained[trained["treatment"] == "nothing"]
    assert alone["step"].to_list() == [0, 10, 10, 20]
    descend(model, graph, 0.05, STUCK)
    loss = loss_of(model, graph)
    assert float(loss.detach()) == pytest.approx(alone["loss"].iloc[1], rel=1e-6)
    found = treated[treated["treatment"] == "nothing"]
    for layer, conv in enumerate(model.convs):
        weight = conv.lin_l.weight
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        squares = (sum(float(entry) ** 2 for entry in tensor.detach().flatten()) for tensor in (gradient, weight))
        assert found["weight"].iloc[layer] == pytest.approx((next(squares) / next(squares)) ** 0.5, rel=1e-4)
    descend(model, graph, 0.05, EPOCHS)
    assert float(loss_of(model, graph).detach()) == pytest.approx(alone["loss"].iloc[-1], rel=1e-6)


def test_rebalancing_leaves_the_logits_and_growing_makes_their_size_one(measured):
    at_once = measured[1].groupby("treatment")[["size", "moved"]].first()
    assert [*at_once.index] == sorted(TREATMENTS)
    assert at_once.loc[["nothing", "rebalance", "rebalance relative gradients"], "moved"].max() < 1e-5
    assert at_once.loc[["grow", "rebalance and grow"], "size"].to_list() == pytest.approx([1, 1], rel=1e-4)
    assert at_once.loc["balanced weights anew", "moved"] > 0.1


def test_growing_multiplies_all_feature_weights_by_one_factor_and_nothing_else(graph):
    model = prepared_model(SMALL, graph)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    grow_(model, graph)
    factors = {name: weight.detach() / before[name] for name, weight in model.named_parameters()}
    expected = factors["convs.0.lin_l.weight"][0, 0]
    assert expected > 1
    for name, factor in factors.items():
        torch.testing.assert_close(factor, (torch.ones_like(factor) if "att" in name else expected.expand_as(factor)))


def test_the_report_says_what_is_not_shown(measured):
    table = summarize(*measured)
    text = describe(table)
    assert "**Not shown:** One factor for all feature weights" in text
    assert "- Shown: Rebalancing preserves the logits" in text
    assert table["treatment"].to_list() == [*TREATMENTS]
    assert table["fell"].to_list() == pytest.approx((1 - table["loss"] / table["loss_before"]).to_list())
    assert table["loss_before"].nunique() == 1
