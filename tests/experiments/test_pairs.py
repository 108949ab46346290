"""Two faults at once: what is planted, and how it is counted. One small pair is trained."""

import csv
from dataclasses import replace

import pytest

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults import pairs
from gatdiag.experiments.faults.bank import Verdict
from gatdiag.experiments.faults.cases import FAULTS
from gatdiag.experiments.faults.pairs import PAIRS, Pair, planted, run_pairs, save_pairs


def test_each_pair_is_of_two_causes_of_the_bank_that_change_different_attributes():
    assert len(PAIRS) >= 12
    for number, (plants, _) in enumerate(PAIRS):
        one, other = plants
        assert {one, other} <= {*FAULTS}
        usual = planted(number)
        assert not usual.changes(planted(number, one)).keys() & usual.changes(planted(number, other)).keys()
        assert planted(number, one, other) == replace(planted(number, one), **plants[other])


def verdict(code):
    return Verdict(code, "error", (code,), HEALTHY)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("dead-units", "lr-too-small", (True, True)),
        ("lr-too-small", "dead-units", (True, True)),
        ("dead-units", "dead-units", (True, False)),
        ("input-scale", None, (False, False)),
    ],
)
def test_a_pair_is_right_where_one_is_named_and_then_the_other(first, then, expected):
    pair = Pair(("dead-units", "lr-too-small"), True, verdict(first), then and verdict(then))
    assert (pair.is_first_right, pair.is_right) == expected


def test_the_fault_that_is_named_is_repaired_and_the_other_found(tmp_path, monkeypatch):
    usual = {"width": 8, "steps": 40, "lr": 0.05}
    plants = {"input-nonfinite": {"inputs": ("NaN in rows", 1)}, "no-training-signal": {"labels": "all one"}}
    monkeypatch.setattr(pairs, "PAIRS", ((plants, usual),))
    (pair,) = run_pairs(tmp_path / "runs", jobs=1)
    assert (pair.first.code, pair.then.code) == ("input-nonfinite", "no-training-signal")
    assert pair.is_planted_well
    page = save_pairs([pair], tmp_path)
    assert "Of 1 trainings with two faults: one of the two named first in 1," in page
    assert "| input-nonfinite, no-training-signal | input-nonfinite | no-training-signal | yes |" in page
    assert (tmp_path / "pairs.md").read_text() == page
    with (tmp_path / "pairs.csv").open() as file:
        assert [row["right"] for row in csv.DictReader(file)] == ["yes"]
