"""Cases -> treatments: does the remedy that the diagnosis names cure the planted fault?

The faulty run of a case is diagnosed and treated as `gatdiag.treat` does it, and the result is compared with the
repaired twin, by the true labels and the usual loss. It is good if it comes within 5 points of the twin's accuracy or,
without classes, within a tenth of the loss of the best constant prediction.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.experiments.faults.bank import LAW_CAUSES, load_or_train, should_count
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.tables import write_table
from gatdiag.experiments.faults.training import Outcome, Training
from gatdiag.experiments.markdown import table as markdown
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.summary import logged_series
from gatdiag.treatment import Treatment, treat
from gatdiag.treatment.outcome import POINTS, SHARE


def treat_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Treat the faulty training of a case; returns one row, or none for controls, broken laws and what does not count.

    ``remedy`` is what was changed in the end, or "" with a ``reason``. ``faulty``, ``treated`` and ``twin`` are
    accuracies or, without classes, the fraction of the loss that was removed. Treatments are kept in ``treated``,
    next to the folder of runs.
    """
    if case.repaired is None or case.cause in LAW_CAUSES:
        return []
    place = folder / case.name
    faulty, twin = load_or_train(case.faulty, place / "faulty"), load_or_train(case.repaired, place / "repaired")
    if not should_count(case.cause, faulty, twin):
        return []
    outcomes: list[Outcome] = []
    training = Training(case.faulty)

    def train(model: Any, recorder: Recorder) -> None:
        for scalars in training.run_steps(model, training.make_optimizer(model)):
            recorder.log(scalars)
        outcomes.append(training.evaluate(model))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the planted fault
        treatment = treat(
            training.make_model,
            train,
            *training.task.split(is_training=True).args,
            seeds=[case.faulty.seed],
            before=[place / "faulty"],
            folder=folder.parent / "treated" / case.name,
            overwrite=True,
        )
    return [_row(case, treatment, (faulty, twin, *outcomes), load(place / "repaired"))]


def _row(case: Case, treatment: Treatment, outcomes: Sequence[Outcome], twin: Run) -> dict[str, Any]:
    split = "val" if case.cause == "overfitting" else "train"
    applied = [trial for trial in treatment.trials if trial.runs]
    verdict = treatment.before.diagnoses[0].verdict
    last = treatment.after if treatment.after in applied and verdict.actions else None
    runs = [treatment.before.runs[0], twin, *(trial.runs[0] for trial in applied)]
    is_accuracy = f"{split}_accuracy" in twin.logged_names
    faulty, repaired, *after = (
        float(logged_series(run, f"{split}_accuracy").iloc[-1]) if is_accuracy else getattr(outcome, split)
        for run, outcome in zip(runs, outcomes, strict=True)
    )
    failures = [trial.failure for trial in treatment.trials if trial.failure]
    reason = "; ".join(failures) or (verdict.remedy.splitlines() or ["no cause was found"])[0]
    treated = after[applied.index(last)] if last else None
    is_good = treated is not None and treated >= repaired - (POINTS if is_accuracy else SHARE)
    return {
        "case": case.name,
        "planted": case.cause,
        "held_out": case.is_held_out,
        "verdict": verdict.code,
        "remedy": "; ".join(last.changes) if last else "",
        "faulty": round(faulty, 3),
        "treated": None if treated is None else round(treated, 3),
        "twin": round(repaired, 3),
        "is_accuracy": is_accuracy,
        "reason": "" if last else reason,
        "tried": len(applied),
        "good": "" if treated is None else "yes" if is_good else "no",
    }


def write_treatments(table: pd.DataFrame, folder: Path, part: str) -> str:
    """Write `treatment/PART.csv` and `.md`, so that no part overwrites another; returns the Markdown."""
    return write_table(folder / "treatment", part, table, partial(_paragraphs, part))


def _paragraphs(part: str, table: pd.DataFrame) -> tuple[str, ...]:
    applied = table[table["good"] != ""] if len(table) else table
    good = sum(applied["good"] == "yes") if len(applied) else 0
    share = f" ({good / len(applied):.0%})" if len(applied) else ""
    manual = table.drop(applied.index)
    return (
        "# Faults, treated with the remedies that the diagnosis names",
        f"Written by `gatdiag faults --part {part} --treat`. Compared are accuracies on the training examples (for "
        "overfitting, on the validation examples) or, without classes, the fraction of the loss of the best constant "
        "prediction that was removed; see `gatdiag.experiments.faults.treatment`.",
        f"Cured: {good} of {len(applied)}{share}; {len(manual)} more need a change in the user's code.",
        markdown(applied.filter(["case", "verdict", "remedy", "faulty", "treated", "twin", "good"])),
        "## Faults that need a change in the user's code",
        markdown(manual.filter(["case", "verdict", "reason"])),
    )
