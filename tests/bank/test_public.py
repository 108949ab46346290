"""Trainings from public reports: what is declared, how verdicts are judged, and what the diagnosis says of a few."""

from functools import partial

import pandas as pd
import pytest

from gatdiag.diagnosis import CAUSES
from tests.bank.bank import run_cases
from tests.bank.public import REPORTS
from tests.bank.public.reports import Report
from tests.bank.public.scoring import FIRST_SIGHT, evaluate_report, judge, report_tables

QUICK = {
    "layers-after-optimizer": "parameters-not-in-optimizer",
    "loop-without-optimizer": "no-step",
    "squared-distances-of-twins": "nonfinite-operation",
}
"""Report -> the verdict on its faulty training."""


def test_reports_are_different_and_a_third_of_them_is_held_out():
    assert len(REPORTS) >= 24
    assert len({one.address for one in REPORTS.values()}) == len(REPORTS)
    assert 0.3 < sum(one.is_held_out for one in REPORTS.values()) / len(REPORTS) < 0.4


def test_what_is_expected_are_causes_and_each_report_was_judged_at_first_sight():
    assert {code for one in REPORTS.values() for code in (*one.right, *one.near)} <= {*CAUSES}
    assert {*FIRST_SIGHT} == {*REPORTS}


@pytest.mark.parametrize(
    ("verdict", "findings", "expected"),
    [
        ("dead-units", "dead-units lr-too-large", "right"),
        ("lr-too-large", "lr-too-large", "near"),
        ("input-scale", "input-scale dead-units", "near"),
        ("input-scale", "input-scale", "wrong"),
        ("unexplained", "loss-not-falling", "no cause"),
        ("healthy", "", "no cause"),
    ],
)
def test_a_verdict_is_right_near_wrong_or_none(verdict, findings, expected):
    report = Report("a", "https://example.org", "It does not learn.", ("dead-units",), ("lr-too-large",), False, None)
    assert judge(report, {"verdict": verdict, "findings": findings}) == expected


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    return run_cases(partial(evaluate_report, folder=folder), [*QUICK], jobs=1)


@pytest.mark.parametrize("name", QUICK)
def test_the_fault_of_a_report_is_named_and_its_repair_raises_no_alarm(table, name):
    (row,) = table[table["report"] == name].to_dict("records")
    assert row["counts"]
    assert (row["verdict"], row["named"]) == (QUICK[name], "right")
    assert row["repaired_severity"] in ("", "note")


def test_the_page_counts_the_halves_apart_and_says_what_was_wrong(table):
    held_out = table.iloc[:1].assign(held_out=True, named="wrong", at_first_sight="no cause", repaired_severity="error")
    (page,) = report_tables(pd.concat([table, held_out]))
    text = "\n".join(page.paragraphs)
    assert text.index("## Calibration") < text.index("## Held-out") < text.index("## What was wrong")
    assert "Named now: 3 of 3 (right 3, near 0, wrong 0, no cause 0)" in text
    assert "Named at first sight: 0 of 1 (right 0, near 0, wrong 0, no cause 1)" in text
    assert "Of 1 repaired ones: 1 with an error, 0 with a warning" in text
    assert "| layers-after-optimizer, repaired |" in text
    assert f"]({REPORTS['loop-without-optimizer'].address}): The loop computes gradients and has no optimizer." in text
