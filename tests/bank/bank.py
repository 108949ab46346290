"""Cases -> runs -> a table of verdicts. Finished trainings are reused, verdicts are always new."""

import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pandas as pd
from rich.console import Console
from rich.progress import track

from gatdiag.diagnosis import HEALTHY, UNDETERMINED, Diagnosis, diagnose
from gatdiag.experiments.pool import Pool
from gatdiag.run import load
from gatdiag.run.files import atomic_write
from tests.bank.cases import Case
from tests.bank.published_rules import published_rules
from tests.bank.recipe import Recipe
from tests.bank.training import Outcome, train

_MIN_PROGRESS: Final = 0.5  # of a healthy training
_MIN_GAIN: Final = 0.25  # in progress, of a repaired twin
_MIN_DRIFT_RATIO: Final = 10.0  # of a fault that only breaks conservation laws to its twin
LAW_CAUSES: Final = ("law-broken",)  # notes: the network trains all the same
ALARMS: Final = ("error", "warning")
"""Severities on which a user would act."""


def should_count(cause: str, outcome: Outcome, twin: Outcome | None) -> bool:
    """Whether the fault does harm and its repair helps; for a control, whether it trains.

    A control, and the twin of a fault, has to remove at least half of the loss of the best constant prediction, the
    twin also at least a quarter more than the faulty training. Overfitting is measured on the validation examples,
    where a quarter is enough for the twin. For faults that only break conservation laws, the twin has to train, and
    the conserved quantities have to drift more than ten times as far as in the twin.

    Example:
        >>> should_count("dead-units", Outcome(0.1, 0.0, 0.0), Outcome(0.9, 0.5, 0.0))
        True
        >>> should_count("dead-units", Outcome(0.7, 0.0, 0.0), Outcome(0.9, 0.5, 0.0))
        False
    """
    if twin is None:
        return outcome.train >= _MIN_PROGRESS
    if cause in LAW_CAUSES:
        return twin.train >= _MIN_PROGRESS and outcome.drift > _MIN_DRIFT_RATIO * twin.drift
    if cause == "overfitting":
        return twin.val >= _MIN_GAIN and twin.val - outcome.val >= _MIN_GAIN
    return twin.train >= _MIN_PROGRESS and twin.train - outcome.train >= _MIN_GAIN


def is_right(cause: str, verdict: str, severity: str, findings: str) -> bool:
    """Whether the verdict is the planted cause; for a control, whether there is neither an error nor a warning.

    Broken laws never keep a network from training: it is enough that they are among the findings, without an alarm.
    """
    if cause in (HEALTHY, *LAW_CAUSES):
        return severity not in ALARMS and (cause == HEALTHY or cause in findings.split())
    return verdict == cause


def run_cases(
    evaluate: Callable[..., list[dict[str, Any]]], chosen: Sequence[Any], jobs: int | None = None
) -> pd.DataFrame:
    """The rows of all cases, in their order, from processes (None: one per core) or, with one job, from this one."""
    bar = {"total": len(chosen), "console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    with Pool(jobs).map(evaluate, chosen) as done:
        rows = dict(track(done, "cases", **bar))
    return pd.DataFrame([row for case in chosen for row in rows[case]])


def evaluate_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Train a case and its twin in a subfolder, and diagnose both; returns one row."""
    outcome, twin = train_case(case, folder)
    diagnosis = diagnose_run(folder / case.name / "faulty")
    of_twin = diagnose_run(folder / case.name / "repaired") if twin else dict.fromkeys(diagnosis, "")
    row = {
        "case": case.name,
        "planted": case.cause,
        "held_out": case.is_held_out,
        "counts": should_count(case.cause, outcome, twin),
        "right": is_right(case.cause, diagnosis["verdict"], diagnosis["severity"], diagnosis["findings"]),
        **diagnosis,
        "progress": round(outcome.train, 3),
        "val_progress": round(outcome.val, 3),
        "twin_progress": None if twin is None else round(twin.train, 3),
        "twin_val_progress": None if twin is None else round(twin.val, 3),
        **{f"twin_{name}": value for name, value in of_twin.items()},
        "planted_as": json.dumps(None if case.repaired is None else case.repaired.changes(case.faulty)),
        "training": json.dumps(Recipe(seed=case.number).changes(case.repaired or case.faulty)),
    }
    return [row]


def train_case(case: Case, folder: Path) -> tuple[Outcome, Outcome | None]:
    """Train a case and its twin in a subfolder, as ``faulty`` and ``repaired``, unless they are there."""
    outcome = load_or_train(case.faulty, folder / case.name / "faulty")
    twin = None if case.repaired is None else load_or_train(case.repaired, folder / case.name / "repaired")
    return outcome, twin


def load_or_train(recipe: Recipe, folder: Path) -> Outcome:
    """The outcome of the finished training of this recipe in the folder, or of a new one."""
    file = folder.with_suffix(".json")  # written last
    settings = json.loads(json.dumps(asdict(recipe)))
    if file.exists():
        known = json.loads(file.read_text())
        if known["recipe"] == settings:
            return Outcome(**{name: math.nan if value is None else value for name, value in known["outcome"].items()})
        file.unlink()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the planted fault
        outcome = train(recipe, folder)
    values = {name: value if math.isfinite(value) else None for name, value in asdict(outcome).items()}
    with atomic_write(file) as part:
        part.write_text(json.dumps({"recipe": settings, "outcome": values}))
    return outcome


def diagnose_run(folder: Path) -> dict[str, str]:
    """The diagnosis of a recorded run, and the verdict of the published rules, as columns."""
    run = load(folder)
    return {**diagnosis_columns(diagnose(run)), "published_rules": published_rules(run)}


def diagnosis_columns(diagnosis: Diagnosis) -> dict[str, str]:
    """Code and severity of the verdict ("" if it is no finding and no alarm), and the codes of all findings."""
    verdict = diagnosis.verdict
    return {
        "verdict": verdict.code,
        "severity": "" if verdict.code in (HEALTHY, UNDETERMINED) else verdict.severity,
        "findings": " ".join(finding.code for finding in diagnosis),
    }
