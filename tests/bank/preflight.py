"""What `gatdiag.preflight` predicts for the networks of the bank before they are trained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch

from gatdiag.diagnosis import BEFORE_TRAINING, HEALTHY, Diagnosis
from gatdiag.rehearsal import preflight
from reports.papers.markdown import table as markdown
from tests.bank.bank import ALARMS, LAW_CAUSES, diagnosis_columns, should_count, train_case
from tests.bank.cases import CAUSES, Case
from tests.bank.recipe import Recipe
from tests.bank.tables import REPAIRED, Table, count_codes, group_by_cause, split_halves
from tests.bank.training import Training, in_precision

PREDICTABLE: Final = tuple(cause for cause in CAUSES if cause in BEFORE_TRAINING and cause not in LAW_CAUSES)
"""Causes that are present before the first step."""


def preflight_recipe(recipe: Recipe) -> Diagnosis:
    """Diagnose a training before its first step. Torch's global random state is restored."""
    with torch.random.fork_rng(devices=[]):
        training = Training(recipe)
        torch.manual_seed(recipe.seed)
        model = training.make_model()
        batch = training.task.sample(recipe.batch, torch.Generator().manual_seed(recipe.seed))
        return preflight(
            model,
            *in_precision(model, batch.args),
            loss=lambda out: training.loss(out[batch.rows].float(), batch.y, model),
            optimizer=training.make_optimizer(model),
            laws=True,  # nothing may depend on the clock
        )


def preflight_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Diagnose a case and its twin before training; returns a row for each, none if the trained case does not count.

    Only predictable faults, repaired twins and controls have rows; for twins and controls "healthy" is right.
    """
    if not should_count(case.cause, *train_case(case, folder)):
        return []
    networks = {case.name: (case.cause, case.faulty), f"{case.name}{REPAIRED}": (HEALTHY, case.repaired)}
    return [
        {
            "network": name,
            "planted": cause,
            "held_out": case.is_held_out,
            **diagnosis_columns(preflight_recipe(recipe)),
        }
        for name, (cause, recipe) in networks.items()
        if recipe is not None and cause in (*PREDICTABLE, HEALTHY)
    ]


def preflight_tables(networks: pd.DataFrame) -> Iterator[Table]:
    """The predictions for both halves."""
    paragraphs = ["A network is flagged if the verdict is an error or a warning."]
    for name, half in split_halves(networks):
        by_cause = pd.DataFrame([_row(cause, rows) for cause, rows in group_by_cause(half)])
        paragraphs += [f"## The {name} half", summarize(half), markdown(by_cause)]
    title = "Faults before training: what `gatdiag.preflight` predicts for the untrained networks"
    yield Table("diagnosis/preflight", title, networks, paragraphs)


def summarize(networks: pd.DataFrame) -> str:
    """Precision and recall of the prediction that a training fails, and how often its cause is named."""
    fails, flagged = networks["planted"] != HEALTHY, networks["severity"].isin(ALARMS)
    failing, hits = fails.sum(), (fails & flagged).sum()
    named = (fails & flagged & (networks["verdict"] == networks["planted"])).sum()
    return (
        f"Of {len(networks)} untrained networks, {failing} will fail; {hits} of these are flagged "
        f"({_percentage(hits, failing)}), {named} with the planted cause. Of {flagged.sum()} flagged networks, "
        f"{hits} fail ({_percentage(hits, flagged.sum())})."
    )


def _percentage(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "n/a"


def _row(cause: str, rows: pd.DataFrame) -> dict[str, Any]:
    flagged = rows["severity"].isin(ALARMS)
    named = flagged & (rows["verdict"] == cause)
    others = rows[flagged if cause == HEALTHY else ~named]
    notes = others["severity"].map({"note": " (note)"}).fillna("")
    row = {"planted": cause, "cases": len(rows), "flagged": flagged.sum(), "cause named": named.sum()}
    return {**row, "verdict on the others": count_codes(others["verdict"] + notes)}
