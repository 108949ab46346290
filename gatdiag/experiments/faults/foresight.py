"""What `gatdiag.preflight` says of the bank's networks before they are trained: which of them will fail?"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gatdiag.diagnosis import BEFORE_TRAINING, HEALTHY, Diagnosis, Finding
from gatdiag.experiments.faults.bank import ON_LAWS, Result
from gatdiag.experiments.faults.cases import FAULTS
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import markdown, save, tally
from gatdiag.experiments.faults.training import LOSSES, set_up
from gatdiag.rehearsal import preflight

FORESEEABLE: Final = tuple(cause for cause in FAULTS if cause in BEFORE_TRAINING and cause not in ON_LAWS)
"""The causes that exist before the first step."""


@dataclass(frozen=True)
class Forecast:
    """What was said of one network before its training, and what is known to come of it.

    Attributes:
        name: The case, and whether it is the repaired twin.
        cause: What was planted; "healthy" in controls and repaired twins, which train.
        is_held_out: It is not for calibration.
        verdict: What was said.
        codes: Of all findings.
    """

    name: str
    cause: str
    is_held_out: bool
    verdict: Finding
    codes: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """The training fails."""
        return self.cause != HEALTHY

    def row(self) -> dict[str, object]:
        """It as a row of a table."""
        said = {"verdict": self.verdict.code, "severity": self.verdict.severity, "all_findings": " ".join(self.codes)}
        return {"network": self.name, "planted": self.cause, "held_out": self.is_held_out, **said}

    @property
    def is_flagged(self) -> bool:
        """It was said that it will, or may, fail."""
        return self.verdict.severity in ("error", "warning")


def foresee(recipe: Recipe) -> Diagnosis:
    """The diagnosis of a training before its first step. Torch's global random state is as it was."""
    with torch.random.fork_rng(devices=[]):
        task, model, optimizer = set_up(recipe)
        examples = task.draw(recipe.batch, torch.Generator().manual_seed(recipe.seed))
        return preflight(
            model,
            *examples.args,
            loss=lambda out: LOSSES[recipe.loss](out[examples.rows], examples.y, model, 0),
            optimizer=optimizer,
            law_search_seconds=None,  # nothing depends on the clock
        )


def forecasts(results: Iterable[Result]) -> Iterator[Forecast]:
    """Of all faults that count and whose cause exists before training, of all repaired twins, and of the controls."""
    for result in results:
        case = result.case
        networks = {case.name: (case.cause, case.faulty), f"{case.name}, repaired": (HEALTHY, case.repaired)}
        for name, (cause, recipe) in networks.items():
            if result.counts and recipe is not None and cause in (*FORESEEABLE, HEALTHY):
                diagnosis = foresee(recipe)
                codes = tuple(finding.code for finding in diagnosis)
                yield Forecast(name, cause, case.is_held_out, diagnosis.verdict, codes)


def save_forecasts(of: Sequence[Forecast], folder: Path) -> str:
    """Write `preflight.csv`, and `preflight.md` with a table for each half of the bank; the page."""
    return save(folder, "preflight", [one.row() for one in of], _page(of))


def sentence(of: Sequence[Forecast]) -> str:
    """Precision and recall of the forecast that a training fails, and how often its cause is named."""
    flagged, failing = [one for one in of if one.is_flagged], [one for one in of if one.fails]
    hits = [one for one in flagged if one.fails]
    named = sum(one.verdict.code == one.cause for one in hits)
    return (
        f"Before training: of {len(of)} networks {len(failing)} will fail, of which {len(hits)} are flagged "
        f"({_share(len(hits), len(failing))}), {named} with the cause that was planted; of {len(flagged)} flagged "
        f"{len(hits)} fail ({_share(len(hits), len(flagged))})."
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _page(of: Sequence[Forecast]) -> Iterator[str]:
    yield "# Faults before training: what `gatdiag.preflight` said of the untrained networks\n"
    yield "Written by `gatdiag faults --preflight`. A network is flagged if the verdict is an error or a warning."
    for name, is_held_out in (("calibration", False), ("held-out", True)):
        half = [one for one in of if one.is_held_out == is_held_out]
        if half:
            rows = [_row(cause, [one for one in half if one.cause == cause]) for cause in (*FORESEEABLE, HEALTHY)]
            yield f"\n## The {name} half\n\n{sentence(half)}\n\n{markdown([row for row in rows if row['cases']])}"


def _row(cause: str, own: Sequence[Forecast]) -> dict[str, Any]:
    flagged = [one for one in own if one.is_flagged]
    named = [one for one in flagged if one.verdict.code == cause]
    row = {"planted": cause, "cases": len(own), "flagged": len(flagged), "cause named": len(named)}
    wrong = [one for one in (own if cause != HEALTHY else flagged) if one not in named]
    return row | {"verdict on the others": tally(map(_said, wrong))}


def _said(one: Forecast) -> str:
    return one.verdict.code if one.is_flagged or one.verdict.code == HEALTHY else f"{one.verdict.code} (note)"
