"""Cases -> runs -> a table of verdicts: trains what was not trained yet, and diagnoses all of it."""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pandas as pd

from gatdiag.diagnosis import HEALTHY, Diagnosis, diagnose
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.published_rules import published_rules
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.training import Outcome, train
from gatdiag.experiments.pool import Pool
from gatdiag.run import load
from gatdiag.run.files import atomic_write

_LEAST: Final = 0.5  # of the loss of a constant prediction that a training has to remove to be called healthy
_CLEARLY: Final = 0.25  # more of it, by which a repaired twin has to be better
_TIMES: Final = 10.0  # as far, that conserved quantities have to go where laws are what was broken
ON_LAWS: Final = ("law-broken", "optimizer-breaks-conservation")  # notes: the network trains all the same
ALARMS: Final = ("error", "warning")
"""Severities on which a user would act."""


def counts(cause: str, outcome: Outcome, twin: Outcome | None) -> bool:
    """What was planted does harm, and taking it out does good.

    The twin removes at least half of the loss of the best constant prediction, and at least a quarter of it more than
    the faulty training. Overfitting is judged so on the examples that are not for training, a quarter being enough for
    the twin. Faults that concern only laws count where conserved quantities go ten times as far as in the twin, which
    has to train. A control counts where it removes at least half.

    Example:
        >>> counts("dead-units", Outcome(0.1, 0.0, 0.0), Outcome(0.9, 0.5, 0.0))
        True
        >>> counts("dead-units", Outcome(0.7, 0.0, 0.0), Outcome(0.9, 0.5, 0.0))
        False
    """
    if twin is None:
        return outcome.train >= _LEAST
    if cause in ON_LAWS:
        return twin.train >= _LEAST and outcome.drift > _TIMES * twin.drift
    if cause == "overfitting":
        return twin.val >= _CLEARLY and twin.val - outcome.val >= _CLEARLY
    return twin.train >= _LEAST and twin.train - outcome.train >= _CLEARLY


def is_right(cause: str, verdict: str, severity: str, all_findings: str) -> bool:
    """The planted cause is named first; of a control, that there is neither an error nor a warning.

    A remark on laws is never why a network does not train: it is enough that it is made, and nothing worse.
    """
    if cause in (HEALTHY, *ON_LAWS):
        return severity not in ALARMS and (cause == HEALTHY or cause in all_findings.split())
    return verdict == cause


def table_of(
    rows: Callable[..., list[dict[str, Any]]],
    chosen: Sequence[Any],
    jobs: int | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """What comes of some cases, worked on in processes.

    Args:
        rows: A case -> its rows.
        chosen: Cases.
        jobs: Number of processes; None: one for each core. With 1 it is this process.
        on_done: Called after each case.

    Returns:
        The rows of all of them, in their order; the same whatever the number of processes.
    """
    found = {}
    with Pool(jobs).map(rows, chosen) as done:
        for one, its_rows in done:
            found[one] = its_rows
            on_done()
    return pd.DataFrame([row for one in chosen for row in found[one]])


def verdicts(case: Case, folder: Path) -> list[dict[str, Any]]:
    """How a case trained, and what was said of it and of its twin: a row of `table_of`.

    Args:
        case: The case.
        folder: Where the runs are kept, a folder for each case. A training whose recipe is unchanged and that was
            finished is not repeated, so take another folder once recording itself has changed; verdicts are always new.
    """
    place = folder / case.name
    outcome, said = trained(case.faulty, place / "faulty"), judged(place / "faulty")
    twin, of_twin = None, dict.fromkeys(said, "")
    if case.repaired is not None:
        twin, of_twin = trained(case.repaired, place / "repaired"), judged(place / "repaired")
    row = {
        "case": case.name,
        "planted": case.cause,
        "held_out": case.is_held_out,
        "counts": counts(case.cause, outcome, twin),
        "right": is_right(case.cause, said["verdict"], said["severity"], said["all_findings"]),
        **said,
        "progress": round(outcome.train, 3),
        "val_progress": round(outcome.val, 3),
        "twin_progress": None if twin is None else round(twin.train, 3),
        "twin_val_progress": None if twin is None else round(twin.val, 3),
        **{f"twin_{name}": value for name, value in of_twin.items()},
        "planted_as": json.dumps(None if case.repaired is None else case.repaired.changes(case.faulty)),
        "training": json.dumps(Recipe(seed=case.number).changes(case.repaired or case.faulty)),
    }
    return [row]


def trained(recipe: Recipe, folder: Path) -> Outcome:
    """What a finished training of this recipe left, or a new one."""
    kept = folder.with_suffix(".json")  # written last
    document = {"recipe": json.loads(json.dumps(asdict(recipe)))}
    defaults = json.loads(json.dumps(asdict(Recipe())))  # of what a recipe could not say when it was kept
    if kept.exists():
        known = json.loads(kept.read_text())
        if {**defaults, **known["recipe"]} == document["recipe"]:
            return Outcome(**{name: math.nan if value is None else value for name, value in known["outcome"].items()})
        kept.unlink()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was planted
        outcome = train(recipe, folder)
    values = {name: value if math.isfinite(value) else None for name, value in asdict(outcome).items()}
    with atomic_write(kept) as part:
        part.write_text(json.dumps({**document, "outcome": values}))
    return outcome


def judged(folder: Path) -> dict[str, str]:
    """What is said of a kept run, and what the published rules say."""
    run = load(folder)
    return {**said(diagnose(run)), "published_rules": published_rules(run)}


def said(diagnosis: Diagnosis) -> dict[str, str]:
    """Code and severity of the verdict ("" where the network is healthy), and the codes of all findings."""
    verdict = diagnosis.verdict
    return {
        "verdict": verdict.code,
        "severity": "" if verdict.code == HEALTHY else verdict.severity,
        "all_findings": " ".join(finding.code for finding in diagnosis),
    }
