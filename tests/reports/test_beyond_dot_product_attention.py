from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
import torch

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.models import build
from gatdiag.experiments.settings import Network
from reports.papers.beyond_dot_product_attention import (
    EXPERIMENT,
    count_laws,
    describe,
    matrix_c,
    matrix_law,
    measure_steps,
    summarize,
)
from reports.papers.measurements import to_double, train_at_rates
from tests.laws.referee import count_laws as count_by_referee
from tests.reports.by_hand import descend, loss_of

SMALL = replace(EXPERIMENT, data="csbm", layers=2, width=3, learning_rate=0.2, epochs=10)


@pytest.fixture(scope="module")
def graph():
    return to_double(prepared_graph("csbm:nodes=100,classes=2,features=4,degree=4"))


def test_the_matrix_law_is_what_moving_the_weights_does_to_the_loss(graph):
    model = prepared_model(SMALL, graph).double()
    loss_of(model, graph).backward()
    left, right = matrix_law(model.convs[0])
    step, head = 1e-5, 1
    rows = slice(head * 3, head * 3 + 3)
    for a, b in ((0, 0), (0, 2), (2, 1)):
        for weight, expected in (
            (model.convs[0].lin_query.weight, left[head][b, a]),  # Q[a] += step Q[b]
            (model.convs[0].lin_key.weight, right[head][a, b]),  # K[a] += step K[b]
        ):
            losses = []
            for sign in (1, -1):
                before = weight.detach().clone()
                with torch.no_grad():
                    weight[rows][a] += sign * step * before[rows][b]
                    losses.append(float(loss_of(model, graph)))
                    weight.copy_(before)
            assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(float(expected), rel=1e-4, abs=1e-11)


def by_loops(model):
    """Query against key for all pairs of channels of each head: (layer, row, row) -> dot product less dot product."""
    pairs = [
        (layer, head * conv.out_channels + i, head * conv.out_channels + j)
        for layer, conv in enumerate(model.convs)
        for head, i, j in product(range(conv.heads), range(conv.out_channels), range(conv.out_channels))
    ]
    weights = [(conv.lin_query.weight.tolist(), conv.lin_key.weight.tolist()) for conv in model.convs]
    dot = lambda rows, i, j: sum(x * y for x, y in zip(rows[i], rows[j], strict=True))  # noqa: E731
    return {(layer, i, j): dot(weights[layer][0], i, j) - dot(weights[layer][1], i, j) for layer, i, j in pairs}


def test_the_drift_of_the_matrix_is_that_of_steps_made_by_hand(graph):
    found = train_at_rates(graph, (0.2,), replace(SMALL, epochs=3), measure_steps)
    model = prepared_model(SMALL, graph).double()
    first = by_loops(model)
    assert matrix_c(model.convs[0])[1, 0, 2] == pytest.approx(first[0, 3, 5])
    descend(model, graph, 0.2, 3)
    moved = {place: abs(value - first[place]) for place, value in by_loops(model).items()}
    last = found.iloc[-1]
    for name, is_diagonal in (("drift_diagonal", True), ("drift_off_diagonal", False)):
        expected = max(value for (_, i, j), value in moved.items() if (i == j) == is_diagonal)
        assert last[name] == pytest.approx(expected, abs=1e-15)


def test_as_many_laws_are_found_as_the_referee_counts(graph):
    found = count_laws(graph, depths=(2,), heads=(2,))
    for row in found.itertuples():
        network = Network(model="transformer", layers=2, width=3, heads=2, activation=row.activation)
        assert row.found == row.null_space == count_by_referee(build(network, 4, 2), (graph.x, graph.edge_index))
        assert row.matrix == row.channels_squared == 2 * 3**2 + 2**2


def test_the_laws_hold_in_training_and_the_transposed_one_does_not(graph):
    runs = train_at_rates(graph, (0.05, 0.025), replace(SMALL, epochs=5), measure_steps)
    assert runs[["diagonal", "off_diagonal", "found"]].max(axis=None) < 1e-9 < 1e-3 < runs["transposed"].min()
    assert runs["unexplained"].max() < 1e-14 < runs["drift_off_diagonal"].iloc[-1]
    numbers = count_laws(graph, depths=(1,), heads=(1,)).assign(null_space=3)
    both = pd.concat([runs.assign(graph="block model"), runs.assign(graph="Cora")])
    table = pd.concat([numbers.assign(part="counts"), summarize(both)])
    text = describe(table)
    assert "**Not shown:** `gatdiag.find_laws` finds as many" in text
    assert text.startswith("7 of 8 statements")
    assert describe(table.drop(columns="worst_off_diagonal")).startswith("3 of 4 statements")
