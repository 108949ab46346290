"""What is recorded, and how often: groups of columns that are computed together, and presets of groups by price.

The price of a group is about what one record of it takes on a ten-layer GATv2 of width 64 on Cora (2 CPU cores), in
percent of a training step; `python -m tests.benchmarks.watch` measures it again. That of `weights` includes all that
any recording costs. What costs more is recorded more rarely.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from gatdiag.errors import InputError
from gatdiag.recorder import rows

Preset: TypeAlias = Literal["fast", "standard", "full"]
Metrics: TypeAlias = Preset | Iterable[str]

LEVELS: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def change_quantile(kind: str, level: float) -> str:
    """The column of a quantile of the relative or the absolute change.

    Example:
        >>> change_quantile("relative", 0.05)
        'relative_change_q5'
    """
    return f"{kind}_change_q{round(100 * level)}"


@dataclass(frozen=True)
class Group:
    """Columns of one table that are computed together.

    Attributes:
        name: What `metrics=` calls it.
        table: The table its columns are in.
        columns: Its columns.
        price: What one record takes, in percent of a training step (see the module).
    """

    name: str
    table: Literal["layers", "parameters", "neurons"]
    columns: tuple[str, ...]
    price: float


GROUPS: Final[Mapping[str, Group]] = {
    group.name: group
    for group in (
        Group("weights", "parameters", ("norm", "gradient_norm", "relative_gradient_norm", "update_ratio"), 4.0),
        Group("health", "parameters", ("non_finite", "gradient_non_finite"), 0.5),
        Group("changes", "parameters", ("unchanged_fraction", "changed_fraction_005", "changed_fraction_050"), 1.0),
        Group("outputs", "layers", (*rows.COLUMNS, *rows.GRADIENT_COLUMNS), 4.0),
        Group("balance", "neurons", ("delta", "c", "predicted_c"), 2.0),
        Group("attention", "layers", ("attention_entropy", "relative_attention_entropy"), 7.0),
        Group(
            "quantiles",
            "parameters",
            tuple(change_quantile(kind, level) for kind in ("relative", "absolute") for level in LEVELS),
            7.0,
        ),
        Group("spectra", "parameters", ("spectral_norm",), 5.0),
        Group(
            "energies",
            "layers",
            ("dirichlet_energy", "rayleigh_quotient", "gradient_dirichlet_energy", "gradient_rayleigh_quotient"),
            160.0,
        ),
        Group(
            "ranks",
            "layers",
            ("effective_rank", "numerical_rank", "gradient_effective_rank", "gradient_numerical_rank"),
            140.0,
        ),
        Group("angles", "layers", ("mad", "gradient_mad"), 70.0),
    )
}

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
        "spectra": 50,
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
