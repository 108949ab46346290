"""Cases -> treatments: does the remedy that the diagnosis names cure the planted fault?

The faulty run of a case is diagnosed and treated as `gatdiag.treat` does it, and then trained with the code that this
prints, pasted into the training. Each result is compared with the repaired twin, by the true labels and the usual loss.
It is good if it comes within 5 points of the twin's accuracy or, without classes, within a tenth of the loss of the
best constant prediction.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch

from gatdiag.diagnosis import HEALTHY
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.summary import logged_series
from gatdiag.treatment import Treatment, treat
from gatdiag.treatment.outcome import POINTS, SHARE
from reports.papers.markdown import table as markdown
from tests.bank.bank import LAW_CAUSES, should_count, train_case
from tests.bank.cases import Case
from tests.bank.recipe import Recipe
from tests.bank.tables import Table, split_halves
from tests.bank.training import Outcome, Training
from tests.treatment.pasting import Pasted


def treat_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Treat the faulty training of a case; returns one row, or none for controls, broken laws and what does not count.

    ``remedy`` is what was changed in the end, or "" with a ``reason``. ``faulty``, ``treated``, ``pasted`` and ``twin``
    are accuracies or, without classes, the fraction of the loss that was removed. Its runs are kept as ``treated``,
    beside ``faulty`` and ``repaired``.
    """
    if case.cause == HEALTHY or case.cause in LAW_CAUSES:
        return []
    faulty, twin = train_case(case, folder)
    if not should_count(case.cause, faulty, twin):
        return []
    place = folder / case.name
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
            folder=place / "treated",
            overwrite=True,
        )
    return [_row(case, treatment, (faulty, twin, *outcomes), load(place / "repaired"))]


def paste_into(recipe: Recipe, code: str) -> tuple[dict[str, float], Outcome]:
    """The last scalars, and the outcome, of a training with code that its user has pasted into it."""
    if "once, before the loop" in code:  # then the line in the loop is deleted
        recipe = replace(recipe, loop="usual")
    training, scalars = Training(recipe), dict[str, float]()
    x, edge_index, *groups = training.task.split(is_training=True).args
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        given = {"data": SimpleNamespace(x=x), "x": x, "edge_index": edge_index, "groups": next(iter(groups), None)}
        pasted = Pasted(code, {"model": training.make_model(), **given})
        pasted.after_making_the_model()
        given_task, training.task = training.task, replace(training.task, x=pasted.names["data"].x)
        if training.evaluated is given_task:
            training.evaluated = training.task
        model = pasted.names["model"]
        pasted.names["optimizer"] = training.make_optimizer(model)
        pasted.after_making_the_optimizer()
        for step in training.run_steps(model, pasted.names["optimizer"], pasted.in_each_step):
            scalars |= step
        return scalars, training.evaluate(model)


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
    pasted = _score(*paste_into(case.faulty, last.remedy), split, is_accuracy=is_accuracy) if last else None
    least = repaired - (POINTS if is_accuracy else SHARE)
    return {
        "case": case.name,
        "planted": case.cause,
        "held_out": case.is_held_out,
        "verdict": verdict.code,
        "remedy": "; ".join(last.changes) if last else "",
        "faulty": round(faulty, 3),
        "treated": None if treated is None else round(treated, 3),
        "pasted": None if pasted is None else round(pasted, 3),
        "twin": round(repaired, 3),
        "is_accuracy": is_accuracy,
        "reason": "" if last else reason,
        "tried": len(applied),
        "good": _is_good(treated, least),
        "pasted_good": _is_good(pasted, least),
    }


def _score(scalars: dict[str, float], outcome: Outcome, split: str, *, is_accuracy: bool) -> float:
    return scalars[f"{split}_accuracy"] if is_accuracy else float(getattr(outcome, split))


def _is_good(score: float | None, least: float) -> str:
    return "" if score is None else "yes" if score >= least else "no"


def treatment_tables(treated: pd.DataFrame) -> Iterator[Table]:
    """The treatments of each half that has rows."""
    for name, half in split_halves(treated):
        applied, manual = half[half["good"] != ""], half[half["good"] == ""]
        cured = [
            f"{(good := (applied[name] == 'yes').sum())} of {len(applied)} ({good / max(1, len(applied)):.0%}) {how}"
            for name, how in (("good", "by `treat`"), ("pasted_good", "by the code that it prints, pasted"))
        ]
        paragraphs = [
            "Compared are accuracies on training examples (for overfitting, on validation examples) or, without "
            "classes, the fraction of the loss of the best constant prediction that was removed.",
            f"Cured: {' and '.join(cured)}; {len(manual)} more need a change in the user's code.",
            markdown(
                applied[["case", "verdict", "remedy", "faulty", "treated", "pasted", "twin", "good", "pasted_good"]]
            ),
            "## Faults that need a change in the user's code",
            markdown(manual[["case", "verdict", "reason"]]),
        ]
        title = f"Faults, {name} half: treated with the remedies that the diagnosis names"
        yield Table(f"treatment/{name}", title, half, paragraphs)
