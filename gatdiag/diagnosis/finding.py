"""A finding: something measured that a reader of a run should know."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Severity: TypeAlias = Literal["error", "warning", "note", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)


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
class Finding:
    """What one measurement says.

    Attributes:
        code: Its name, which stays.
        severity: "error": the numbers are of no use; "warning": training does not reach something; "note": worth
            knowing; "info": measured, and no problem.
        title: What it is, in the field's words.
        text: What was measured, with numbers.
        threshold: From where on it is flagged, and why there.
        evidence: The numbers, the one that is compared with the threshold first.
        layers: The layers it is about; empty if it is about the whole network.
        parameters: The parameters it is about.
        steps: The steps it was measured at: the first and the last of them.
        figure: The name of the figure that shows it, or "".
        cause: What explains it, or "" where that is not known.
        cure: What to do, or "" where that is not known.
    """

    code: str
    severity: Severity
    title: str
    text: str
    threshold: str = ""
    evidence: tuple[Evidence, ...] = ()
    layers: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    figure: str = ""
    cause: str = ""
    cure: str = ""

    @property
    def is_problem(self) -> bool:
        """It is worth a reader's attention."""
        return self.severity != "info"
