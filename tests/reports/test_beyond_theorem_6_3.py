from dataclasses import replace

import pandas as pd
import pytest
import torch

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from gatdiag.laws import find_laws
from reports.papers.beyond_theorem_6_3 import (
    EXPERIMENT,
    describe,
    draw_networks,
    measure_steps,
    medians,
    sum_both_forms,
    summarize,
)
from reports.papers.measurements import to_double, train_at_rates
from tests.reports.by_hand import descend, loss_of

SMALL = replace(EXPERIMENT, data="csbm", width=4, learning_rate=0.2, epochs=10)


@pytest.fixture(scope="module")
def graph():
    return to_double(prepared_graph("csbm:nodes=100,classes=2,features=5,degree=4"))


def by_loops(model, values):
    """Both forms, neuron by neuron and entry by entry; values: name of a parameter -> what is summed."""
    published, corrected = [], []
    for layer in range(len(model.convs) - 1):
        for neuron in range(model.convs[layer].out_channels):
            total = -float(values[f"convs.{layer}.att"][0, 0, neuron])
            for name in ("lin_l", "lin_r"):
                total += sum(float(entry) for entry in values[f"convs.{layer}.{name}.weight"][neuron])
            total -= sum(float(row[neuron]) for row in values[f"convs.{layer + 1}.lin_l.weight"])
            published.append(total)
            corrected.append(total - sum(float(row[neuron]) for row in values[f"convs.{layer + 1}.lin_r.weight"]))
    return torch.tensor(published, dtype=torch.float64), torch.tensor(corrected, dtype=torch.float64)


def test_both_forms_are_the_sums_over_rows_entries_and_columns_and_the_corrected_one_is_what_is_found(graph):
    model = prepared_model(SMALL, graph).double()
    loss_of(model, graph).backward()
    products = {name: weight.detach() * weight.grad for name, weight in model.named_parameters()}
    squares = {name: weight.detach() ** 2 for name, weight in model.named_parameters()}
    for values, of in ((products, lambda weight: weight * weight.grad), (squares, torch.square)):
        torch.testing.assert_close(sum_both_forms(model, of)[:2], by_loops(model, values), rtol=0, atol=1e-14)
    laws = find_laws(model, graph.x, graph.edge_index)
    torch.testing.assert_close(laws.c(), sum_both_forms(model, torch.square)[1])
    assert len(laws) == 8


def test_the_drift_of_c_is_that_of_steps_made_by_hand(graph):
    found = train_at_rates(graph, (0.2,), replace(SMALL, epochs=3), measure_steps)
    model = prepared_model(SMALL, graph).double()
    weights = dict(model.named_parameters())
    first = by_loops(model, {name: weight.detach() ** 2 for name, weight in weights.items()})
    descend(model, graph, 0.2, 3)
    last = by_loops(model, {name: weight.detach() ** 2 for name, weight in weights.items()})
    for form, before, after in zip(("published", "corrected"), first, last, strict=True):
        assert found[f"{form}_drift"].iloc[-1] == pytest.approx(float((after - before).abs().max()), rel=1e-9)


def test_the_corrected_form_holds_and_drifts_half_as_far_at_half_the_rate(graph):
    found = train_at_rates(graph, (0.2, 0.1), SMALL, measure_steps)
    assert found["corrected_largest"].max() < 1e-10 < 1e-4 < found["published_largest"].min()
    fast, slow = (run for _, run in found.groupby("rate", sort=False))
    assert fast["time"].iloc[-1] == pytest.approx(slow["time"].iloc[-1])
    assert fast["corrected_drift"].iloc[-1] / slow["corrected_drift"].iloc[-1] == pytest.approx(2, abs=0.1)
    assert fast["corrected_step"].iloc[-1] / slow["corrected_step"].iloc[-1] == pytest.approx(4, abs=0.3)


def test_random_draws_tell_the_forms_apart_and_elu_from_both_and_what_is_not_shown_is_said(graph):
    draws = draw_networks(graph, depths=(2,), widths=(4,), draws=2)
    worst = draws.groupby("case")[["published_largest", "corrected_largest"]].max()
    assert worst.loc["ReLU", "corrected_largest"] < 1e-10 < 1e-4 < worst.loc["ReLU", "published_largest"]
    assert worst.loc["ReLU, a = 0"].max() < 1e-10
    assert draws[draws["case"] == "ELU"][["published_largest", "corrected_largest"]].min(axis=None) > 1e-4
    runs = train_at_rates(graph, (0.2, 0.1), replace(SMALL, epochs=2), measure_steps)
    table = pd.concat([medians(draws), summarize(runs)])
    text = describe(table)
    assert text.startswith("5 of 7 statements are shown")  # two steps are too few for the orders of drifts
    assert text.count("**Not shown:**") == 2
    assert describe(table.drop(columns="worst_corrected")).startswith("4 of 6 statements are shown")
    assert len(table) == 3 + 2
