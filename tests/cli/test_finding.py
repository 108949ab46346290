import math
from dataclasses import replace

import numpy as np
import pytest

from gatdiag.cli.finding import Finding, finding_of, spoken, verdict
from gatdiag.run import load
from tests.run.synthetic import synthetic_run

STUCK = Finding("xavier", 100, 1.39, 1.385, 0.25, 0.26, 1, 1e-4, 0.5, 1.3)
MOVING = Finding("balanced-orthogonal", 100, 1.42, 0.3, 0.95, 0.941, 80, 2e-2, 0.1, 1e-7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "xavier"
    synthetic_run(folder, steps=30, layers=5, neurons=4, seed=0)
    return load(folder)


def test_numbers_are_those_of_the_tables(run):
    finding = finding_of(run)
    steps = run.steps
    assert (finding.name, finding.epochs) == (run.name, 30)
    assert finding.first_loss == steps["loss"][0]
    assert finding.best_loss == steps["loss"].min()
    best = int(steps["val_accuracy"].argmax())
    assert (finding.val_accuracy, finding.best_epoch) == (steps["val_accuracy"].max(), best + 1)
    assert finding.test_accuracy == steps["test_accuracy"][best]


def test_the_gradient_is_the_median_over_hidden_layers_and_steps(run):
    table = run.parameters
    hidden = [
        row.relative_gradient_norm
        for row in table.itertuples()
        if row.role == "feature weight" and row.layer in run.layer_names[1:-1]
    ]
    assert finding_of(run).hidden_gradient == pytest.approx(float(np.median(hidden)))


def test_unchanged_weights_are_counted_one_by_one(run):
    before, after = run.snapshot("initial"), run.snapshot("final")
    pairs = [pair for name in before for pair in zip(before[name].flat, after[name].flat, strict=True)]
    expected = sum(old == new for old, new in pairs) / len(pairs)
    assert finding_of(run).unchanged == pytest.approx(expected)


def test_imbalance_is_the_largest_c_of_the_first_step(run):
    neurons = run.neurons
    assert finding_of(run).imbalance == pytest.approx(neurons[neurons["step"] == 0]["c"].abs().max())


def test_the_verdict_says_which_network_trains():
    text = verdict([STUCK, MOVING])
    assert "With Xavier weights the network does not train: in 100 epochs the loss goes from 1.39 to no less" in text
    assert "With balanced orthogonal weights the network trains: the loss falls from 1.42 to 0.3" in text
    assert "94.1% of the test nodes" in text
    assert "are 200 times as large with balanced orthogonal weights as with Xavier ones" in text


def test_the_verdict_follows_the_numbers():
    text = verdict([MOVING, STUCK])
    assert text.index("network trains") < text.index("does not train")
    assert "are 200 times as large with balanced orthogonal weights" in text
    assert "does not train" not in verdict([MOVING, replace(MOVING, name="xavier")])
    assert "does not train" in verdict([STUCK, replace(STUCK, best_loss=math.nan)])


@pytest.mark.parametrize("gradient", [0.0, math.nan])
def test_what_cannot_be_compared_is_left_out(gradient):
    assert "times as large" not in verdict([replace(STUCK, hidden_gradient=gradient), MOVING])


def test_names_are_spoken():
    assert [spoken("xavier"), spoken("balanced-orthogonal")] == ["Xavier", "balanced orthogonal"]
