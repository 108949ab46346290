"""A diagnosis: the findings about a run, ranked, and the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gatdiag.diagnosis.causes import CAUSES, rank
from gatdiag.diagnosis.finding import HEALTHY, SEVERITIES, Finding
from gatdiag.diagnosis.initialization import NEEDS_STEPS
from gatdiag.diagnosis.laws import STOPPED

_NO_PROBLEM: Final = {  # by state of the training
    "trained": "The network trains, and no check found anything wrong.",
    "partly": "The network trains, though not far yet, and no check found anything that holds it back.",
    "unknown": "No check found anything wrong. Whether the network trains cannot be said: too few steps were recorded, "
    "or no loss.",
    "untrained": "Nothing was found that would keep the network from training.",
}
_NO_CAUSE: Final = Finding(
    HEALTHY,
    "warning",
    "The loss has fallen little",
    "No check found the cause. It may need more steps or, with plain gradient descent, Adam instead. If even the "
    "lowest possible loss is far above zero, as for soft targets or contrastive learning, it may have trained.",
)
_REMARKS: Final = frozenset(code for code, row in CAUSES.items() if row.is_remark)


@dataclass(frozen=True)
class Diagnosis:
    """The result of `gatdiag.diagnose`. Iterating yields the findings; `print` shows everything.

    Attributes:
        findings: Ranked by severity, then by the order of `gatdiag.diagnosis.CAUSES`. Findings that another one
            explains are not here, but among its `symptoms`.
        skipped: Code of a check -> why it could not be made.
        state: How the training went: "trained", "partly", "failing", or "unknown" if too little was recorded;
            "untrained" before training (`gatdiag.preflight`).
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    state: str = "unknown"

    @property
    def verdict(self) -> Finding:
        """The first finding that may keep the network from training or generalizing; code "healthy" if none does."""
        return next((finding for finding in self.findings if finding.code not in _REMARKS), self._without_cause())

    def _without_cause(self) -> Finding:
        if self.state == "failing":
            return _NO_CAUSE
        text = _NO_PROBLEM[self.state]
        if self.state == "untrained" and "lr-too-large" in self.skipped:
            text += " The optimizer was not checked: give it, too (optimizer= or --optimizer)."
        return Finding(HEALTHY, "note", "No problem found", text)

    def __iter__(self) -> Iterator[Finding]:
        """Yield the findings."""
        return iter(self.findings)

    def __len__(self) -> int:
        """Number of findings."""
        return len(self.findings)

    def __str__(self) -> str:
        """All lines."""
        return "\n".join(self.lines())

    def lines(self, reasons: str = "diagnosis.skipped") -> Iterator[str]:
        """Yield the findings as text, the verdict with its evidence and the code to paste.

        Args:
            reasons: Where the reader finds the reasons for skipped checks.
        """
        verdict = self.verdict
        if not verdict.is_problem:
            yield str(verdict)
            yield from self._unseen()
        for finding in self.findings:
            yield str(finding)
            if finding is verdict:
                yield from self._unseen()
                yield from finding.details()
            if finding.symptoms:
                yield f"  explains: {', '.join(symptom.title.lower() for symptom in finding.symptoms)}"
        if self.skipped:
            yield f"Not checked: {', '.join(self.skipped)} ({reasons} says why)"

    def _unseen(self) -> Iterator[str]:
        """Yield a line for each cause that could be the verdict if all laws were known, or the steps."""
        found = self.verdict
        for code, reason in self.skipped.items():
            may_rank_above = not found.is_problem or rank(code) < rank(found.code)
            if (STOPPED in reason or reason == NEEDS_STEPS) and CAUSES[code].severity != "note" and may_rank_above:
                yield f"  not looked at: {CAUSES[code].title.lower()}, which would rank above ({reason})"

    def document(self) -> dict[str, Any]:
        """Everything as plain data: verdict, findings, skipped, state."""
        return {"verdict": asdict(self.verdict), **asdict(self)}


def rank_findings(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings by severity and rank, each with the symptoms that it explains."""
    causes: list[tuple[Finding, list[Finding]]] = []
    for one in sorted(found, key=lambda one: rank(one.code, is_late=bool(one.steps) and one.steps[0] > 0)):
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
            yield _as_cause(one)


def _explains(cause: Finding, below: Finding) -> bool:
    row = CAUSES[below.code]
    is_less = SEVERITIES.index(cause.severity) > SEVERITIES.index(below.severity)
    return not row.is_independent and (row.is_symptom or not is_less)


def _as_cause(symptom: Finding) -> Finding:
    """A symptom that nothing explains: an overflow counts as an operation that returned infinity."""
    if symptom.code == "overflow":
        return replace(symptom, code="nonfinite-operation")
    general = CAUSES[symptom.code].remedy
    hint = "No check found another cause."
    if general is not None and symptom.remedy == general.code:
        hint = "No check found the cause; the experiment below narrows it down."
    return replace(symptom, text=f"{symptom.text} {hint}")
