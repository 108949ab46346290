"""A diagnosis: the findings about a run, the most important first, and what they come to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gatdiag.diagnosis.causes import CAUSES, place
from gatdiag.diagnosis.finding import HEALTHY, SEVERITIES, Finding

_HEALTHY: Final = {  # state -> what is said where no check found anything
    "trained": "The network trains, and no check found anything wrong.",
    "partly": "The network trains, if not far yet, and no check found what would hold it back.",
    "failing": "The network has hardly trained, and no check found why; it may have needed more steps, or Adam in "
    "place of plain gradient descent.",
    "unknown": "No check found anything wrong. Whether the network trains cannot be said: too few steps, or no loss, "
    "were recorded.",
    "untrained": "Nothing was found that would keep the network from training.",
}
_REMARKS: Final = frozenset(code for code, row in CAUSES.items() if row.is_remark)


@dataclass(frozen=True)
class Diagnosis:
    """What `gatdiag.diagnose` says of a run. Iterating gives the findings; `print` shows all of it.

    Attributes:
        findings: Ranked: by severity, then a cause before its symptoms. Findings that another one explains are among
            that one's `symptoms`, not here.
        skipped: Check -> why it could not be made.
        state: How the training went: "trained", "partly", "failing", or "unknown" where too little was recorded;
            "untrained" before training (`gatdiag.preflight`).
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    state: str = "unknown"

    @property
    def verdict(self) -> Finding:
        """The first finding that may be why a network does not train or generalize; "healthy" where there is none."""
        return next((finding for finding in self.findings if finding.code not in _REMARKS), self._healthy())

    def _healthy(self) -> Finding:
        text = _HEALTHY[self.state]
        if self.state == "untrained" and "lr-too-large" in self.skipped:
            text += " Its optimizer was not looked at: give it with optimizer=."
        return Finding(HEALTHY, "note", "No problem found", text)

    def __iter__(self) -> Iterator[Finding]:
        """Yields the findings."""
        return iter(self.findings)

    def __len__(self) -> int:
        """How many findings there are."""
        return len(self.findings)

    def __str__(self) -> str:
        """The lines, as they are printed."""
        return "\n".join(self.lines())

    def lines(self, reasons: str = "diagnosis.skipped") -> Iterator[str]:
        """The findings, the verdict with its evidence and what to paste; or that there is none.

        Args:
            reasons: Where it is said why checks could not be made.
        """
        verdict = self.verdict
        if not verdict.is_problem:
            yield str(verdict)
        for finding in self.findings:
            yield str(finding)
            if finding is verdict:
                yield from finding.details()
            if finding.symptoms:
                yield f"  explains: {', '.join(symptom.title.lower() for symptom in finding.symptoms)}"
        if self.skipped:
            yield f"Not checked: {', '.join(self.skipped)} ({reasons} says why)"

    def document(self) -> dict[str, Any]:
        """All of it as plain data: verdict, findings, skipped, state."""
        return {"verdict": asdict(self.verdict), **asdict(self)}


def ranked(found: Sequence[Finding]) -> Iterator[Finding]:
    """The findings in the order of the table, each with those that it explains below it."""
    causes: list[tuple[Finding, list[Finding]]] = []
    for one in sorted(found, key=lambda one: place(one.code, is_late=bool(one.steps) and one.steps[0] > 1)):
        below = next((symptoms for cause, symptoms in causes if _explains(cause, one)), None)
        if below is None:
            causes.append((one, []))
        else:
            below.append(one)
    named = [replace(cause, symptoms=tuple(symptoms)) for cause, symptoms in causes]
    for one in sorted(named, key=lambda one: SEVERITIES.index(one.severity)):
        if not CAUSES[one.code].is_symptom:
            yield one
        elif one.severity != "note":
            yield _unexplained(one)


def _explains(cause: Finding, below: Finding) -> bool:
    row = CAUSES[below.code]
    is_less = SEVERITIES.index(cause.severity) > SEVERITIES.index(below.severity)
    return not row.is_alone and (row.is_symptom or not is_less)


def _unexplained(symptom: Finding) -> Finding:
    """A symptom that nothing explains: an overflow is an operation that left the range of numbers."""
    if symptom.code == "overflow":
        return replace(symptom, code="nonfinite-operation")
    return replace(symptom, text=f"{symptom.text} No cause that gatdiag knows explains it.")
