"""Which cases count, which verdicts are right, and the rows of trained cases."""

import math
from dataclasses import replace
from functools import partial

import pytest

from gatdiag.diagnosis import HEALTHY, UNDETERMINED, Diagnosis
from tests.bank import bank
from tests.bank.bank import evaluate_case, is_right, run_cases, should_count
from tests.bank.cases import Case
from tests.bank.recipe import Recipe
from tests.bank.training import Outcome, train

SMALL = Recipe(width=8, steps=6, optimizer="SGD", lr=0.5)


def case(cause="lr-too-small", number=0, **plant):
    repaired = replace(SMALL, seed=number)
    return Case(cause, number, replace(repaired, **plant), None if cause == HEALTHY else repaired)


@pytest.mark.parametrize(
    ("cause", "faulty", "twin", "expected"),
    [
        ("dead-units", Outcome(0.2, 0.9, 0), Outcome(0.9, 0.0, 0), True),
        ("dead-units", Outcome(0.2, 0.0, 0), Outcome(0.44, 0.9, 0), False),  # the twin fails, too
        ("dead-units", Outcome(0.8, 0.0, 0), Outcome(0.99, 0.9, 0), False),  # the fault does little harm
        ("overfitting", Outcome(1.0, 0.0, 0), Outcome(0.6, 0.3, 0), True),
        ("overfitting", Outcome(0.0, 0.2, 0), Outcome(1.0, 0.3, 0), False),
        ("law-broken", Outcome(0.9, 0.5, 1.0), Outcome(0.9, 0.5, 0.01), True),
        ("law-broken", Outcome(0.9, 0.5, 0.05), Outcome(0.9, 0.5, 0.01), False),
        ("law-broken", Outcome(0.9, 0.5, math.nan), Outcome(0.9, 0.5, math.nan), False),
        (HEALTHY, Outcome(0.5, 0.0, 0), None, True),
        (HEALTHY, Outcome(0.49, 0.9, 0), None, False),
    ],
)
def test_a_fault_counts_where_its_twin_is_clearly_better(cause, faulty, twin, expected):
    assert should_count(cause, faulty, twin) == expected


@pytest.mark.parametrize(
    ("cause", "verdict", "severity", "findings", "expected"),
    [
        ("dead-units", "dead-units", "error", "dead-units", True),
        ("dead-units", "lr-too-large", "error", "lr-too-large dead-units", False),
        ("dead-units", "healthy", "", "", False),
        ("law-broken", "overfitting", "note", "overfitting law-broken", True),
        ("law-broken", "dead-units", "warning", "dead-units law-broken", False),
        (HEALTHY, "healthy", "", "", True),
        (HEALTHY, "overfitting", "note", "overfitting", True),
        (HEALTHY, "lr-too-large", "warning", "lr-too-large", False),
    ],
)
def test_a_verdict_is_right_where_the_planted_cause_is_named(cause, verdict, severity, findings, expected):
    assert is_right(cause, verdict, severity, findings) == expected


def test_results_are_the_same_whatever_the_number_of_processes(tmp_path):
    chosen = [case(lr=1e-6), case("input-nonfinite", 2, inputs=("NaN in rows", 1)), case(HEALTHY, 4)]
    alone = run_cases(partial(evaluate_case, folder=tmp_path / "alone"), chosen, jobs=1)
    together = run_cases(partial(evaluate_case, folder=tmp_path / "together"), chosen, jobs=2)
    assert together.equals(alone)
    assert alone["case"].to_list() == [one.name for one in chosen]
    assert alone["progress"][0] < alone["twin_progress"][0]
    assert alone["progress"][1] == 0
    assert alone["published_rules"].to_list()[1:] == ["nonfinite-operation", "healthy"]


def test_what_was_trained_is_not_trained_again_but_diagnosed(tmp_path, monkeypatch):
    trained = []

    def counted(recipe, folder):
        trained.append(folder.name)
        return train(recipe, folder)

    monkeypatch.setattr(bank, "train", counted)
    first = run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-6)], jobs=1)
    monkeypatch.setattr(bank, "diagnose", lambda run: Diagnosis())
    again = run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-6)], jobs=1)
    assert trained == ["faulty", "repaired"]
    assert again["progress"].equals(first["progress"])
    assert again["verdict"][0] == UNDETERMINED
    run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-5)], jobs=1)  # another recipe of that name
    assert trained == ["faulty", "repaired", "faulty"]
