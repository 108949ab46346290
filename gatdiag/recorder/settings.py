"""Settings of a recording, and presets of groups of columns, in which expensive groups are recorded less often."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.laws import Laws
from gatdiag.quantities import GROUPS, Group, quantity
from gatdiag.recorder.budget import DEFAULT_BUDGET, Every
from gatdiag.recorder.tracking import Tracker

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

    name: str  # of the preset, or of the groups and columns
    every: Mapping[str, int]  # group -> number of records from one measurement to the next
    columns: frozenset[str]

    def groups_due(self, record: int) -> frozenset[str]:
        """The groups that are measured at a record, counted from 0."""
        return frozenset(name for name, every in self.every.items() if record % every == 0)


def select(metrics: Metrics, *, laws: bool = True) -> Selection:
    """Resolve `metrics=`.

    Args:
        metrics: A preset, or names of groups and columns, which are then measured at every recorded step.
        laws: False leaves out columns that need laws.

    Raises:
        InputError: A name is unknown.

    Example:
        >>> select(["mu", "changes"]).every
        {'outputs': 1, 'changes': 1}
    """
    if isinstance(metrics, str) and metrics in PRESETS:
        name, every = str(metrics), dict(PRESETS[metrics])
        columns = {column for group in every for column in GROUPS[group].columns}
    else:
        names = _as_list(metrics)
        name, every, columns = ", ".join(map(str, names)), {}, set()
        for given in names:
            group = GROUPS.get(given) or _group_of(given)
            every[group.name] = 1
            columns |= set(group.columns) if given in GROUPS else {given, quantity(group.table, given).counted} - {""}
    if not laws:
        every.pop("balance", None)
        columns -= set(GROUPS["balance"].columns)
    return Selection(name, every, frozenset(columns))


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _group_of(column: str) -> Group:
    for group in GROUPS.values():
        if column in group.columns:
            return group
    known = [*PRESETS, *GROUPS, *(column for group in GROUPS.values() for column in group.columns)]
    similar = get_close_matches(str(column), known, n=3) or [*PRESETS, *GROUPS]
    raise InputError(
        f"metrics= expects a preset ({', '.join(PRESETS)}) or names of groups and columns, got {column!r}. "
        f"Known names include: {', '.join(similar)}."
    )


def make_layer_filter(include: Patterns = None, exclude: Patterns = None) -> Callable[[str], bool]:
    """A function of a layer's name: whether it is recorded."""
    included, excluded = _check_patterns(include, "include"), _check_patterns(exclude, "exclude")

    def layer_filter(name: str) -> bool:
        is_included = include is None or any(fnmatchcase(name, pattern) for pattern in included)
        return is_included and not any(fnmatchcase(name, pattern) for pattern in excluded)

    return layer_filter


def _check_patterns(patterns: Patterns, argument: str) -> list[str]:
    found = [] if patterns is None else _as_list(patterns)
    if not all(isinstance(pattern, str) for pattern in found):
        raise InputError(f'{argument}= expects patterns of layer names such as "convs.*", got {patterns!r}')
    return found


def parse_best(best: str) -> tuple[str, bool]:
    """The name of the scalar in `best=`, and whether larger values are better."""
    if not isinstance(best, str) or not best.removeprefix("max:").removeprefix("min:"):
        raise InputError(f'best= expects the name of a logged scalar, such as "val_accuracy", got {best!r}')
    for prefix in ("max:", "min:"):
        if best.startswith(prefix):
            return best.removeprefix(prefix), prefix == "max:"
    return best, not any(word in best.lower() for word in _SMALLER_IS_BETTER)


def as_optimizer_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer] | None:
    """The value of `optimizer=` as a list."""
    if optimizer is None:
        return None
    optimizers = _as_list(optimizer)
    for item in optimizers:
        if not isinstance(item, Optimizer):
            raise InputError(
                f"optimizer= expects a torch.optim.Optimizer or several, got {type(item).__name__}; for any other "
                "optimizer call recorder.step() before it updates the weights"
            )
    return optimizers


@dataclass(frozen=True)
class Settings:
    """The arguments of `gatdiag.watch`, checked and resolved.

    Attributes:
        selection: What is measured.
        every: Which steps may be recorded.
        budget: Share of training time that recording may take; None: the default with `every="auto"`, else no limit.
        optimizers: The only optimizers whose steps count; None: all that hold parameters of the model.
        scaler: The gradient scaler, if it is known.
        best: Name of the scalar at whose best value the parameters are saved, and whether larger is better.
        laws: The laws of the model, if they are known already.
        layer_filter: Layer name -> whether it is recorded.
        name: Name of the run.
        overwrite: Delete the run in the folder.
        numbered: Record in a numbered sibling of a folder that holds a run.
        resume: True: continue the run in the folder; a number: from this step on.
        warn: Warn of training errors while the training runs.
        needs_step: Leave no run behind if no step is made.
        tracker: Called with the scalars of what is written.
    """

    selection: Selection = field(default_factory=lambda: select("standard"))
    every: Every = "auto"
    budget: float | None = None
    optimizers: list[Optimizer] | None = None
    scaler: Any = None
    best: tuple[str, bool] | None = None
    laws: Laws | None = None
    layer_filter: Callable[[str], bool] = field(default_factory=make_layer_filter)
    name: str | None = None
    overwrite: bool = False
    numbered: bool = False
    resume: bool | int = False
    warn: bool = False
    needs_step: bool = False
    tracker: Tracker | None = None

    def __post_init__(self) -> None:
        """Check arguments against each other."""
        if self.overwrite and self.resume is not False:
            raise InputError("overwrite=True deletes the run in the folder, resume=... continues it: use only one")
        if self.tracker is not None and not callable(self.tracker):
            raise InputError(
                "tracker= expects a function that is called with updates, such as "
                f"gatdiag.integrations.wandb.to_wandb(), got {self.tracker!r}"
            )
        if self.scaler is not None and not all(hasattr(self.scaler, name) for name in ("is_enabled", "get_scale")):
            raise InputError(
                f"scaler= expects a gradient scaler with is_enabled and get_scale, such as torch.amp.GradScaler, got "
                f"{self.scaler!r}"
            )

    @property
    def budget_share(self) -> float | None:
        """Share of training time that recording may take; None: no limit."""
        return DEFAULT_BUDGET if self.budget is None and self.every == "auto" else self.budget

    @property
    def cadence(self) -> dict[str, Any]:
        """The entry of meta.json."""
        every = getattr(self.every, "__name__", "function") if callable(self.every) else str(self.every)
        groups = dict(self.selection.every)
        return {"every": every, "budget": self.budget_share, "metrics": self.selection.name, "groups": groups}
