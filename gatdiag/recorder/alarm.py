"""Says an error of the training once, in one line, when it is certain: what `gatdiag.diagnosis` finds, and no more."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from gatdiag.names import one_line
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.non_finite import FirstNonFinite

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis, Finding

# Errors that no later step can take back -> how many recorded steps it takes to be sure of them. What rests on the
# course of the loss is none of them: a plateau looks like a training that fails, until it ends.
CERTAIN: Final = {
    "input-nonfinite": 1,
    "output-softmax-twice": 1,
    "no-training-signal": 10,
    "parameters-not-in-optimizer": 10,
    "parameters-without-gradient": 10,
    "gradients-not-cleared": 10,
}
_BY_LOSS_LATER: Final = "parameters-without-gradient"  # rests on the course of the loss as soon as that is known
_LOOKS: Final = frozenset({1, 10, 100})  # recorded steps after which it looks


class Diagnose(Protocol):
    """Diagnoses the training as it is now."""

    def __call__(self, codes: Collection[str] = ()) -> "Diagnosis":
        """Without findings, which is quicker, unless one of these codes is found; with no codes, in any case."""


class Alarm:
    """Watches over one training."""

    def __init__(self, diagnose: Diagnose, guard: Guard, first: FirstNonFinite | None) -> None:
        self._diagnose, self._guard, self._first = diagnose, guard, first
        self._looked = 0
        self._said: set[str] = set()

    def look(self, step: int, records: int, first: FirstNonFinite | None) -> None:
        """Look at the training after a step, if it is time to, and say what is wrong."""
        if self._first is not None:
            return  # nothing that is measured means anything
        if first is not None:
            self._first = first
            self._say_broken(first)
        elif records in _LOOKS and records != self._looked:
            self._looked = records
            diagnosis = self._diagnose([code for code, least in CERTAIN.items() if records >= least])
            for finding in diagnosis.findings:
                is_certain = finding.severity == "error" and records >= CERTAIN.get(finding.code, records + 1)
                if finding.code == _BY_LOSS_LATER and diagnosis.state != "unknown":
                    is_certain = False  # some layers are frozen on purpose
                if is_certain and finding.code not in self._said:
                    self._said.add(finding.code)
                    self._say(f"{finding.title}: {finding.text}", finding, step)

    def _say_broken(self, first: FirstNonFinite) -> None:
        verdict = self._diagnose().verdict
        where = f"{first.kind} in the {first.where} of {first.parameter or first.layer}"
        cause = f"{verdict.title}: {verdict.text}"
        if verdict.code in self._said:
            cause = f"{verdict.title}, as said before"
        self._say(cause if verdict.code == "nonfinite-operation" else f"{where}. {cause}", verdict, first.step)

    def _say(self, text: str, finding: "Finding", step: int) -> None:
        self._guard.say(f"step {step:,}: {one_line(text)} [{finding.code}]", step)
