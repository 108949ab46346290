"""Settings of a recording: presets of groups of columns. What costs more is recorded more rarely."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.quantities import GROUPS, Group
from gatdiag.recorder.schedule import SHARE, Every

Preset: TypeAlias = Literal["fast", "standard", "full"]
Metrics: TypeAlias = Preset | Iterable[str]
Patterns: TypeAlias = str | Iterable[str] | None

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
_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae")


@dataclass(frozen=True)
class Selection:
    """Groups and columns that are recorded."""

    name: str  # of the preset, or the names that were asked for
    every: Mapping[str, int]  # group -> at every how many-th recorded step it is measured
    columns: frozenset[str]
    law_search_seconds: float | None = None  # how long laws may be looked for; None: as long as it takes

    def groups_due(self, record: int) -> frozenset[str]:
        """The groups that are measured at a record, counted from 0."""
        return frozenset(name for name, times in self.every.items() if record % times == 0)


def select(metrics: Metrics, law_search_seconds: float | None = None) -> Selection:
    """Resolve what the user asked for.

    Args:
        metrics: A preset, or names of groups and columns, each of which is then measured at every recorded step.
        law_search_seconds: How long laws may be looked for; 0: nothing is recorded that is known by laws.

    Raises:
        InputError: A name is neither, or `law_search_seconds` is not a number of seconds.

    Example:
        >>> select(["mu", "changes"]).every
        {'outputs': 1, 'changes': 1}
    """
    seconds = law_search_seconds
    if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
        raise InputError(
            f"law_search_seconds= expects a number of seconds, 0 for no search or None for no limit; got {seconds!r}"
        )
    if isinstance(metrics, str) and metrics in PRESETS:
        name, every = str(metrics), dict(PRESETS[metrics])
        columns = {column for group in every for column in GROUPS[group].columns}
    else:
        names = _listed(metrics)
        name, every, columns = ", ".join(map(str, names)), {}, set()
        for given in names:
            group = GROUPS.get(given) or _group_of(given)
            every[group.name] = 1
            columns |= set(group.columns) if given in GROUPS else {given}
    if seconds == 0:
        every.pop("balance", None)
        columns -= set(GROUPS["balance"].columns)
    return Selection(name, every, frozenset(columns), seconds)


def _listed(given: Any) -> list[Any]:
    """One item, or several, as a list."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


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


def make_layer_filter(include: Patterns = None, exclude: Patterns = None) -> Callable[[str], bool]:
    """Layer name -> whether it is recorded."""
    wanted, unwanted = _patterns(include, "include"), _patterns(exclude, "exclude")

    def keeps(name: str) -> bool:
        inside = include is None or any(fnmatchcase(name, pattern) for pattern in wanted)
        return inside and not any(fnmatchcase(name, pattern) for pattern in unwanted)

    return keeps


def _patterns(patterns: Patterns, what: str) -> list[str]:
    listed = [] if patterns is None else _listed(patterns)
    if not all(isinstance(pattern, str) for pattern in listed):
        raise InputError(f'{what}= expects patterns of layer names such as "convs.*", got {patterns!r}')
    return listed


def parse_best(best: str) -> tuple[str, bool]:
    """The scalar that `best=` names, and whether larger values are better."""
    if not isinstance(best, str) or not best.removeprefix("max:").removeprefix("min:"):
        raise InputError(f'best= expects the name of a logged scalar, such as "val_accuracy", got {best!r}')
    for prefix in ("max:", "min:"):
        if best.startswith(prefix):
            return best.removeprefix(prefix), prefix == "max:"
    return best, not any(word in best.lower() for word in _SMALLER_IS_BETTER)


def as_optimizer_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer] | None:
    """The optimizers that `optimizer=` names."""
    if optimizer is None:
        return None
    listed = _listed(optimizer)
    for item in listed:
        if not isinstance(item, Optimizer):
            raise InputError(
                f"optimizer= expects optimizers of torch, got {type(item).__name__}; for any other call "
                "recorder.step() before it moves the weights"
            )
    return listed


@dataclass(frozen=True)
class Settings:
    """How a training is recorded: the arguments of `gatdiag.watch`, checked and in their final form.

    Attributes:
        selection: What is measured.
        every: Which steps may be recorded.
        budget: Share of training time that recording may take; None: no limit, but for `every="auto"`.
        optimizers: The only ones whose steps count; None: all that hold parameters of the model.
        scaler: What scales the loss, if it is known.
        best: Name of the scalar at whose best value parameters are kept, and whether larger is better.
        keeps: Layer name -> whether it is recorded.
        name: What the run is called.
        overwrite: Delete the run that is there.
        resume: True: continue the run that is there; a number: from this step on.
        warn: Say errors of the training when they happen.
    """

    selection: Selection = field(default_factory=lambda: select("standard", 20.0))
    every: Every = "auto"
    budget: float | None = None
    optimizers: list[Optimizer] | None = None
    scaler: Any = None
    best: tuple[str, bool] | None = None
    keeps: Callable[[str], bool] = field(default_factory=make_layer_filter)
    name: str | None = None
    overwrite: bool = False
    resume: bool | int = False
    warn: bool = False

    def __post_init__(self) -> None:
        """Refuses what contradicts itself."""
        if self.overwrite and self.resume is not False:
            raise InputError("overwrite=True deletes the run that is there, resume=... continues it: choose one")
        if self.scaler is not None and not all(hasattr(self.scaler, name) for name in ("is_enabled", "get_scale")):
            raise InputError(
                f"scaler= expects what scales the loss, such as a torch.amp.GradScaler, got {self.scaler!r}"
            )

    @property
    def share(self) -> float | None:
        """Of training time, that recording may take; None: no limit."""
        return SHARE if self.budget is None and self.every == "auto" else self.budget

    @property
    def cadence(self) -> dict[str, Any]:
        """The entry of meta.json."""
        every = getattr(self.every, "__name__", "function") if callable(self.every) else str(self.every)
        groups = dict(self.selection.every)
        return {"every": every, "budget": self.share, "metrics": self.selection.name, "groups": groups}
