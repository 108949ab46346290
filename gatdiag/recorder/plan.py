"""What a run records of one model: settled at the first training forward, from its own inputs."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import GatdiagError, InputError, TimeLimitError
from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.laws.find import find_laws_within
from gatdiag.names import listed
from gatdiag.recorder.balance import Balance
from gatdiag.recorder.groups import Selection
from gatdiag.recorder.weights import Weights
from gatdiag.structure import Layer, Structure, discover
from gatdiag.structure.deadline import time_limit
from gatdiag.structure.isolation import leaving_no_mode

_MOST_LAWS = 4096  # recorded at each recorded step; with more of them, at a fraction of the steps

# How far from zero delta may be at the first step, as a share of what cancels in it. The largest of 381 models was 2e-5
# in float32, and 0.12 in bfloat16, to which accelerators come near unasked (TF32).
_DISPROVED, _DISPROVED_ROUGHLY = 1e-3, 0.3
_FAINT = 1e-4  # laws whose gradients are this small beside the largest may show rounding alone

Patterns = str | Iterable[str] | None


@dataclass(frozen=True)
class Plan:
    """What is recorded.

    Attributes:
        structure: Of the whole model.
        layers: Those that are recorded, in order.
        weights: Their parameters.
        balance: Their laws; None where none are recorded.
        laws: All laws of the model; None where they were not looked for, or could not be found.
        laws_every: At every how many-th record the laws are measured.
        error: Why there are no laws.
    """

    structure: Structure
    layers: tuple[Layer, ...]
    weights: Weights
    balance: Balance | None
    laws: Laws | None
    laws_every: int
    error: str | None

    @property
    def recorded_laws(self) -> list[Law]:
        """The laws that are recorded, in order."""
        return [] if self.balance is None else [self.balance.laws[number] for number in self.balance.wanted.tolist()]

    @property
    def excluded(self) -> tuple[Exclusion, ...]:
        """What has no law, and why."""
        return () if self.laws is None else self.laws.excluded

    @property
    def positions(self) -> dict[str, int]:
        """Layer -> its position among those that are recorded."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Layer and name of each recorded parameter."""
        return [(layer.name, info.name) for layer in self.layers for info in layer.parameters]


def filter_of(include: Patterns, exclude: Patterns) -> Callable[[str], bool]:
    """Layer name -> whether it is recorded.

    Args:
        include: Shell patterns ("convs.*"), one of which must fit; None: any name does.
        exclude: Shell patterns, none of which may fit.

    Example:
        >>> keeps = filter_of("convs.*", ["convs.0", "*.1"])
        >>> [name for name in ("convs.0", "convs.1", "convs.2", "lin") if keeps(name)]
        ['convs.2']
    """
    wanted, unwanted = _patterns(include, "include"), _patterns(exclude, "exclude")

    def keeps(name: str) -> bool:
        inside = include is None or any(fnmatchcase(name, pattern) for pattern in wanted)
        return inside and not any(fnmatchcase(name, pattern) for pattern in unwanted)

    return keeps


def _patterns(patterns: Patterns, what: str) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns or ())
    if not all(isinstance(pattern, str) for pattern in listed):
        raise InputError(f'{what}= expects patterns of layer names such as "convs.*", got {patterns!r}')
    return listed


