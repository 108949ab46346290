"""Reports -> runs -> a table of what the diagnosis says of each, with its fault and without."""

import csv
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch_geometric import seed_everything

from gatdiag import watch
from gatdiag.diagnosis import HEALTHY, UNDETERMINED, UNEXPLAINED
from reports.papers.markdown import table as markdown
from tests.bank.bank import ALARMS, diagnose_run, should_count
from tests.bank.public.reports import REPORTS, Report
from tests.bank.tables import REPAIRED, Table, split_halves
from tests.bank.training import Outcome

with Path(__file__).with_name("first_sight.csv").open() as file:
    FIRST_SIGHT: Final = {row["report"]: row for row in csv.DictReader(file)}
"""Report -> what the diagnosis said of it before any rule was changed with it in view."""

_NAMED: Final = ("right", "near", "wrong", "no cause")


def judge(report: Report, said: Mapping[str, str]) -> str:
    """Whether the cause that is named is right, near, or wrong, or none is named.

    Near is a cause that leads to the same place in the code, and one that is named beside the right one.
    """
    if said["verdict"] in report.right:
        return "right"
    if said["verdict"] in report.near or {*report.right} & {*said["findings"].split()}:
        return "near"
    return "no cause" if said["verdict"] in (HEALTHY, UNDETERMINED, UNEXPLAINED) else "wrong"


def train_report(report: Report, folder: Path, *, is_faulty: bool) -> float:
    """Train with the fault or without it, and record the run to the folder; returns the score."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the fault
        seed_everything(0)
        rebuilt = report.build(is_faulty)
        with watch(rebuilt.model, folder, every=1, laws=True, overwrite=True) as recorder:
            rebuilt.train(recorder.log)
        score = rebuilt.score()
    return score if math.isfinite(score) else 0.0


def evaluate_report(name: str, folder: Path) -> list[dict[str, Any]]:
    """Train a report with its fault and without it in a subfolder, and diagnose both; returns one row."""
    report, place = REPORTS[name], folder / "public" / name
    faulty = train_report(report, place / "faulty", is_faulty=True)
    repaired = train_report(report, place / "repaired", is_faulty=False)
    said, of_repaired = diagnose_run(place / "faulty"), diagnose_run(place / "repaired")
    first = FIRST_SIGHT.get(name, {})
    row = {
        "report": name,
        "address": report.address,
        "fault": report.fault,
        "expected": " ".join(report.right),
        "held_out": report.is_held_out,
        "counts": should_count("", Outcome(max(0.0, faulty), 0.0, 0.0), Outcome(repaired, 0.0, 0.0)),
        "at_first_sight": first.get("named", ""),
        "verdict_at_first_sight": first.get("verdict", ""),
        "named": judge(report, said),
        **said,
        "score": round(faulty, 3),
        "repaired_score": round(repaired, 3),
        **{f"repaired_{name}": value for name, value in of_repaired.items()},
    }
    return [row]


def report_tables(results: pd.DataFrame) -> Iterator[Table]:
    """One page for all reports, the two halves apart."""
    paragraphs = [
        "Each training was reported as not working, and what was wrong was found there. It is rebuilt with own code on "
        "small data, with the fault and without it. Right: the verdict is the fault. Near: the verdict leads to the "
        "same place, or the fault is named beside another one. The score is independent of the loss: 0 like a "
        "constant prediction, 1 perfect. At first sight is what the diagnosis said before any rule was changed with "
        "the report in view. Those that are held out have not been in view, but kinds like some of theirs have.",
    ]
    for half, rows in split_halves(results):
        paragraphs += [f"## {half.capitalize()}", "\n".join(f"- {line}" for line in summarize(rows)), _listed(rows)]
    paragraphs += ["## What was wrong", "\n".join(_fault(row) for row in results.to_dict("records"))]
    yield Table("diagnosis/public", "Trainings from public reports: faults and verdicts", results, paragraphs)


def summarize(rows: pd.DataFrame) -> Iterator[str]:
    """Sentences with the totals."""
    counted = rows[rows["counts"]]
    first, last = (
        ", ".join(f"{kind} {(counted[column] == kind).sum()}" for kind in _NAMED)
        for column in ("at_first_sight", "named")
    )
    yield f"Named at first sight: {(counted['at_first_sight'] == 'right').sum()} of {len(counted)} ({first})"
    yield f"Named now: {(counted['named'] == 'right').sum()} of {len(counted)} ({last})"
    rules = sum(rule in row.split() for rule, row in zip(counted["published_rules"], counted["expected"], strict=True))
    yield f"Published rules: {rules} of {len(counted)}"
    errors, warned = ((rows["repaired_severity"] == severity).sum() for severity in ALARMS)
    yield f"Of {len(rows)} repaired ones: {errors} with an error, {warned} with a warning"
    if without := (counted["expected"] == "").sum():
        yield f"The diagnosis has no cause for {without} of them"
    if excluded := [*rows["report"][~rows["counts"]]]:
        yield f"Not counted, since the repaired one is not clearly better: {', '.join(excluded)}"


def _listed(rows: pd.DataFrame) -> str:
    names = ["report", "expected", "at_first_sight", "named", "verdict", "severity", "score", "repaired_score"]
    flagged = rows[rows["repaired_severity"].isin(ALARMS)]
    alarms = pd.DataFrame({"report": flagged["report"] + REPAIRED, "named": "alarm"})
    alarms["verdict"], alarms["severity"] = flagged["repaired_verdict"], flagged["repaired_severity"]
    return markdown(pd.concat([rows[names], alarms.reindex(columns=names, fill_value="")]))


def _fault(row: Mapping[str, Any]) -> str:
    return f"- [{row['report']}]({row['address']}): {row['fault']}"
