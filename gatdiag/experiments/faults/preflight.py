"""What `gatdiag.preflight` predicts for the networks of the bank before they are trained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch

from gatdiag.diagnosis import BEFORE_TRAINING, HEALTHY, Diagnosis
from gatdiag.experiments.faults.bank import ALARMS, LAW_CAUSES, diagnosis_columns
from gatdiag.experiments.faults.cases import CALIBRATION, Case
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import REPAIRED, count_codes, group_by_cause, split_halves, write_table
from gatdiag.experiments.faults.training import Training
from gatdiag.experiments.markdown import table as markdown
from gatdiag.rehearsal import preflight

PREDICTABLE: Final = tuple(cause for cause in CALIBRATION if cause in BEFORE_TRAINING and cause not in LAW_CAUSES)
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
            *batch.args,
            loss=lambda out: training.loss(out[batch.rows], batch.y, model),
            optimizer=training.make_optimizer(model),
            law_search_seconds=None,  # nothing may depend on the clock
        )


def preflight_case(case: Case) -> list[dict[str, Any]]:
    """Diagnose a case and its twin before training; returns a row for each.

    Only predictable faults, repaired twins and controls have rows; for twins and controls "healthy" is right.
    """
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


def write_preflight(table: pd.DataFrame, folder: Path, part: str) -> str:
    """Write `preflight.csv` and `preflight.md`, or `preflight-PART` if not of all; returns the Markdown."""
    return write_table(folder, "preflight" if part == "all" else f"preflight-{part}", table, _paragraphs)


def _paragraphs(table: pd.DataFrame) -> Iterator[str]:
    yield "# Faults before training: what `gatdiag.preflight` predicts for the untrained networks"
    yield "Written by `gatdiag faults --preflight`. A network is flagged if the verdict is an error or a warning."
    for name, half in split_halves(table):
        yield f"## The {name} half"
        yield summarize(half)
        yield markdown(pd.DataFrame([_row(cause, rows) for cause, rows in group_by_cause(half)]))


def summarize(table: pd.DataFrame) -> str:
    """Precision and recall of the prediction that a training fails, and how often its cause is named."""
    fails, flagged = table["planted"] != HEALTHY, table["severity"].isin(ALARMS)
    failing, hits = fails.sum(), (fails & flagged).sum()
    named = (fails & flagged & (table["verdict"] == table["planted"])).sum()
    return (
        f"Of {len(table)} untrained networks, {failing} will fail; {hits} of these are flagged "
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
