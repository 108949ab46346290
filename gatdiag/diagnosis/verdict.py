"""A diagnosis: the findings about a run, ranked, and the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gatdiag.card import Tone, card
from gatdiag.diagnosis.causes import CAUSES, rank
from gatdiag.diagnosis.finding import HEALTHY, SEVERITIES, UNDETERMINED, UNEXPLAINED, Finding, Part
from gatdiag.diagnosis.generalization import UNCOMPARED, UNVALIDATED
from gatdiag.diagnosis.initialization import NEEDS_STEPS
from gatdiag.diagnosis.laws import STOPPED
from gatdiag.diagnosis.output import NEEDS_PASS
from gatdiag.diagnosis.training import LEARNS, STILL_FALLS, TELLS_NOTHING
from gatdiag.diagnosis.wording import plain

_HEALTHY: Final = {  # by state of the training
    "trained": "The network trains, and no check found anything wrong.",
    "partly": "The network trains, though not far yet, and no check found anything that holds it back.",
    "untrained": "Nothing was found that would keep the network from training.",
}
_EXPERIMENT: Final = (
    "Train on one batch of a few nodes: if the loss does not fall there, model, loss or labels are wrong. If even the "
    "lowest possible loss is far above zero, as for soft targets or contrastive learning, it may have trained."
)
_MOVES_LITTLE: Final = 0.01  # share of the weights' norm: a step that is far from replacing them
_WORDS: Final[dict[Tone, str]] = {
    "failing": "failing", "degraded": "degraded", "healthy": "healthy", "unknown": "cannot tell",
}  # fmt: skip
_PARTS: Final[dict[str, Part]] = {  # what the line of a verdict is, by its code or tone
    HEALTHY: "healthy", UNDETERMINED: "undetermined", "failing": "error", "degraded": "warning",
}  # fmt: skip
_OF_LAWS: Final = ("conservation", "balance")  # figures


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of `gatdiag.diagnose`. Iterating yields the findings; `print` shows everything.

    Attributes:
        findings: Ranked by severity, then by the order of `gatdiag.diagnosis.CAUSES`. Findings that another one
            explains are not here, but among its `symptoms`.
        skipped: Code of a check -> why it could not be made.
        state: How the training went: "trained", "partly", "failing", or "unknown" if too little was recorded;
            "untrained" before training (`gatdiag.preflight`).
        reason: What shows the state; of an unknown state, what is missing.
        remarks: What is worth knowing and no finding, such as what moved conserved quantities.
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    state: str = "unknown"
    reason: str = "nothing was recorded"
    remarks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Finding:
        """The cause that ranks first among those that may keep the network from training or generalizing.

        Without one, its code is "healthy" (it trained, and nothing was found), "unexplained" (it fails, and no check
        says why) or "undetermined" (too little was recorded to say).
        """
        first = next((one for one in self.findings if not CAUSES[one.code].is_remark), None)
        if first is None or (self.state == "failing" and first.severity == "note"):
            return self._without_cause()
        if CAUSES[first.code].is_symptom:
            title = f"{first.title}, and no check says why"
            return replace(first, code=UNEXPLAINED, severity="warning", title=title)
        return first

    def _without_cause(self) -> Finding:
        if self.reason.endswith(STILL_FALLS):
            title = "It is too early to say whether it trains"
            return Finding(UNDETERMINED, "note", title, _as_sentence(self.reason))
        if self.reason.endswith(LEARNS):
            title = "It learns, and may have learned all there is"
            return Finding(UNDETERMINED, "note", title, _as_sentence(self.reason))
        if self.state == "failing":
            text = f"{_as_sentence(self.reason)} {_EXPERIMENT}"
            return Finding(UNEXPLAINED, "warning", "It does not train, and no check says why", text)
        missing = self.reason if self.state == "unknown" else ""
        if self.state == "trained" and self.skipped.get("overfitting", "").startswith(UNCOMPARED):
            missing = self.skipped["overfitting"]
        if missing:
            what = "The loss does not tell" if missing.endswith(TELLS_NOTHING) else "Too little was recorded to say"
            return Finding(UNDETERMINED, "note", f"{what} whether it trains", _as_sentence(missing))
        text = _HEALTHY[self.state]
        if self.state == "untrained" and "lr-too-large" in self.skipped:
            text += " The optimizer was not checked: give it, too (optimizer= or --optimizer)."
        if self.skipped.get("overfitting") == UNVALIDATED:
            text += " How it does on other data is not known: log a validation score."
        return Finding(HEALTHY, "note", "No problem found", text)

    def __iter__(self) -> Iterator[Finding]:
        """Yield the findings."""
        return iter(self.findings)

    def __len__(self) -> int:
        """Number of findings."""
        return len(self.findings)

    def __repr__(self) -> str:
        """For example ``Diagnosis(init-unbalanced, error; 1 finding, 8 checks skipped)``."""
        verdict, count = self.verdict, len(self)
        found = f"{count} finding{'s' * (count != 1)}, {len(self.skipped)} checks skipped"
        return f"Diagnosis({verdict.code}, {verdict.severity}; {found})"

    @property
    def word(self) -> str:
        """The verdict in a word, as all that is shown says it: "failing", "degraded", "healthy" or "cannot tell".

        "trains" if it does, and there is something that it might do better.
        """
        is_better = self.tone == "healthy" and self.verdict.code != HEALTHY
        return "trains" if is_better else _WORDS[self.tone]

    @property
    def title(self) -> str:
        """The verdict in its word, title and, of a cause, code."""
        return f"{self.word}: {self.verdict.title}" + f" [{self.verdict.code}]" * self.verdict.is_cause

    @property
    def headline(self) -> str:
        """The verdict in a line: its word, title, text and code."""
        verdict = self.verdict
        text = f": {verdict.text} [{verdict.code}]" if verdict.is_cause else f". {verdict.text}"
        return plain(f"{self.word}: {verdict.title}{text}")

    def _repr_html_(self) -> str:
        verdict = self.verdict
        rows = [(one.what, one.amount) for one in verdict.evidence]
        others = [(one.severity, one.title) for one in self.findings if one is not verdict]
        return card(self.title, verdict.text, tone=self.tone, rows=[*rows, *others], code=verdict.remedy)

    def show(self) -> None:
        """Print all lines."""
        print(self)  # noqa: T201

    @property
    def tone(self) -> Tone:
        """Whether the training fails, is held back ("degraded"), is healthy, or cannot be judged ("unknown")."""
        if self.verdict.code == UNDETERMINED:
            return "unknown"
        if self.state == "failing" or self.verdict.severity == "error":
            return "failing"
        return "degraded" if self.verdict.severity == "warning" else "healthy"

    def __str__(self) -> str:
        """All lines."""
        return "\n".join(self.lines())

    def lines(self, reasons: str = "diagnosis.skipped") -> Iterator[str]:
        """Yield the findings as text, the verdict with its evidence and the code to paste.

        Args:
            reasons: Where the reader finds the reasons for skipped checks.
        """
        return (text for _, text in self.parts(reasons))

    def parts(self, reasons: str = "diagnosis.skipped") -> Iterator[tuple[Part, str]]:
        """Yield the lines of `lines`, each with what it is."""
        verdict = self.verdict
        is_symptom = bool(self.findings) and not verdict.is_cause and verdict.text == self.findings[0].text
        for finding in [verdict, *(one for one in self.findings[is_symptom:] if one is not verdict)]:
            if finding is not verdict:
                yield finding.severity, str(finding)
            else:
                yield _PARTS.get(finding.code) or _PARTS.get(self.tone, finding.severity), self.headline
                yield from (("detail", line) for line in self._unseen())
                yield from finding.details()
            if finding.symptoms:
                alike = ", ".join(symptom.title.lower() for symptom in finding.symptoms)
                yield "aside", f"  would also look like: {alike}"
        if any(finding.figure in _OF_LAWS for finding in self.findings):
            yield from (("aside", plain(remark)) for remark in self.remarks)
        if count := len(self.skipped):
            checked = f"{len(CAUSES) - count} of {len(CAUSES)} causes"
            yield "detail", f"Checked for {checked}; {reasons} says why not the others"

    def _unseen(self) -> Iterator[str]:
        """Yield a line for each cause that could be the verdict if all laws, the steps or another pass were known."""
        found = self.verdict
        for code, reason in self.skipped.items():
            may_rank_above = not found.is_cause or rank(code) < rank(found.code)
            is_open = STOPPED in reason or reason == NEEDS_STEPS or (found.code == UNEXPLAINED and reason == NEEDS_PASS)
            if is_open and CAUSES[code].severity != "note" and may_rank_above:
                yield f"  not looked at: {CAUSES[code].title.lower()}, which would rank above ({reason})"

    def document(self) -> dict[str, Any]:
        """Everything as plain data: word, verdict, findings, skipped, state, reason, remarks."""
        return {"word": self.word, "verdict": asdict(self.verdict), **asdict(self)}


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def stand_back(found: Sequence[Finding]) -> list[Finding]:
    """The findings without those that say nothing beside another one.

    Example:
        >>> [*stand_back([Finding(code, "note", "", "") for code in ("gradients-not-cleared", "law-broken")])]
        [Finding(gradients-not-cleared, note)]
    """
    codes = {one.code for one in found}
    return [one for one in found if codes.isdisjoint(CAUSES[one.code].gives_way_to)]


def rank_findings(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings by severity and rank, each with the symptoms that it explains."""
    causes: list[tuple[Finding, list[Finding]]] = []
    for one in sorted(found, key=lambda one: rank(one.code, is_late=bool(one.steps) and one.steps[0] > 0)):
        cause, below = next((known for known in causes if _explains(known[0], one)), (one, None))
        if below is None:
            causes.append((one, []))
        elif _is_supported(cause, one):
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


def _is_supported(cause: Finding, below: Finding) -> bool:
    """The evidence supports what stands below: steps are not both long and short."""
    if cause.code == "lr-too-large":
        return below.code not in ("lr-too-small", "small-steps")
    return below.code != "lr-too-large" or any(one.value > _MOVES_LITTLE for one in below.evidence[:1])


def _as_cause(symptom: Finding) -> Finding:
    """A symptom that nothing explains: an overflow counts as an operation that returned infinity."""
    if symptom.code == "overflow":
        return replace(symptom, code="nonfinite-operation")
    general = CAUSES[symptom.code].remedy
    has_experiment = general is not None and symptom.remedy == general.code
    hint = " No check found the cause; what to try narrows it down." if has_experiment else ""
    return replace(symptom, text=f"{symptom.text}{hint}")
