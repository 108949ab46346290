"""A finding: what is wrong with a training, why, and what to do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from gatdiag.diagnosis.wording import number, plain

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)

HEALTHY: Final = "healthy"


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


class Remedy(NamedTuple):
    """What removes a cause: code to paste, and what of it `gatdiag.treat` can do by itself."""

    code: str
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One cause, with what shows it and what removes it.

    Attributes:
        code: Its name, which stays; one of `gatdiag.diagnosis.CAUSES`.
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

    def __str__(self) -> str:
        """It in a sentence or two.

        Example:
            >>> print(Finding("dead-units", "error", "Dead units", "They stay dead."))
            error: Dead units: They stay dead. [dead-units]
        """
        text = f"{self.severity}: {self.title}: {self.text} [{self.code}]"
        return plain(text if self.is_problem else f"{self.title}. {self.text}")

    def details(self) -> Iterator[str]:
        """Lines with its evidence, what to paste, what would show that it is wrong."""
        if self.evidence:
            evidence = (f"{one.what}: {number(one.value)} {one.unit}".rstrip() for one in self.evidence)
            yield plain(f"  evidence: {'; '.join(evidence)}. {self.threshold}")
        if self.remedy:
            yield "  to paste:"
            yield from (f"    {line}" for line in self.remedy.splitlines())
        if self.falsified_by:
            yield f"  wrong if: {self.falsified_by}"
