import math

import pytest

from gatdiag.diagnosis import Diagnosis
from gatdiag.treatment import Treatment, Trial
from gatdiag.treatment.outcome import Metric, choose_metric
from tests.page.builder import build

LOSS, SCORE = Metric("loss", False), Metric("val_acc", True)


@pytest.mark.parametrize(
    ("logged", "name", "is_score"),
    [
        ({"loss": [1.0], "val_loss": [1.0], "train_acc": [0.1], "val_acc": [0.1]}, "val_acc", True),
        ({"loss": [1.0], "val_loss": [1.0], "train_acc": [0.1]}, "train_acc", True),
        ({"loss": [1.0], "val_loss": [1.0]}, "val_loss", False),
        ({"loss": [1.0]}, "loss", False),
        ({"loss": [1.0], "train_acc": [0.1], "val_acc": [math.nan]}, "train_acc", True),
        ({"loss": [1.0], "val_acc": [math.nan]}, "loss", False),
    ],
)
def test_the_validation_score_is_preferred(tmp_path, logged, name, is_score):
    assert choose_metric(build(tmp_path / "run", logged=logged)) == Metric(name, is_score)


def test_nothing_logged_is_nothing_to_judge_by(tmp_path):
    assert choose_metric(build(tmp_path / "run")) is None


def test_the_value_is_that_at_the_end(tmp_path):
    assert LOSS.value(build(tmp_path / "run", logged={"loss": [9.0, 3.0, 1.0, 2.0]})) == 2.0
    assert math.isnan(LOSS.value(build(tmp_path / "nan", logged={"loss": [1.0, math.nan]})))


@pytest.mark.parametrize(
    ("yard", "before", "after", "gain"),
    [
        (SCORE, 0.25, 0.75, 0.5),
        (SCORE, 25.0, 75.0, 0.5),
        (SCORE, math.nan, 0.5, 0.5),
        (LOSS, 2.0, 1.0, 0.5),
        (LOSS, math.nan, 1.0, 1.0),
        (LOSS, 1.0, math.nan, -1.0),
        (LOSS, math.nan, math.nan, 0.0),
    ],
)
def test_gains(yard, before, after, gain):
    assert yard.gain(before, after) == pytest.approx(gain)


@pytest.mark.parametrize(
    ("gains", "helped"), [((0.2, 0.0), True), ((0.04,), False), ((0.5, -0.06), False), ((), False)]
)
def test_better_on_average_and_worse_for_no_seed(gains, helped):
    assert SCORE.helped(gains) is helped


@pytest.mark.parametrize(
    ("state", "headline"), [("trained", "There is nothing to treat"), ("failing", "No cause was found")]
)
def test_a_training_that_fails_without_a_cause_is_not_called_healthy(tmp_path, state, headline):
    before = Trial("before", diagnoses=(Diagnosis((), state=state),))
    assert Treatment(tmp_path, (0,), None, before).headline == headline
