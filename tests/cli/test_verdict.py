import math

import numpy as np
import pytest

from gatdiag.cli.verdict import Numbers, numbers_of, spoken, verdict
from gatdiag.run import load
from tests.report.builder import build
from tests.run.synthetic import synthetic_run

STUCK = Numbers("xavier", "stuck", 100, 1.39, 1.385, 0.25, 0.26, 1, 1e-4, 0.5, 1.3)
MOVING = Numbers("balanced-orthogonal", "trains", 100, 1.42, 0.3, 0.95, 0.941, 80, 2e-2, 0.1, 1e-7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "xavier"
    synthetic_run(folder, steps=30, layers=5, neurons=4, seed=0)
    return load(folder)


def test_numbers_are_those_of_the_tables(run):
    numbers = numbers_of(run)
    steps = run.steps
    assert (numbers.name, numbers.epochs) == (run.name, 30)
    assert numbers.first_loss == steps["loss"][0]
    assert numbers.best_loss == steps["loss"].min()
    best = int(steps["val_accuracy"].argmax())
    assert (numbers.val_accuracy, numbers.best_epoch) == (steps["val_accuracy"].max(), best + 1)
    assert numbers.test_accuracy == steps["test_accuracy"][best]


def test_the_gradient_is_the_median_over_hidden_layers_and_steps(run):
    table = run.parameters
    hidden = [
        row.relative_gradient_norm
        for row in table.itertuples()
        if row.role == "feature weight" and row.layer in run.layer_names[1:-1]
    ]
    assert numbers_of(run).hidden_gradient == pytest.approx(float(np.median(hidden)))


def test_unchanged_weights_are_counted_one_by_one(run):
    before, after = run.snapshot("initial"), run.snapshot("final")
    pairs = [pair for name in before for pair in zip(before[name].flat, after[name].flat, strict=True)]
    expected = sum(old == new for old, new in pairs) / len(pairs)
    assert numbers_of(run).unchanged == pytest.approx(expected)


def test_imbalance_is_the_largest_c_of_the_first_step(run):
    neurons = run.neurons
    assert numbers_of(run).imbalance == pytest.approx(neurons[neurons["step"] == 0]["c"].abs().max())


def test_the_verdict_says_which_network_trains():
    text = verdict([STUCK, MOVING], 4)
    assert "With Xavier weights the network does not train: in 100 epochs the loss goes from 1.39 to no less" in text
    assert "With balanced orthogonal weights the network trains: the loss falls from 1.42 to 0.3" in text
    assert "94.1% of the test nodes correctly (guessing: 25.0%)" in text
    assert "are 200 times as large with balanced orthogonal weights as with Xavier ones" in text


def test_the_verdict_follows_the_numbers():
    text = verdict([MOVING, STUCK], 4)
    assert text.index("network trains") < text.index("does not train")
    assert "are 200 times as large with balanced orthogonal weights" in text
    assert "does not train" not in verdict([MOVING, MOVING._replace(name="xavier")], 4)


def test_two_networks_that_fail_are_neither():
    text = verdict([STUCK, STUCK._replace(name="balanced-orthogonal", epochs=20)], 4)
    assert text.startswith("Neither network trains. With Xavier weights the network does not train: in 100 epochs")
    assert "With balanced orthogonal weights the network does not train: in 20 epochs" in text
    assert "Neither" not in verdict([STUCK, MOVING], 4)


@pytest.mark.parametrize(
    ("epochs", "course"), [(1, "in 1 epoch the loss is 1.39, and"), (19, "in 19 epochs the loss goes from 1.39 to")]
)
def test_a_few_epochs_do_not_tell(epochs, course):
    early = STUCK._replace(epochs=epochs, outcome="too early")
    text = verdict([early, MOVING._replace(epochs=epochs)], 4)
    assert f"With Xavier weights it is too early to tell whether the network trains: {course}" in text
    assert "With balanced orthogonal weights the network trains" in text
    text = verdict([early, early], 4)
    assert text.count("too early to tell") == 2
    assert "does not train" not in text
    assert "Neither" not in text


def test_a_broken_loss_is_the_finding():
    text = verdict([MOVING._replace(name="xavier", outcome="broken", broke="NaN at epoch 7"), STUCK], 4)
    assert text.startswith("With Xavier weights the loss became NaN at epoch 7. With Xavier weights the network does")
    assert "times as large" not in text
    assert "Neither" not in text


@pytest.mark.parametrize(
    ("losses", "broke"),
    [
        ([1.4, 0.2, math.nan, math.nan], "NaN at epoch 3"),
        ([1.4, math.inf, math.nan, math.nan], "infinite at epoch 2"),
        ([math.nan] * 4, "NaN at epoch 1"),
        ([1.4, 1.3, 1.2, 1.1], ""),
    ],
)
def test_where_the_loss_broke_is_counted_from_1(tmp_path, losses, broke):
    numbers = numbers_of(build(tmp_path / "run", logged={"loss": losses}))
    assert numbers.broke == broke
    assert (numbers.outcome == "broken") == bool(broke)


def test_without_hidden_layers_there_is_no_gradient_of_them(tmp_path):
    synthetic_run(tmp_path / "run", steps=3, layers=2, neurons=4)
    assert math.isnan(numbers_of(load(tmp_path / "run")).hidden_gradient)


@pytest.mark.parametrize("gradient", [0.0, math.nan])
def test_what_cannot_be_compared_is_left_out(gradient):
    assert "times as large" not in verdict([STUCK._replace(hidden_gradient=gradient), MOVING], 4)


def test_names_are_spoken():
    assert [spoken("xavier"), spoken("balanced-orthogonal")] == ["Xavier", "balanced orthogonal"]
