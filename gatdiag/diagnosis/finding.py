"""A finding: what is wrong with a training, why, and what to do; a diagnosis: findings, the most important first."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)

HEALTHY: Final = "healthy"
_HEALTHY: Final = {  # state -> what is said where no check found anything
    "trained": "The network trains, and no check found anything wrong.",
    "partly": "The network trains, if not far yet, and no check found what would hold it back.",
    "failing": "The network has hardly trained, and no check found why; it may have needed more steps, or Adam in "
    "place of plain gradient descent.",
    "unknown": "No check found anything wrong. Whether the network trains cannot be said: too few steps, or no loss, "
    "were recorded.",
    "untrained": "Nothing was found that would keep the network from training.",
}
# Properties of the optimizer or of the data, said once and never the reason why a network does not train.
DESCRIPTIVE: Final = frozenset({"optimizer-breaks-conservation"})


@dataclass(frozen=True)
class Evidence:
    """One number that a finding rests on.

    Attributes:
        what: What was measured.
        value: The number.
        unit: Its unit, or "" if it has none.
    """

    what: str
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Action:
    """One thing that a remedy does and that `gatdiag.treat` can do by itself, as data.

    Attributes:
        name: Its name, which stays; a key of `gatdiag.treatment.ACTIONS`.
        settings: Its numbers and names.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """It as a call.

        Example:
            >>> print(Action("weight_decay", {"value": 5e-4}))
            weight_decay(value=0.0005)
        """
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"


@dataclass(frozen=True)
class Finding:
    """One cause, with what shows it and what removes it.

    Attributes:
        code: Its name, which stays; one of `gatdiag.diagnosis.CAUSES`, or that of a symptom without a known cause.
        severity: "error": the training fails of it; "warning": it may, or it is too early to say; "note": the network
            trains all the same.
        title: What it is, in the field's words.
        text: One sentence: what is wrong, and what it does.
        evidence: The numbers, the one that is compared with the threshold first.
        threshold: From where on it is flagged, and why there.
        layers: The layers it is about; empty if it is about the whole network.
        parameters: The parameters it is about.
        steps: The steps it was measured at: the first and the last of them.
        figure: The name of the figure that shows it, or "".
        remedy: Code to paste, with this model's names and numbers.
        actions: What `remedy` does, as far as `gatdiag.treat` can do it by itself, in order; empty where the code is
            the user's to change (a loss, a mask, a call that clips).
        falsified_by: An observation that would show that it is wrong.
        symptoms: Other findings that this one explains.
    """

    code: str
    severity: Severity
    title: str
    text: str
    evidence: tuple[Evidence, ...] = ()
    threshold: str = ""
    layers: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    figure: str = ""
    remedy: str = ""
    actions: tuple[Action, ...] = ()
    falsified_by: str = ""
    symptoms: tuple["Finding", ...] = ()

    @property
    def is_problem(self) -> bool:
        """It is worth a reader's attention."""
        return self.code != HEALTHY


@dataclass(frozen=True)
class Diagnosis:
    """What `gatdiag.diagnose` says of a run. Iterating gives the findings.

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
        return next((finding for finding in self.findings if finding.code not in DESCRIPTIVE), self._healthy())

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

    def document(self) -> dict[str, Any]:
        """All of it as plain data: verdict, findings, skipped, state."""
        return {"verdict": asdict(self.verdict), **asdict(self)}
