"""Warns of errors while the training runs, once for each error that `gatdiag.diagnosis` finds with certainty."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gatdiag.names import one_line
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.non_finite import FirstNonFinite

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis, Finding

# Errors that no later step can disprove -> the recorded steps needed to be certain. Errors that are found by the
# learning curve are not among them: a plateau looks like failed training until it ends.
CERTAIN: Final = {
    "input-nonfinite": 1,
    "output-softmax-twice": 1,
    "loss-broadcast": 10,
    "no-training-signal": 10,
    "parameters-not-in-optimizer": 10,
    "parameters-without-gradient": 10,
    "gradients-not-cleared": 10,
}
_USES_LEARNING_CURVE: Final = "parameters-without-gradient"  # once the learning curve is known
_CHECKS: Final = frozenset({1, 10, 100})  # after so many recorded steps


class Alarm:
    """Checks one training.

    Args:
        diagnose: Diagnoses it; given codes, the diagnosis is empty if none of them is found, which is quicker.
        guard: Shows the warnings.
        first: The first NaN or infinity of a resumed run.
    """

    def __init__(self, diagnose: "Callable[..., Diagnosis]", guard: Guard, first: FirstNonFinite | None) -> None:
        self._diagnose, self._guard, self._first = diagnose, guard, first
        self._checked = 0  # recorded steps at the last check
        self._warned: set[str] = set()

    def check(self, step: int, records: int, first: FirstNonFinite | None) -> None:
        """Check the training after a step, if a check is due, and warn of errors.

        Args:
            step: The last step.
            records: Number of recorded steps.
            first: The first NaN or infinity so far.
        """
        if self._first is not None:
            return  # measurements after it are meaningless
        if first is not None:
            self._first = first
            self._warn_of_non_finite(first)
        elif records in _CHECKS and records != self._checked:
            self._checked = records
            diagnosis = self._diagnose([code for code, least in CERTAIN.items() if records >= least])
            for finding in diagnosis.findings:
                is_certain = finding.severity == "error" and records >= CERTAIN.get(finding.code, records + 1)
                if finding.code == _USES_LEARNING_CURVE and diagnosis.state != "unknown":
                    is_certain = False  # layers may be frozen on purpose
                if is_certain and finding.code not in self._warned:
                    self._warned.add(finding.code)
                    self._warn(f"{finding.title}: {finding.text}", finding, step)

    def _warn_of_non_finite(self, first: FirstNonFinite) -> None:
        verdict = self._diagnose().verdict
        where = f"{first.kind} in the {first.where} of {first.parameter or first.layer}"
        cause = f"{verdict.title}: {verdict.text}"
        if verdict.code in self._warned:
            cause = f"{verdict.title} (see the earlier warning)"
        self._warn(cause if verdict.code == "nonfinite-operation" else f"{where}. {cause}", verdict, first.step)

    def _warn(self, text: str, finding: "Finding", step: int) -> None:
        self._guard.warn_of_training(f"step {step:,}: {one_line(text)} [{finding.code}]", step)
