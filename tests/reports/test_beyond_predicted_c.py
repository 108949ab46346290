from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from reports.papers import beyond_predicted_c
from reports.papers.beyond_predicted_c import (
    CONTROL,
    EXPERIMENT,
    OPTIMIZERS,
    describe,
    measure,
    record_predictions,
    summarize,
    summarize_all,
)

SMALL = replace(EXPERIMENT, data="csbm", layers=2, width=4, epochs=3)


@pytest.fixture(scope="module")
def graph():
    return prepared_graph("csbm:nodes=100,classes=2,features=5,degree=4")


def c_by_loops(model):
    first, last = (dict(conv.named_parameters()) for conv in model.convs)
    return [
        sum(entry**2 for entry in first["lin_l.weight"][neuron].tolist())
        - first["att"][0, 0, neuron].item() ** 2
        - sum(row[neuron] ** 2 for row in last["lin_l.weight"].tolist())
        for neuron in range(4)
    ]


@pytest.mark.parametrize("optimizer", ["Nesterov, weight decay", "AdamW"])
def test_recorded_c_is_that_of_a_training_by_hand_and_what_was_predicted(optimizer, graph):
    found = record_predictions(graph, optimizer, double=True, experiment=SMALL)
    model = prepared_model(SMALL, graph).double()
    stepping = OPTIMIZERS[optimizer](model.parameters())
    expected = []
    for _ in range(3):
        expected.append(c_by_loops(model))
        stepping.zero_grad()
        logits = model(graph.x.double(), graph.edge_index)
        F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
        stepping.step()
    c = found.pivot(index="step", columns="law", values="c")
    torch.testing.assert_close(torch.tensor(c.to_numpy()), torch.tensor(expected, dtype=torch.float64))
    numbers = summarize(found)
    assert numbers["error"] < 1e-14 < 1e-6 < numbers["step"] <= numbers["drift"]


def test_the_control_is_not_predicted_and_the_report_says_so(graph):
    names = ("SGD", "Adam", CONTROL)
    tables = [
        record_predictions(graph, name, double, SMALL).assign(optimizer=name, precision=precision)
        for precision, double in (("float32", False), ("float64", True))
        for name in names
    ]
    sgd, _, control, *_ = map(summarize, tables)
    assert control["error"] > 100 * sgd["error"]
    numbers = summarize_all(pd.concat(tables))
    assert numbers["optimizer"].to_list() == 2 * [*names]
    assert describe(numbers).startswith("4 of 4 statements are shown")
    unpredicted = summarize_all(pd.concat([tables[0].assign(predicted_c=0.0), *tables[1:]]))
    assert "**Not shown:** In float32" in describe(unpredicted)


def test_evidence_trains_on_the_graph_of_its_settings(graph, monkeypatch):
    seen = []

    def graph_of(experiment, root):
        seen.append((experiment.data, experiment.transform, root))
        return graph

    monkeypatch.setattr(beyond_predicted_c, "graph_of", graph_of)
    monkeypatch.setattr(beyond_predicted_c, "EXPERIMENT", SMALL)
    monkeypatch.setattr(beyond_predicted_c, "OPTIMIZERS", {name: OPTIMIZERS[name] for name in ("SGD", "Adam")})
    table, pictures = measure("here")
    assert seen == [("csbm", "none", "here")]
    assert table["optimizer"].to_list() == 2 * ["SGD", "Adam", CONTROL]
    assert pictures["predicted-c.png"].startswith(b"\x89PNG")


def test_a_summary_by_hand():
    table = pd.DataFrame(
        {
            "step": [0, 0, 1, 1, 2, 2],
            "law": [0, 1, 0, 1, 0, 1],
            "c": [1.0, -2.0, 1.5, -2.0, 1.0, -4.0],
            "predicted_c": [9.0, 9.0, 1.25, -2.0, 0.75, -3.0],
            "loss": [3.0, 3.0, 2.0, 2.0, 1.0, 1.0],
        }
    )
    assert summarize(table) == {
        "drift": 2.0,
        "step": 2.0,
        "error": 1.0,
        "relative_error": 0.25,
        "of_step": 0.5,
        "accumulated": 1.0,
        "loss": 1.0,
    }
