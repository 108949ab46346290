"""A treatment as a page: what `gatdiag.report.treatment` shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gatdiag.diagnosis import Finding
from gatdiag.report.treatment import Attempt, write_treatment

if TYPE_CHECKING:
    from gatdiag.treatment.treatment import Treatment, Trial

PAGE: Final = "treatment.html"

_BY_HAND: Final = "gatdiag cannot change this by itself: it is in the code of the model or of its training"


def write_page(done: Treatment, ended_by: BaseException | None = None) -> Path:
    """The page in the folder of a treatment.

    Args:
        done: The treatment, as far as it went.
        ended_by: What ended it early.

    Raises:
        OSError: The file cannot be written.
    """
    cut = "" if ended_by is None else _described(ended_by)
    return write_treatment(done.before.runs, list(_attempts(done)), done.folder / PAGE, ended_by=cut, overwrite=True)


def _attempts(done: Treatment) -> Iterator[Attempt]:
    for trial in done.trials:
        finding = trial.finding or done.verdict
        if finding is not None:
            yield Attempt(finding, trial.remedy, trial.changes, trial.runs, _helped(done, trial), trial.refused)
    for finding in by_hand(done):
        yield Attempt(finding, finding.remedy, reason=f"{_BY_HAND}.")


def _helped(done: Treatment, trial: Trial) -> bool | None:
    """None where it was cut short."""
    return trial.helped if len(trial.runs) == len(done.seeds) and trial.gains else None


def by_hand(done: Treatment) -> list[Finding]:
    """What is still wrong at the end and only the user can change."""
    last = done.after if done.helped and done.after is not None else done.before
    found = {one.code: one for diagnosis in last.diagnoses for one in diagnosis if one.severity != "note"}
    return [one for one in found.values() if one.remedy and not one.actions]


def _described(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by hand"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
