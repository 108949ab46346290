"""Two faults at once: what is planted, and how it is counted. One small pair is trained."""

from dataclasses import replace
from functools import partial

import pytest

from tests.bank import pairs
from tests.bank.bank import run_cases
from tests.bank.cases import CAUSES
from tests.bank.pairs import PAIRS, evaluate_pair, make_recipe, pair_tables
from tests.bank.training import Outcome

SMALL = (
    {"input-nonfinite": {"inputs": ("NaN in rows", 1)}, "no-training-signal": {"labels": "all one"}},
    {"width": 8, "steps": 40, "lr": 0.05},
)


def test_each_pair_is_of_two_causes_of_the_bank_that_change_different_attributes():
    for number, (plants, _) in enumerate(PAIRS):
        one, other = plants
        assert {one, other} <= {*CAUSES}
        usual = make_recipe(number)
        assert not usual.changes(make_recipe(number, one)).keys() & usual.changes(make_recipe(number, other)).keys()
        assert make_recipe(number, one, other) == replace(make_recipe(number, one), **plants[other])


@pytest.mark.parametrize(
    ("first", "alone", "expected"),
    [
        ("input-nonfinite", "no-training-signal", ("no-training-signal", True)),
        ("no-training-signal", "input-nonfinite", ("input-nonfinite", True)),
        ("no-training-signal", "no-training-signal", ("no-training-signal", False)),
        ("input-scale", "input-nonfinite", ("", False)),
    ],
)
def test_a_pair_is_right_where_one_is_named_and_then_the_other(tmp_path, monkeypatch, first, alone, expected):
    monkeypatch.setattr(pairs, "PAIRS", (SMALL,))
    monkeypatch.setattr(pairs, "load_or_train", lambda recipe, folder: Outcome(0.0, 0.0, 0.0))
    monkeypatch.setattr(pairs, "diagnose_run", lambda folder: {"verdict": first if "-and-" in folder.name else alone})
    (row,) = evaluate_pair(0, tmp_path)
    assert (row["once that is repaired"], row["right"]) == expected
    assert not row["counts"]


def test_the_fault_that_is_named_is_repaired_and_the_other_found(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "PAIRS", (SMALL,))
    table = run_cases(partial(evaluate_pair, folder=tmp_path / "runs"), [0], jobs=1)
    assert table["counts"].all()
    (page,) = pair_tables(table)
    summary, rows = page.paragraphs
    assert "of the two is named first in 1, and the other after its repair in 1." in summary
    assert "| input-nonfinite, no-training-signal | input-nonfinite | no-training-signal | True | True |" in rows
