"""The diagnosis of some trainings of the bank: each cause and the controls that are most like a fault.

A change that is meant to change a verdict changes its row of `expected.csv`, which is sorted as the bank is.
"""

import csv
from pathlib import Path

import pytest

import gatdiag
from tests.bank.bank import diagnose_run, is_right, load_or_train
from tests.bank.cases import BANK, CAUSES
from tests.page.evidence import disagreements

COLUMNS = ("case", "verdict", "severity", "findings")
with Path(__file__).with_name("expected.csv").open() as file:
    EXPECTED = {row["case"]: row for row in csv.DictReader(file)}
MISSED = {
    "depth-vanishing-gradient-03",
    "overfitting-04",
}
"""Faults whose cause the diagnosis does not name, today."""


def as_line(row: dict[str, str]) -> str:
    return ",".join(row[name] for name in COLUMNS)


def test_every_cause_and_the_controls_are_expected_in_the_order_of_the_bank():
    assert [*EXPECTED] == [name for name in BANK if name in EXPECTED]
    assert {BANK[name].cause for name in EXPECTED} == {*CAUSES}


def test_all_but_the_known_misses_are_expected_to_be_right():
    wrong = {
        name
        for name, row in EXPECTED.items()
        if not is_right(BANK[name].cause, row["verdict"], row["severity"], row["findings"])
    }
    assert wrong == MISSED


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_is_as_expected(name, tmp_path):
    load_or_train(BANK[name].faulty, tmp_path / "run")
    got = {"case": name, **diagnose_run(tmp_path / "run")}
    expected = EXPECTED[name]
    assert as_line(got) == as_line(expected), (
        f"{name} expected {expected['verdict']} ({expected['severity'] or 'no alarm'}), got {got['verdict']} "
        f"({got['severity'] or 'no alarm'})"
    )
    run = gatdiag.load(tmp_path / "run")
    assert not [*disagreements(run, gatdiag.diagnose(run))]
