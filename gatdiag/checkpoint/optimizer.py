"""The state of the optimizer in a checkpoint, by the names of the parameters it belongs to."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.state_dict import clean_names, is_plain
from gatdiag.structure.from_names import find_layers

_DEPTH = 5  # of containers that an optimizer's state is looked for in

State = MutableMapping[Any, Any]


@dataclass(frozen=True)
class OptimizerState:
    """The state of the first optimizer in a checkpoint.

    Attributes:
        moments: Parameter's name -> {"exp_avg", "exp_avg_sq", "momentum_buffer", "step", ...} -> tensor; empty where
            the file does not tell which state belongs to which parameter.
        groups: The settings of each parameter group (lr, betas, ...), without the parameters.
        matched: True if the file tells which state belongs to which parameter.
        others: How many other optimizers in the file hold moments, too.
    """

    moments: Mapping[str, Mapping[str, Tensor]]
    groups: Sequence[Mapping[str, Any]]
    matched: bool = True
    others: int = 0


def optimizers(data: Any) -> list[State]:
    """All optimizers' state dicts in what was saved, under whatever key, in the order of the file."""
    return list(_found(data, _DEPTH, set()))


def _found(data: Any, depth: int, seen: set[int]) -> Iterator[State]:
    """Dictionaries of a state with groups of parameters; a file can make containers hold each other."""
    if not isinstance(data, Mapping | list | tuple) or not depth or id(data) in seen:
        return
    seen.add(id(data))
    if isinstance(data, MutableMapping) and isinstance(data.get("state"), MutableMapping) and "param_groups" in data:
        yield data
        return
    for value in _listed(data):
        yield from _found(value, depth - 1, seen)


def optimizer_state(data: Any, tensors: Mapping[str, Tensor]) -> tuple[OptimizerState | None, tuple[str, ...]]:
    """The state of the first optimizer, if there is one; and notes, where its moments could not be matched."""
    found = optimizers(data)
    if not found:
        return None, ()
    notes = [f"Used the first of {len(found)} optimizers"] if len(found) > 1 else []
    named = named_states(found[0], tensors)
    if named is None:
        notes.append("The optimizer's moments are left out: names and order do not tell which parameters they are of")
    moments = {
        name: {key: value for key, value in state.items() if isinstance(key, str) and is_plain(value)}
        for name, state in (named or {}).items()
    }
    groups = [
        {key: value for key, value in group.items() if isinstance(key, str) and key not in ("params", "param_names")}
        for group in _groups(found[0])
    ]
    others = sum(map(_holds_moments, found[1:]))
    return OptimizerState(moments, groups, matched=named is not None, others=others), tuple(notes)


def named_states(optimizer: State, tensors: Mapping[str, Tensor]) -> dict[str, State] | None:
    """Parameter's name -> its state, as it lies in the file.

    By the names in the file where it has them. Otherwise by order, which is that of the state dict without its buffers:
    None where numbers or shapes do not fit, and where groups, which can be in any order, hold parameters of one shape.
    """
    states = {_key(key): state for key, state in optimizer["state"].items() if isinstance(state, dict)}
    members = [_members(group) for group in _groups(optimizer)]
    order = list(chain.from_iterable(members))
    named = [key for group in _groups(optimizer) for key in _listed(group.get("param_names"))] or order
    if named and len(named) == len(order) and all(isinstance(name, str) for name in named):
        names: list[str] | None = _by_name(named, tensors)
    else:
        shapes = [[_shape(states.get(key)) for key in group] for group in members]
        apart = not any(set(one) & set(other) - {None} for one, other in combinations(shapes, 2))
        names = _by_order([*chain.from_iterable(shapes)], tensors) if apart else None
    if names is None:
        return None
    return {name: states[key] for key, name in zip(order, names, strict=True) if key in states and name in tensors}


def _by_name(given: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
    cleaned = {key: name for name, key in clean_names(given)[0].items()}
    names = [key if key in tensors else cleaned.get(key, key) for key in given]
    inner = [name.partition(".")[2] for name in given]  # of a model that is an attribute of a LightningModule
    return inner if all(name in tensors for name in inner) and len(set(inner)) == len(inner) else names


def _by_order(shapes: list[tuple[int, ...] | None], tensors: Mapping[str, Tensor]) -> list[str] | None:
    """The name at each place, if each shape is that of the parameter there; of a GIN, `eps` may be a buffer."""
    once = {info.name for info in find_layers(tensors).parameters}
    names = [name for name in tensors if name in once]
    if len(names) != len(shapes):
        names = [name for name in names if not name.endswith("eps")]
    if len(names) != len(shapes):
        return None
    fits = all(shape in (None, tuple(tensors[name].shape)) for name, shape in zip(names, shapes, strict=True))
    return names if fits else None


def _shape(state: Any) -> tuple[int, ...] | None:
    """Of the parameter that a state belongs to, as far as its tensors tell: some hold one value, a row or a column."""
    shapes = [value.shape for key, value in (state or {}).items() if isinstance(value, Tensor) and key != "step"]
    try:
        return tuple(torch.broadcast_shapes(*shapes)) if shapes else None
    except RuntimeError:  # shapes that do not go together, of which none need be the parameter's
        return None


def _members(group: Mapping[Any, Any]) -> list[Any]:
    """Keys of the parameters in a group."""
    return [key for key in _listed(group.get("params")) if isinstance(key, int | str)]


def _holds_moments(optimizer: State) -> bool:
    states = (state for state in optimizer["state"].values() if isinstance(state, Mapping))
    return any(isinstance(value, Tensor) and key != "step" for state in states for key, value in state.items())


def _key(key: Any) -> Any:
    """Distributed checkpoints turn the numbers of parameters into text."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key


def _groups(optimizer: State) -> list[Mapping[Any, Any]]:
    return [group for group in _listed(optimizer["param_groups"]) if isinstance(group, Mapping)]


def _listed(value: Any) -> list[Any]:
    """A list; in distributed checkpoints it is a dictionary of positions."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
