"""What `gatdiag.preflight` says of the bank's networks before they are trained: which of them will fail?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch

from gatdiag.diagnosis import BEFORE_TRAINING, HEALTHY, Diagnosis
from gatdiag.experiments.faults.bank import ALARMS, ON_LAWS, said
from gatdiag.experiments.faults.cases import CALIBRATION, Case
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import by_cause, halves, save, tally
from gatdiag.experiments.faults.training import Training
from gatdiag.experiments.markdown import table as markdown
from gatdiag.rehearsal import preflight

FORESEEABLE: Final = tuple(cause for cause in CALIBRATION if cause in BEFORE_TRAINING and cause not in ON_LAWS)
"""The causes that exist before the first step."""


def foresee(recipe: Recipe) -> Diagnosis:
    """The diagnosis of a training before its first step. Torch's global random state is as it was."""
    with torch.random.fork_rng(devices=[]):
        training = Training(recipe)
        torch.manual_seed(recipe.seed)
        model = training.make()
        examples = training.task.draw(recipe.batch, torch.Generator().manual_seed(recipe.seed))
        return preflight(
            model,
            *examples.args,
            loss=lambda out: training.loss(out[examples.rows], examples.y, model),
            optimizer=training.optimizer(model),
            law_search_seconds=None,  # nothing depends on the clock
        )


def forecasts(case: Case) -> list[dict[str, Any]]:
    """Rows of `bank.table_of`: what is said of a case and of its twin before they are trained, which needs no runs.

    Of faults that exist before training, of repaired twins and of controls; of the last two "healthy" is right.
    """
    networks = {case.name: (case.cause, case.faulty), f"{case.name}, repaired": (HEALTHY, case.repaired)}
    return [
        {"network": name, "planted": cause, "held_out": case.is_held_out, **said(foresee(recipe))}
        for name, (cause, recipe) in networks.items()
        if recipe is not None and cause in (*FORESEEABLE, HEALTHY)
    ]


def save_forecasts(table: pd.DataFrame, folder: Path) -> str:
    """Write `preflight.csv`, and `preflight.md` with a table for each half of the bank; the page."""
    return save(folder, "preflight", table, _page(table))


def _page(table: pd.DataFrame) -> Iterator[str]:
    yield "# Faults before training: what `gatdiag.preflight` said of the untrained networks"
    yield "Written by `gatdiag faults --preflight`. A network is flagged if the verdict is an error or a warning."
    for name, half in halves(table):
        yield f"## The {name} half"
        yield sentence(half)
        yield markdown(pd.DataFrame([_row(cause, own) for cause, own in by_cause(half)]))


def sentence(table: pd.DataFrame) -> str:
    """Precision and recall of the forecast that a training fails, and how often its cause is named."""
    fails, flagged = table["planted"] != HEALTHY, table["severity"].isin(ALARMS)
    failing, hits = fails.sum(), (fails & flagged).sum()
    named = (fails & flagged & (table["verdict"] == table["planted"])).sum()
    return (
        f"Before training: of {len(table)} networks {failing} will fail, of which {hits} are flagged "
        f"({_share(hits, failing)}), {named} with the cause that was planted; of {flagged.sum()} flagged "
        f"{hits} fail ({_share(hits, flagged.sum())})."
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _row(cause: str, own: pd.DataFrame) -> dict[str, Any]:
    flagged = own["severity"].isin(ALARMS)
    named = flagged & (own["verdict"] == cause)
    others = own[flagged if cause == HEALTHY else ~named]
    notes = others["severity"].map({"note": " (note)"}).fillna("")
    row = {"planted": cause, "cases": len(own), "flagged": flagged.sum(), "cause named": named.sum()}
    return {**row, "verdict on the others": tally(others["verdict"] + notes)}
