"""What `gatdiag.preflight` says of the bank's networks before they are trained: which of them will fail?"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from gatdiag.diagnosis import HEALTHY, Diagnosis, Finding
from gatdiag.experiments.faults.bank import Result
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.training import LOSSES, set_up
from gatdiag.rehearsal import preflight
from gatdiag.run.files import atomic_write

FORESEEABLE: Final = (
    "init-unbalanced", "init-too-small", "init-too-large", "depth-oversmoothing", "depth-vanishing-gradient",
    "depth-exploding-gradient", "rank-collapse", "dead-units", "lr-too-large", "parameters-not-in-optimizer",
    "parameters-without-gradient", "input-nonfinite", "input-scale", "input-constant", "output-softmax-twice",
    "nonfinite-operation", "attention-saturated", "no-training-signal",
)  # fmt: skip
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


def forecasts(results: Iterable[Result], on_done: Callable[[Case], None] | None = None) -> Iterator[Forecast]:
    """Of all faults that count and whose cause exists before training, of all repaired twins, and of the controls."""
    for result in results:
        case = result.case
        if result.counts and case.cause in (*FORESEEABLE, HEALTHY):
            yield _forecast(case.name, case.cause, case.faulty, result)
        if result.counts and case.repaired is not None:
            yield _forecast(f"{case.name}, repaired", HEALTHY, case.repaired, result)
        if on_done is not None:
            on_done(case)


def _forecast(name: str, cause: str, recipe: Recipe, result: Result) -> Forecast:
    diagnosis = foresee(recipe)
    codes = tuple(finding.code for finding in diagnosis)
    return Forecast(name, cause, result.case.is_held_out, diagnosis.verdict, codes)


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


def write_forecasts(of: Sequence[Forecast], folder: Path) -> Path:
    """Write `preflight.md`, a table for each half of the bank."""
    path = folder / "preflight.md"
    with atomic_write(path) as part:
        part.write_text("\n".join(_page(of)) + "\n")
    return path


def _page(of: Sequence[Forecast]) -> Iterator[str]:
    yield "# Faults before training: what `gatdiag.preflight` said of the untrained networks\n"
    yield "Written by `gatdiag faults --preflight`. A network is flagged if the verdict is an error or a warning."
    for name, is_held_out in (("calibration", False), ("held-out", True)):
        half = [one for one in of if one.is_held_out == is_held_out]
        if half:
            yield f"\n## The {name} half\n\n{sentence(half)}\n"
            yield "| planted | cases | flagged | cause named | verdict on the others |\n|---|--:|--:|--:|---|"
            yield from (_row(cause, half) for cause in (*FORESEEABLE, HEALTHY))


def _row(cause: str, half: Sequence[Forecast]) -> str:
    own = [one for one in half if one.cause == cause]
    flagged = [one for one in own if one.is_flagged]
    named = [one for one in flagged if one.verdict.code == cause]
    wrong = own if cause != HEALTHY else flagged
    others = Counter(_said(one) for one in wrong if one not in named)
    said = ", ".join(text if count == 1 else f"{text} {count}" for text, count in others.most_common())
    return f"| {cause} | {len(own)} | {len(flagged)} | {len(named)} | {said} |"


def _said(one: Forecast) -> str:
    return one.verdict.code if one.is_flagged or one.verdict.code == HEALTHY else f"{one.verdict.code} (note)"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"
