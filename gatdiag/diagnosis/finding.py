"""A finding: what is wrong with a training, the evidence, and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gatdiag.diagnosis.fixes import Action, Manual, Remedy
from gatdiag.diagnosis.wording import number, plain
from gatdiag.quantities import Side

__all__ = [
    "HEALTHY", "SEVERITIES", "UNDETERMINED", "UNEXPLAINED", "Action", "Evidence", "Finding", "Manual", "Remedy",
    "Severity",
]  # fmt: skip

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)

Part: TypeAlias = Literal[
    "error", "warning", "note", "healthy", "undetermined", "heading", "code", "evidence", "detail", "aside"
]
"""What a line of a diagnosis is: a finding, by its severity, or what belongs to the one above; an aside can wait."""

HEALTHY: Final = "healthy"
"""Code of the verdict of a training that trained, and in which nothing was found."""
UNEXPLAINED: Final = "unexplained"
"""Code of the verdict of a training that fails, and no check says why."""
UNDETERMINED: Final = "undetermined"
"""Code of the verdict where too little was recorded to say whether it trained."""


@dataclass(frozen=True)
class Evidence:
    """One number that supports a finding.

    Attributes:
        what: What was measured.
        value: The number.
        unit: Its unit, "" if it has none.
    """

    what: str
    value: float
    unit: str = ""

    @property
    def amount(self) -> str:
        """Number and unit."""
        return f"{number(self.value)} {self.unit}".rstrip()


@dataclass(frozen=True, repr=False)
class Finding:
    """One cause, its evidence and its remedy.

    Attributes:
        code: A stable name, one of `gatdiag.diagnosis.CAUSES`.
        severity: "error": training fails because of it; "warning": it may, or it is too early to tell; "note": the
            network trains nevertheless.
        title: A short name of the cause.
        text: What is wrong, and its effect.
        evidence: The numbers; the first one is compared with the threshold.
        threshold: The threshold, and the reason for it.
        layers: The layers concerned; empty for the whole network.
        parameters: The parameters concerned.
        steps: The first and the last step that the evidence comes from.
        figure: The name of the figure that shows it, or "".
        column: The recorded quantity, as "table.column", whose values by layer, or by step, show it; "" if
            none does.
        line: The threshold as a value of that quantity; None if another one is compared with it.
        beyond: On which side of it values are flagged.
        over: The layer whose value of that quantity those of the others are divided by; "" for that of
            `gatdiag.quantities.COMPARED_WITH`, if any.
        remedy: Code to paste, with this model's names and numbers.
        actions: The changes of `remedy` that `gatdiag.treat` can make by itself, in order; empty if only the user's
            code can be changed (a loss, a mask, a call that clips gradients).
        falsified_by: An observation that would disprove the finding.
        symptoms: Other findings that this one, if it is right, may bring about.
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
    column: str = ""
    line: float | None = None
    beyond: Side = "above"
    over: str = ""
    remedy: str = ""
    actions: tuple[Action, ...] = ()
    falsified_by: str = ""
    symptoms: tuple["Finding", ...] = ()

    @property
    def is_cause(self) -> bool:
        """False for the verdicts "healthy", "unexplained" and "undetermined"."""
        return self.code not in (HEALTHY, UNEXPLAINED, UNDETERMINED)

    def __repr__(self) -> str:
        """For example ``Finding(dead-units, error)``."""
        return f"Finding({self.code}, {self.severity})"

    @property
    def has_code(self) -> bool:
        """Whether the remedy is code to paste, and not only comments, which say what to try."""
        return not all(line.lstrip().startswith("#") for line in self.remedy.splitlines())

    def __str__(self) -> str:
        """Severity, title, text and code, in a line.

        Example:
            >>> print(Finding("dead-units", "error", "Dead units", "They stay dead."))
            error: Dead units: They stay dead. [dead-units]
        """
        text = f"{self.severity}: {self.title}: {self.text} [{self.code}]"
        return plain(text if self.is_cause else f"{self.title}. {self.text}")

    def details(self) -> Iterator[tuple[Part, str]]:
        """Yield lines with the code to paste, the evidence and what would falsify the finding."""
        if self.remedy:
            after = ", after `import gatdiag`" if "gatdiag." in self.remedy else ""
            yield "heading", f"  to paste{after}:" if self.has_code else "  to try:"
            yield from (("code", f"    {line}") for line in self.remedy.splitlines())
        first, *more = [f"{one.what}: {one.amount}" for one in self.evidence] or [""]
        if first:
            yield "evidence", plain(f"  evidence: {first}. {self.threshold}")
        if more:
            yield "aside", plain(f"  also measured: {'; '.join(more)}")
        if self.falsified_by:
            yield "aside", f"  wrong if: {self.falsified_by}"
