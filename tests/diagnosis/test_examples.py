"""The trainings that are shown on the pages of causes: each cause is found where it is planted, and only there."""

from pathlib import Path

import pandas as pd
import pytest

from gatdiag.diagnosis import CAUSES, HEALTHY, UNDETERMINED, UNEXPLAINED
from tests.bank.cases import BANK
from tests.diagnosis.examples import EXAMPLES

SCORES = Path(__file__).parents[2] / "reports" / "diagnosis"
SYMPTOMS = {  # code -> the verdict above it
    "overflow": "lr-too-large",
    "loss-not-falling": UNEXPLAINED,
    "unchanged-weights": "lr-too-small",
    "small-steps": "lr-too-small",
}


def codes(diagnosis):
    return {part.code for one in diagnosis for part in (one, *one.symptoms)}


def test_each_cause_has_an_example_of_the_bank_or_its_own():
    scores = pd.concat(pd.read_csv(SCORES / f"{half}.csv") for half in ("calibration", "held-out"))
    shown = {BANK[name].cause for name in scores[scores["right"] & scores["counts"]]["case"]}
    assert {*CAUSES} == (shown - {HEALTHY}) | {*EXAMPLES}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_fault_of_an_example_is_named_and_its_repair_is_not_blamed(tmp_path, code):
    example = EXAMPLES[code]
    faulty = example.record(tmp_path / "faulty", is_faulty=True)
    repaired = example.record(tmp_path / "repaired", is_faulty=False)
    assert faulty.verdict.code == SYMPTOMS.get(code, code), str(faulty)
    assert code in codes(faulty)
    assert code not in codes(repaired)
    assert repaired.verdict.code in (HEALTHY, UNDETERMINED), str(repaired)
