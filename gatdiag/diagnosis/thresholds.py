"""Limits of the diagnosis, each declared with its reason where it is used.

Ranges were measured on small seeded trainings that went well ("healthy runs") and on such with one planted fault
("faulty runs").
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gatdiag.errors import InputError
from gatdiag.names import number


class Limit(NamedTuple):
    """A limit and the reason for it."""

    value: float
    reason: str

    @property
    def amount(self) -> str:
        """Its value as text."""
        return number(float(self.value), 6)


_LIMITS: dict[str, Limit] = {}


def declare_limits(limits: Mapping[str, Limit]) -> None:
    """Declare limits by name.

    Raises:
        InputError: A name is declared with another value already.
    """
    for name, one in limits.items():
        if _LIMITS.setdefault(name, one) != one:
            raise InputError(
                f"the limit {name!r} is {_LIMITS[name].value:g} already, got {one.value:g}: choose another name"
            )


def limits_of(names: Iterable[str]) -> dict[str, Limit]:
    """The declared limits of these names."""
    return {name: _LIMITS[name] for name in names}


def limit(name: str) -> float:
    """The value of a threshold."""
    return _LIMITS[name].value


def threshold_text(*names: str) -> str:
    """Describe thresholds, for `Finding.threshold`."""
    return "; ".join(f"{_LIMITS[name].amount} ({_LIMITS[name].reason})" for name in names)
