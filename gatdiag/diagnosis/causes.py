"""Causes, each declared where it is checked, by the decorator `cause`; others add theirs by an entry point.

Findings are ranked by severity; of two with the same severity, the one whose cause has the lower rank comes first. The
order is: certain errors outside of the network, then what is there before the first step, then what training makes of
it, last what is a matter of degree. A finding explains those below it, which are then listed as its symptoms. Nothing
explains an independent finding, and a note explains no warning or error unless that is a symptom by nature.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from gatdiag.diagnosis.finding import Finding, Remedy, Severity
from gatdiag.diagnosis.thresholds import Limit, declare_limits
from gatdiag.errors import InputError

Result: TypeAlias = Finding | str | Iterable[Finding] | None
Check: TypeAlias = Callable[[Any], Result]
"""From `gatdiag.diagnosis.Facts` to the finding, the reason why the check cannot be made, or None."""

ENTRY_POINTS: Final = "gatdiag.causes"
_Function = TypeVar("_Function", bound=Check)


@dataclass(frozen=True, repr=False)
class Cause:
    """What all findings of one code have in common.

    Attributes:
        code: A stable name.
        title: A short name, in the field's words.
        rank: Of two findings of the same severity, that with the lower rank comes first.
        why: Why it has this rank.
        figure: The name of the figure that shows it, or "".
        column: The recorded quantity, as "table.column", whose values by layer, or by step, show it; "" if
            none does.
        falsified_by: An observation that would disprove it.
        remedy: What removes it, if that is the same for all runs.
        severity: Of all its findings; "by loss": follows from how well the training went; "certain": an error, or a
            warning if the network trains nevertheless.
        needs: Functions of the facts that say why the check cannot be made, "" if it can.
        needs_training: It cannot be seen before the first step.
        is_independent: It is measured directly, whatever else is wrong, so that no other finding explains it.
        is_symptom: An effect, not a cause; as a note it is never reported by itself.
        is_remark: It says nothing of how well the network trains, so it is never the verdict.
        gives_way_to: Codes of the findings beside which it says nothing, and is left out.
        below_if_late: The code below which it ranks if it arose in training and was not there from the start.
        limits: The names of the limits that its findings name.
        check: The check; None if the check of another cause finds it.
        text: What `gatdiag explain` says of it.
    """

    code: str
    title: str
    rank: float
    why: str = ""
    figure: str = ""
    column: str = ""
    falsified_by: str = ""
    remedy: Remedy | None = None
    severity: Severity | Literal["by loss", "certain"] = "by loss"
    needs: tuple[Callable[[Any], str], ...] = ()
    needs_training: bool = False
    is_independent: bool = False
    is_symptom: bool = False
    is_remark: bool = False
    gives_way_to: tuple[str, ...] = ()
    below_if_late: str = ""
    limits: tuple[str, ...] = ()
    check: Check | None = None
    text: str = ""

    def __repr__(self) -> str:
        """For example ``Cause(dead-units)``."""
        return f"Cause({self.code})"

    def run(self, facts: Any) -> Result:
        """Make the check, unless something that it needs is missing."""
        missing = next(filter(None, (need(facts) for need in self.needs)), "")
        return missing or (None if self.check is None else self.check(facts))


_CAUSES: Final[dict[str, Cause]] = {}
CAUSES: Final[Mapping[str, Cause]] = MappingProxyType(_CAUSES)
"""Code -> its cause, in the order of ranks."""


def cause(
    code: str,
    title: str,
    *,
    rank: float,
    limits: Mapping[str, Limit] = MappingProxyType({}),
    borrowed: Iterable[str] = (),
    is_checked: bool = True,
    **given: Any,
) -> Callable[[_Function], _Function]:
    """Declare a cause by its check, a function of `gatdiag.diagnosis.Facts`.

    The check returns `Facts.finding(...)`, the reason why it cannot be made, or None if nothing is wrong. Its docstring
    is what ``gatdiag explain CODE`` prints. A package of your own makes its causes known by an entry point of the group
    ``gatdiag.causes`` that names the module.

    Args:
        code: A stable name that no other cause has.
        title: A short name, in the field's words.
        rank: Its place among findings of the same severity; ``gatdiag explain`` lists all in this order.
        limits: Name -> the limits that it compares with, each with its reason.
        borrowed: Names of limits of other causes.
        is_checked: False if the check finds this cause beside another one.
        **given: Other attributes of `Cause`.

    Raises:
        InputError: There is another cause of this code.

    Example:
        >>> @cause("tiny-width", "Very narrow layers", rank=105, limits={"width": Limit(4, "neurons of a layer")})
        ... def check_width(facts):
        ...     '''Layers of less than 4 neurons.'''
        ...     return None
        >>> CAUSES["tiny-width"].text
        'Layers of less than 4 neurons.'
        >>> remove("tiny-width")
    """

    def declare(check: _Function) -> _Function:
        if code in _CAUSES:
            raise InputError(f"there is a cause called {code!r} already: choose another code")
        declare_limits(limits)
        names, text = (*limits, *borrowed), " ".join((check.__doc__ or "").split())
        own = check if is_checked else None
        _CAUSES[code] = Cause(code, title, rank, limits=names, check=own, text=text, **given)
        _sort()
        return check

    return declare


def _sort() -> None:
    ordered = sorted(_CAUSES.values(), key=lambda one: one.rank)
    _CAUSES.clear()
    _CAUSES.update((one.code, one) for one in ordered)


def remove(code: str) -> None:
    """Forget a cause."""
    del _CAUSES[code]


@cache
def load_plugins() -> None:
    """Import the modules that entry points name; one that cannot be imported is a warning."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            warnings.warn(f"gatdiag: the causes of {point.value} could not be loaded: {error!r}", stacklevel=2)


def rank(code: str, *, is_late: bool = False) -> float:
    """Rank of a cause; just below `below_if_late` if the finding arose in training."""
    above = CAUSES[code].below_if_late if is_late else ""
    return CAUSES[above].rank + 0.5 if above else CAUSES[code].rank
