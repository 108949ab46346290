"""How synthetic learning curves are judged: by seeds, sign and offset, and with scores."""

import numpy as np
import pytest

from gatdiag.diagnosis import diagnose
from gatdiag.diagnosis.training import judge_course
from tests.page.builder import build

STEPS = np.arange(200)
EXPONENTIAL = np.exp(-STEPS / 30)


def normal(seed, size):
    return size * np.random.default_rng(seed).normal(size=len(STEPS))


TOKENS = {"of_tokens": True, "path": 1.0}
KINDS = {  # curve of a seed, other arguments, the state
    "frozen policy": (lambda seed: normal(seed, 0.05), {"path": 2e-10}, "failing"),
    "moving policy": (lambda seed: normal(seed, 0.05), {"path": 1.0}, "unknown"),
    "frozen at chance": (lambda seed: 1.4 + normal(seed, 0.2), {"path": 1e-8, "chance": 1.4}, "failing"),
    "frozen halfway": (lambda seed: 0.7 + normal(seed, 0.1), {"path": 1e-8, "chance": 1.4}, "failing"),
    "flat": (lambda seed: 5 + normal(seed, 0.5), {"path": 1.0}, "failing"),
    "flat and negative": (lambda seed: -5 + normal(seed, 0.5), {"path": 1.0}, "failing"),
    "falls to nothing": (lambda seed: 2 * EXPONENTIAL + 0.2 + normal(seed, 0.02), {"path": 1.0}, "trained"),
    "falls by two thirds": (lambda seed: 705 + 1937 * EXPONENTIAL + normal(seed, 9), {"path": 1.0}, "trained"),
    "density": (lambda seed: 3 * EXPONENTIAL - 1.5 + normal(seed, 0.1), {"path": 1.0}, "unknown"),
    "offset": (lambda seed: 1000 + 2 * EXPONENTIAL + normal(seed, 0.1), {"path": 1.0}, "unknown"),
    "below zero": (lambda seed: -1000 + 2 * EXPONENTIAL + normal(seed, 0.1), {"path": 1.0}, "unknown"),
    "link prediction": (lambda seed: 1.2 + 0.2 * EXPONENTIAL, {"path": 1.0, "scores": (0.86,)}, "partly"),
    "bad scores": (lambda seed: -EXPONENTIAL[::-1], {"path": 1.0, "scores": (0.1, 0.2)}, "failing"),
    "language": (lambda seed: 2.9 + 1.5 * EXPONENTIAL + normal(seed, 0.05), {"chance": 3.3, **TOKENS}, "unknown"),
    "language, slowly": (lambda seed: 4.6 - STEPS / 170 + normal(seed, 0.05), {"chance": 3.3, **TOKENS}, "unknown"),
    "frequencies": (lambda seed: 3.3 + 1.3 * EXPONENTIAL + normal(seed, 0.05), {"chance": 3.3, **TOKENS}, "failing"),
    "memorized": (lambda seed: 1.4 * EXPONENTIAL + 1e-6, {"chance": 1.4, "scores": (0.1,)}, "trained"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_runs_of_a_kind_have_one_state(kind):
    curve, given, state = KINDS[kind]
    assert {judge_course(curve(seed), len(STEPS), **given).state for seed in range(100)} == {state}


@pytest.mark.parametrize(("pace", "is_early"), [(0.0005, False), (0.001, True)])  # 28 and 56 % after 400 steps
def test_a_loss_that_falls_fast_enough_is_too_early_to_judge(tmp_path, pace, is_early):
    logged = {"loss": 0.69 - pace * STEPS + normal(0, 0.005), "val_accuracy": np.full(200, 0.35)}
    diagnosis = diagnose(build(tmp_path / "run", logged=logged))
    assert diagnosis.state == ("partly" if is_early else "failing")
    assert diagnosis.verdict.code == ("undetermined" if is_early else "unexplained")
    assert ("train longer" in diagnosis.verdict.text) == is_early


@pytest.mark.parametrize("losses", [[], [3.0], np.linspace(-1, -2, 7)])
def test_too_little_is_unknown_with_what_is_missing(losses):
    course = judge_course(np.asarray(losses, float), 300)
    assert course.state == "unknown"
    assert course.reason


def test_a_jump_is_no_start_but_a_warm_up_is_none_either():
    steps = np.arange(200.0)
    falls = 0.1 + 0.9 * np.exp(-steps / 20)
    jumps = np.concatenate([[0.6, 197.0, 490.0], np.geomspace(300.0, 0.6, 60), np.full(137, 0.598)])
    weighed = falls * np.minimum((steps + 0.5) / 10, 1)
    assert judge_course(jumps, 200, path=9.0).state == "unknown"
    assert judge_course(weighed, 200, path=2.0).state == "trained"


def test_what_was_learned_by_heart_is_not_healthy_without_a_training_score(tmp_path):
    logged = {"loss": np.geomspace(1.4, 1e-6, 60), "val_accuracy": np.full(60, 0.35)}
    diagnosis = diagnose(build(tmp_path / "run", logged=logged))
    assert (diagnosis.state, diagnosis.verdict.code) == ("trained", "undetermined")
    assert (
        diagnosis.skipped["overfitting"] == "no training score was logged to compare with val_accuracy, which is 0.35"
    )
    logged["val_accuracy"] = np.full(60, 0.9)  # at most 0.1 below any training score
    assert diagnose(build(tmp_path / "good", logged=logged)).verdict.code == "healthy"


def test_what_moved_c_is_a_remark_and_no_finding(tmp_path):
    neurons = {"c": np.linspace([0.0] * 2, [9.0] * 2, 60), "predicted_c": np.zeros((60, 2))}
    weights = {"norm": np.full((60, 2), 4.0)}
    diagnosis = diagnose(build(tmp_path / "run", weights=weights, neurons=neurons, logged={"loss": np.full(60, 2.0)}))
    assert "moved it by" in diagnosis.remarks[0]
    assert not any("conserves c" in finding.text for finding in diagnosis)


@pytest.mark.parametrize("noise", [0.02, 0.08])
def test_a_loss_that_noise_in_the_data_keeps_high_is_not_said_to_fail(noise):
    losses = 0.55 + 0.15 * EXPONENTIAL + normal(0, noise)
    course = judge_course(losses, 200, chance=0.69, path=1.0)
    assert course.reason.endswith("how much more they can tell is not known")
    assert not judge_course(losses + 0.13, 200, chance=0.69, path=1.0).reason.endswith("not known")


def test_a_loss_of_tokens_is_not_judged_before_it_could_stay_at_their_frequencies():
    falls = 4.4 - 1.1 * (1 - np.exp(-np.arange(8) / 2))
    assert judge_course(falls, 80, chance=3.3, **TOKENS).state == "unknown"
    assert judge_course(np.full(8, 4.4), 80, chance=3.3, **TOKENS).state == "failing"
