"""What the results come to."""

import pandas as pd

from gatdiag.diagnosis import HEALTHY
from tests.bank.tables import confusion_table, verdict_tables


def result(cause, verdict, severity="error", twin=("healthy", ""), *, right=False, counts=True, rules=HEALTHY):
    twin, of_twin = ("", "", "") if cause == HEALTHY else (*twin, "dead-units"), verdict
    return {
        "case": f"{cause}-00",
        "planted": cause,
        "held_out": False,
        "counts": counts,
        "right": right,
        "verdict": verdict,
        "severity": severity,
        "findings": of_twin,
        "published_rules": rules,
        "twin_verdict": twin[0],
        "twin_severity": twin[1],
        "twin_findings": "",
        "twin_published_rules": twin[2],
    }


RESULTS = pd.DataFrame(
    [
        result("dead-units", "dead-units", right=True, rules="dead-units"),
        result("dead-units", "lr-too-large", rules="lr-too-large"),
        result("dead-units", "healthy", "", twin=("lr-too-large", "warning")),
        result("dead-units", "dead-units", right=True, counts=False),
        result("law-broken", "overfitting", "note", right=True),
        result("law-broken", "dead-units", "warning"),
        result(HEALTHY, "healthy", "", right=True),
        result(HEALTHY, "overfitting", "note", right=True),
        result(HEALTHY, "lr-too-large", "warning", rules="dead-units"),
        result(HEALTHY, "lr-too-large", "error"),
    ]
)


def test_verdicts_are_counted_by_cause():
    rows = confusion_table(RESULTS).to_numpy().tolist()
    assert rows == [
        ["dead-units", 3, 1, 1, "lr-too-large, healthy"],
        ["law-broken", 2, 1, 0, "dead-units"],
        [HEALTHY, 4, 2, 3, "lr-too-large 2"],
    ]


def test_tables_hold_each_case_and_what_it_comes_to(tmp_path):
    (table,) = verdict_tables(RESULTS)
    page = table.write(tmp_path, "Written by hand.")
    path = tmp_path / "diagnosis" / "calibration"
    assert len(path.with_suffix(".csv").read_text().splitlines()) == 1 + len(RESULTS)
    assert path.with_suffix(".md").read_text() == page
    assert page.splitlines()[2] == "Written by hand."
    assert "Right verdict: 2 of 5 (40%); published rules: 1 (20%)" in page
    assert "Of 4 healthy controls: 1 with an error, 1 with a warning; published rules: 1" in page
    assert "Of 5 repaired twins: 0 with an error, 1 with a warning; published rules: 5" in page
    assert "Not counted, since the repaired twin does not train clearly better: dead-units-00" in page
    assert "| dead-units | 3 | 1 | 1 | lr-too-large, healthy |" in page
    wrong = page.partition("## Missed faults")[2].splitlines()[4:]
    assert [line.split(" | ")[0] for line in wrong] == [
        *("| dead-units-00", "| dead-units-00", "| dead-units-00, repaired"),
        *("| law-broken-00", "| healthy-00", "| healthy-00"),
    ]
    assert "| dead-units-00, repaired | lr-too-large | warning |" in page
