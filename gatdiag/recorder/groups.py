"""What is recorded, and how often: presets of groups of columns. What costs more is recorded more rarely."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from gatdiag.errors import InputError
from gatdiag.quantities import GROUPS, Group

Preset: TypeAlias = Literal["fast", "standard", "full"]
Metrics: TypeAlias = Preset | Iterable[str]

PRESETS: Final[Mapping[str, Mapping[str, int]]] = {
    "fast": {"weights": 1, "health": 1, "outputs": 10},
    "standard": {
        "weights": 1,
        "health": 1,
        "outputs": 1,
        "balance": 1,
        "changes": 1,
        "attention": 10,
        "quantiles": 10,
        "spectral_norms": 50,
        "energies": 100,
        "ranks": 100,
    },
    "full": dict.fromkeys(GROUPS, 1),
}


@dataclass(frozen=True)
class Selection:
    """What is recorded.

    Attributes:
        name: The preset's name, or the names that were asked for.
        every: Group -> at every how many-th recorded step it is measured.
        columns: The columns that are kept.
        law_search_seconds: How long laws may be looked for; None: as long as it takes.
    """

    name: str
    every: Mapping[str, int]
    columns: frozenset[str]
    law_search_seconds: float | None = None

    def searching_laws(self, seconds: float | None) -> "Selection":
        """The same with a limit on the search for laws; with a limit of zero, without all that is known by laws.

        Raises:
            InputError: It is no number of seconds.
        """
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise InputError(
                "law_search_seconds= expects a number of seconds, 0 for no search or None for no limit; "
                f"got {seconds!r}"
            )
        if seconds != 0:
            return replace(self, law_search_seconds=seconds)
        every = {name: times for name, times in self.every.items() if name != "balance"}
        return replace(self, every=every, columns=self.columns - set(GROUPS["balance"].columns))

    def groups_due(self, record: int) -> frozenset[str]:
        """The groups that are measured at a record."""
        return frozenset(name for name in self.every if self.due(name, record))

    def due(self, group: str, record: int) -> bool:
        """Whether a group is measured at a record, counted from 0."""
        times = self.every.get(group)
        return times is not None and record % times == 0


def select(metrics: Metrics) -> Selection:
    """Resolve what the user asked for.

    Args:
        metrics: A preset, or names of groups and columns, each of which is then measured at every recorded step.

    Raises:
        InputError: A name is neither.

    Example:
        >>> select(["mu", "changes"]).every
        {'outputs': 1, 'changes': 1}
    """
    if isinstance(metrics, str) and metrics in PRESETS:
        every = PRESETS[metrics]
        return Selection(metrics, every, frozenset(column for name in every for column in GROUPS[name].columns))
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    chosen: dict[str, int] = {}
    columns: set[str] = set()
    for name in names:
        group = GROUPS.get(name) or _group_of(name)
        chosen[group.name] = 1
        columns |= set(group.columns) if name in GROUPS else {name}
    return Selection(", ".join(names), chosen, frozenset(columns))


def _group_of(column: str) -> Group:
    for group in GROUPS.values():
        if column in group.columns:
            return group
    known = [*PRESETS, *GROUPS, *(column for group in GROUPS.values() for column in group.columns)]
    similar = get_close_matches(str(column), known, n=3) or [*PRESETS, *GROUPS]
    raise InputError(
        f"metrics= expects a preset ({', '.join(PRESETS)}) or names of groups and columns, got {column!r}. "
        f"Known, among others: {', '.join(similar)}."
    )
