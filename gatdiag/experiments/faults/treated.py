"""Cases -> treatments: does the remedy that the diagnosis names cure what was planted?

The faulty run of a case is diagnosed and treated as `gatdiag.treat` does it, and the training that it ends with is
compared with the repaired twin in the bank's own yardstick, the true labels and the usual loss. Good is what comes
within 5 points of the twin's accuracy or, where there are no classes, a tenth of the loss of a constant prediction.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.experiments.faults.bank import ON_LAWS, counts, trained
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.tables import save
from gatdiag.experiments.faults.training import Outcome, Training
from gatdiag.experiments.markdown import table as markdown
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.summary import logged
from gatdiag.treatment import Treatment, treat
from gatdiag.treatment.outcome import POINTS, SHARE


def cures(case: Case, folder: Path) -> list[dict[str, Any]]:
    """A row of `bank.table_of`: a faulty training that counts, and what became of it once it was treated.

    The verdict, what was changed in the end ("" if nothing was, and then the reason), and how the faulty training, the
    treated one and the repaired twin went: in accuracy, or in the share of loss removed where there are no classes;
    whether the treated one is good; how many remedies were tried. No row for controls, remarks on laws, and what does
    not count. Treatments are in ``treated``, beside the folder of runs.
    """
    if case.repaired is None or case.cause in ON_LAWS:
        return []
    place = folder / case.name
    faulty, twin = trained(case.faulty, place / "faulty"), trained(case.repaired, place / "repaired")
    if not counts(case.cause, faulty, twin):
        return []
    outcomes: list[Outcome] = []
    training = Training(case.faulty)

    def train(model: Any, recorder: Recorder) -> None:
        for scalars in training.steps(model, training.optimizer(model)):
            recorder.log(scalars)
        outcomes.append(training.outcome(model))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was planted
        done = treat(
            training.make,
            train,
            *training.task.whole(is_training=True).args,
            seeds=[case.faulty.seed],
            before=[place / "faulty"],
            folder=folder.parent / "treated" / case.name,
            overwrite=True,
        )
    return [_row(case, done, (faulty, twin, *outcomes), load(place / "repaired"))]


def _row(case: Case, done: Treatment, outcomes: Sequence[Outcome], twin: Run) -> dict[str, Any]:
    """In accuracy, if it was logged."""
    split = "val" if case.cause == "overfitting" else "train"
    applied = [trial for trial in done.trials if trial.runs]
    verdict = done.before.diagnoses[0].verdict
    last = done.after if done.after in applied and verdict.actions else None
    runs = [done.before.runs[0], twin, *(trial.runs[0] for trial in applied)]
    is_accuracy = f"{split}_accuracy" in twin.logged
    scores = [
        float(logged(run, f"{split}_accuracy").iloc[-1]) if is_accuracy else getattr(outcome, split)
        for run, outcome in zip(runs, outcomes, strict=True)
    ]
    refused = [trial.refused for trial in done.trials if trial.refused]
    reason = "; ".join(refused) or (verdict.remedy.splitlines() or ["no cause was found"])[0]
    treated = scores[2 + applied.index(last)] if last else None
    is_good = treated is not None and treated >= scores[1] - (POINTS if is_accuracy else SHARE)
    return {
        "case": case.name,
        "planted": case.cause,
        "held_out": case.is_held_out,
        "verdict": verdict.code,
        "remedy": "; ".join(last.changes) if last else "",
        "faulty": round(scores[0], 3),
        "treated": None if treated is None else round(treated, 3),
        "twin": round(scores[1], 3),
        "is_accuracy": is_accuracy,
        "reason": "" if last else reason,
        "tried": len(applied),
        "good": "" if treated is None else "yes" if is_good else "no",
    }


def save_cures(table: pd.DataFrame, folder: Path) -> str:
    """Write `treatment.csv`, a row a case, and `treatment.md`; the page."""
    applied = table[table["good"] != ""] if len(table) else table
    good = sum(applied["good"] == "yes") if len(applied) else 0
    share = f" ({good / len(applied):.0%})" if len(applied) else ""
    by_hand = table.drop(applied.index)
    page = (
        "# Faults, treated with what the diagnosis itself names",
        "Written by `gatdiag faults --treat`; `gatdiag.experiments.faults.treated` says what is compared: accuracy on "
        "the examples for training (of overfitting: on the others); where there are no classes, the share of the loss "
        "of a constant prediction that was removed.",
        f"Cured: {good} of {len(applied)}{share}; {len(by_hand)} more are to be changed by hand.",
        markdown(applied.filter(["case", "verdict", "remedy", "faulty", "treated", "twin", "good"])),
        "## To be changed by hand",
        markdown(by_hand.filter(["case", "verdict", "reason"])),
    )
    return save(folder, "treatment", table, page)
