"""assert_trains: what passes, what fails and with which words."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.errors import InputError
from gatdiag.testing import assert_trains

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
X[:, 0] += 4 * Y


def make():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def loop(*, lr=0.01, steps=60, clears=True):
    def train(model, recorder):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(steps):
            if clears:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()

    return train


def test_a_training_that_works_passes_with_its_diagnoses(tmp_path):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    diagnoses = assert_trains(make, loop(), seeds=(3, 4), folder=tmp_path)
    assert [diagnosis.state for diagnosis in diagnoses] == ["trained", "trained"]
    runs = [gatdiag.load(tmp_path / f"seed-{seed}") for seed in (3, 4)]
    assert [len(run.layers.step.unique()) for run in runs] == [60, 60]
    assert runs[0].steps.loss[0] != runs[1].steps.loss[0]
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_one_that_fails_says_why(tmp_path):
    with pytest.raises(AssertionError) as failed:
        assert_trains(make, loop(lr=1e-7), folder=tmp_path)
    text = str(failed.value)
    assert text.startswith("with seed 0 training is failing (the loss went from ")
    assert "[lr-too-small]" in text
    assert "  to paste:\n" in text
    assert text.endswith(f"\nSee gatdiag report {tmp_path / 'seed-0'}")
    assert gatdiag.diagnose(tmp_path / "seed-0").verdict.code == "lr-too-small"


def test_too_little_to_say_fails():
    with pytest.raises(AssertionError, match=r"training is unknown \(only 5 steps were recorded"):
        assert_trains(make, loop(steps=5))


@pytest.mark.filterwarnings("ignore:gatdiag")
def test_a_finding_fails_at_its_severity_even_if_it_trains():
    train = loop(clears=False)
    (diagnosis,) = assert_trains(make, train)
    assert (diagnosis.state, diagnosis.verdict.code) == ("trained", "gradients-not-cleared")
    with pytest.raises(AssertionError, match="gradients-not-cleared"):
        assert_trains(make, train, fail_on=diagnosis.verdict.severity)


def test_exceptions_are_passed_on():
    with pytest.raises(ZeroDivisionError):
        assert_trains(make, lambda model, recorder: 1 / 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((lambda: "a model", loop()), "make_model.. returned str, expected a torch.nn.Module"),
        ((make, loop(), "fatal"), "fail_on: expected one of error, warning, note, got 'fatal'"),
    ],
)
def test_wrong_arguments_are_named(arguments, says):
    make_model, train, *level = arguments
    with pytest.raises(InputError, match=says):
        assert_trains(make_model, train, fail_on=level[0] if level else "error")


@pytest.mark.parametrize("seeds", [(), 5])
def test_without_a_seed_nothing_is_asserted_and_that_is_refused(seeds):
    with pytest.raises(InputError, match="seeds: expected at least one number"):
        assert_trains(lambda: nn.Linear(1, 1), lambda model, recorder: None, seeds=seeds)