def kept_layers(structure: Structure, keeps: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers that are recorded.

    Raises:
        InputError: There are none.
    """
    layers = tuple(layer for layer in structure if keeps(layer.name))
    if not layers:
        names = listed(layer.name for layer in structure)
        raise InputError(f"No layer is left to record after include= and exclude=. The model's layers are {names}.")
    return layers


def static_layers(model: nn.Module, keeps: Callable[[str], bool]) -> tuple[Layer, ...]:
    """The layers as far as they are known before a forward pass; none of a model that is lazy.

    Raises:
        ModelError: The model has no parameters.
        InputError: No layer is left to record.
    """
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return ()
    return kept_layers(discover(model), keeps)


def settle(
    model: nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]] | None,
    selection: Selection,
    keeps: Callable[[str], bool],
    unseen: str = "its inputs are not known",
) -> Plan:
    """Discover layers and laws, and copy the initial weights.

    Args:
        model: The model, unwrapped.
        inputs: Of a training forward, or a `Program` in their place; None if nothing is known of its calls.
        selection: What is measured.
        keeps: Which layers.
        unseen: Why there are no inputs, if there are none.

    Raises:
        ModelError: Not even its layers can be listed.
        InputError: No layer is left.
    """
    args, kwargs = inputs or ((), {})
    structure, error = _structure(model, args, kwargs)
    layers = kept_layers(structure, keeps)
    parameters = dict(model.named_parameters())
    infos = [info for layer in layers for info in layer.parameters]
    attention = [info.name for info in infos if info.role == "attention vector"]
    weights = Weights({info.name: parameters[info.name] for info in infos}, attention)
    plan = Plan(structure, layers, weights, None, None, 1, error)
    if "balance" not in selection.every:
        return plan
    error = unseen if inputs is None else error
    return _with_laws(plan, *_laws(model, structure, inputs, error, selection.law_search_seconds), selection)


def settle_laws(
    plan: Plan, model: nn.Module, inputs: tuple[tuple[Any, ...], Mapping[str, Any]], selection: Selection
) -> Plan:
    """The plan with the laws, of a model whose inputs were not known when all else was settled."""
    structure, error = _structure(model, *inputs)
    return _with_laws(plan, *_laws(model, structure, inputs, error, selection.law_search_seconds), selection)


def rebound(plan: Plan, model: nn.Module) -> Plan:
    """The plan for the parameters that the model has now, under the names and in the shapes that it had before.

    Raises:
        InputError: A parameter is gone, or has another shape.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    present = {id(parameter) for parameter in named.values()}
    old = dict(zip(plan.weights.names, plan.weights.tensors, strict=True))
    of_laws = {} if plan.laws is None else dict(plan.laws.parameters)
    new: dict[str, Any] = {}
    for name, tensor in (of_laws | old).items():
        new[name] = named.get(name, tensor if id(tensor) in present else None)  # or it was only renamed, as by pruning
        if new[name] is None:
            raise InputError(f"{name} is gone")
        if is_lazy(new[name]) or new[name].shape != tensor.shape:
            raise InputError(f"{name} had shape {tuple(tensor.shape)} and is replaced by one of another")
    if all(new[name] is tensor for name, tensor in (of_laws | old).items()):
        return plan
    plan = replace(plan, weights=plan.weights.rebound(new))
    if plan.laws is None or plan.balance is None:
        return plan
    laws = plan.laws.at(new)
    return replace(plan, laws=laws, balance=Balance(laws, plan.balance.wanted.tolist()))


def without_disproved(plan: Plan, *, is_rough: bool) -> tuple[Plan, str | None]:
    """The plan without the laws that the gradients of training disobey, and what to say of these, if there are any.

    Args:
        plan: The plan.
        is_rough: Whether gradients may have been computed in less than 32 bits.
    """
    laws = plan.laws
    if laws is None or plan.balance is None:
        return plan, None
    delta, residual = laws.delta().abs().cpu(), laws.residual().cpu()
    size = (delta / residual).nan_to_num(0.0, 0.0)
    judged = torch.tensor([law.exact and _has_gradients(law, laws) for law in laws])
    limit = _DISPROVED_ROUGHLY if is_rough else _DISPROVED
    false = judged & (residual > limit) & (size >= _FAINT * size.max()) & residual.isfinite()
    if not bool(false.any()):
        return plan, None
    reason = (
        f"delta is up to {float(residual[false].max()):.1g} of its terms in training: the loss depends on these "
        "parameters in another way than by the forward pass that was traced (a penalty on weights, a second use of "
        "them), or gradients are changed in the backward pass"
    )
    dropped = [Exclusion(laws[number].name, reason) for number in false.nonzero().flatten().tolist()]
    kept = [law for law, is_false in zip(laws, false.tolist(), strict=True) if not is_false]
    message = f"{len(dropped)} of {len(laws)} conservation laws are not recorded: {reason}"
    remaining = Laws(kept, laws.parameters, [*laws.excluded, *dropped])
    wanted = [number for number, law in enumerate(kept) if law.layer in plan.positions]
    balance = Balance(remaining, wanted) if wanted else None
    return replace(plan, laws=remaining, balance=balance, error=plan.error if kept else message), message


def _has_gradients(law: Law, laws: Laws) -> bool:
    """Whether all of its parameters took part in the backward passes so far."""
    return all(laws.parameters[term.parameter].grad is not None for term in law.terms)


def _with_laws(plan: Plan, laws: Laws | None, error: str | None, selection: Selection) -> Plan:
    names = plan.positions
    wanted = [] if laws is None else [number for number, law in enumerate(laws) if law.layer in names]
    every = selection.every["balance"] * max(1, math.ceil(len(wanted) / _MOST_LAWS))
    balance = Balance(laws, wanted) if laws is not None and wanted else None
    return replace(plan, balance=balance, laws=laws, laws_every=every, error=error)


@leaving_no_mode
def _structure(model: nn.Module, args: Any, kwargs: Any) -> tuple[Structure, str | None]:
    """In execution order if the model can be run for it, else in module order, with what was wrong."""
    try:
        return discover(model, *args, **kwargs), None
    except Exception as error:  # the user's own code runs in there
        return discover(model), str(error) if isinstance(error, GatdiagError) else f"{type(error).__name__}: {error}"


@leaving_no_mode
def _laws(
    model: nn.Module, structure: Structure, inputs: Any, error: str | None, seconds: float | None
) -> tuple[Laws | None, str | None]:
    if error is not None:
        return None, error
    try:
        with time_limit(seconds, lambda elapsed: _say_what_takes_so_long(elapsed, seconds)):
            laws = find_laws_within(structure, model, *inputs)
    except TimeLimitError:
        return None, (
            f"the search for them was stopped after {seconds:g} s, and training goes on. Give gatdiag.watch more time "
            "(law_search_seconds=..., None for no limit), or call gatdiag.find_laws(model, ...), which has no limit"
        )
    except GatdiagError as failure:
        return None, str(failure)
    except Exception as failure:  # the user's own code runs in there; all else can be recorded without laws
        return None, f"looking for them failed with {type(failure).__name__}: {failure}"
    if len(laws) == 0:
        reasons = "; ".join(f"{exclusion.what}: {exclusion.reason}" for exclusion in laws.excluded[:3])
        return (
            laws,
            f"the model has no conservation law ({reasons or 'no rescaling of its weights keeps its function'})",
        )
    return laws, None


def _say_what_takes_so_long(elapsed: float, limit: float | None) -> None:
    bound = "no limit" if limit is None else f"limit {limit:g} s"
    print(f"gatdiag: looking for conservation laws ({elapsed:.0f} s so far, {bound})", file=sys.stderr)  # noqa: T201
