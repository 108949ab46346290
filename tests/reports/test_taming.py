import math

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

import gatdiag
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.experiment import prepared_model, run_experiment
from gatdiag.experiments.settings import Experiment
from reports.papers.taming import (
    TRAINING,
    judge_layers,
    judge_training,
    smoothing,
)


def mu(matrix):
    """Node by node, from the mean row."""
    rows = matrix.double().tolist()
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return math.sqrt(sum((value - middle) ** 2 for row in rows for value, middle in zip(row, mean, strict=True)))


@pytest.mark.parametrize("weight_norm", [0.0, 4.0])
def test_smoothing_is_that_of_the_first_step_by_hand(weight_norm, tmp_path):
    settings = {**TRAINING, "data": "csbm:nodes=200,features=16", "epochs": 2, "weight_norm": weight_norm}
    experiment = Experiment(**settings, model="gcn", residual=True, layers=5, width=8)
    run_experiment(experiment, folder=tmp_path / "run", every=1)
    measured = smoothing(gatdiag.load(tmp_path / "run"))

    graph = load_graph(experiment.data)
    model, outputs = prepared_model(experiment, graph), []
    for conv in model.convs:
        conv.register_forward_hook(lambda _, inputs, output: (output.retain_grad(), outputs.append(output))[0])
    F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask]).backward()
    first, late = outputs[0].grad, outputs[-2].grad
    assert measured["gradient_decades"] == pytest.approx(math.log10(first.norm() / late.norm()), abs=1e-4)
    assert measured["gradient_mu_decades"] == pytest.approx(math.log10(mu(first) / mu(late)), abs=1e-4)
    assert measured["relative_gradient_mu"] == pytest.approx(mu(first) / float(first.norm()), rel=1e-4)
    assert measured["relative_mu"] == pytest.approx(
        mu(outputs[-2].detach()) / float(outputs[-2].detach().norm()), rel=1e-4
    )
    for conv in model.convs:
        size = float(torch.linalg.vector_norm(conv.lin.weight.detach()))
        assert not weight_norm or size == pytest.approx(4, rel=1e-5)


def test_what_is_said_of_layers_follows_the_numbers():
    common = {"layers": 64, "gradient_mu_decades": -9.0, "relative_gradient_mu": 0.99}
    rows = [
        {**common, "model": "gcn", "residual": False, "weight_norm": 0.0, "gradient_decades": -9.0},
        {**common, "model": "gat", "residual": False, "weight_norm": 0.0, "gradient_decades": -1.0,
         "relative_gradient_mu": 1e-8},
        {**common, "model": "gcn", "residual": True, "weight_norm": 0.0, "gradient_decades": 9.5,
         "gradient_mu_decades": 9.25},
        {**common, "model": "gcn", "residual": True, "weight_norm": 4.0, "gradient_decades": 2.0,
         "gradient_mu_decades": 2.0},
        {**common, "model": "gat", "residual": True, "weight_norm": 0.0, "gradient_decades": math.nan},
    ]  # fmt: skip
    sentences = judge_layers(pd.DataFrame(rows))
    assert [sentence.partition(": ")[0] for sentence in sentences] == [
        "GAT of 64 layers, not normalized",
        "residual GAT of 64 layers, not normalized",
        "GCN of 64 layers, not normalized",
        "residual GCN of 64 layers, not normalized",
        "residual GCN of 64 layers, c = 4",
        "residual GCN of 64 layers",
    ]
    for sentence, words in zip(
        sentences,
        [
            "become alike",
            "not finite",
            "gradients vanish",
            "+9.2 decades",
            "+2.0 decades",
            "limits the expansion",
        ],
        strict=True,
    ):
        assert words in sentence
    assert "does NOT limit" in judge_layers(pd.DataFrame([rows[2], {**rows[3], "gradient_decades": 12.0}]))[-1]


def test_what_is_said_of_training_follows_the_numbers():
    rows = [
        {"model": "gat", "residual": True, "layers": 64, "weight_norm": 0.0, "loss": None, "last_train_accuracy": 0.1},
        {"model": "gcn", "residual": True, "layers": 64, "weight_norm": 4.0, "loss": 0.5, "last_train_accuracy": 0.95},
    ]
    broken, learned = judge_training(pd.DataFrame(rows))
    assert broken == (
        "residual GAT of 64 layers, not normalized: does NOT train (training accuracy 10.0%, loss NaN or infinite)."
    )
    assert learned.startswith("residual GCN of 64 layers, c = 4: trains (training accuracy 95.0%")
