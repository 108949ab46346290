"""The optimizer state in a checkpoint, by parameter name."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from gatdiag.checkpoint.state_dict import clean_names, is_plain
from gatdiag.structure.from_names import find_layers

_MAX_DEPTH = 5  # of nested containers that are searched

State = MutableMapping[Any, Any]


@dataclass(frozen=True)
class OptimizerState:
    """The state of the first optimizer in a checkpoint.

    Attributes:
        moments: Parameter name -> {"exp_avg", "exp_avg_sq", "momentum_buffer", "step", ...} -> tensor; empty if
            states cannot be matched with parameters.
        groups: Settings of each parameter group (lr, betas, ...), without the parameters.
        matched: False if states cannot be matched with parameters.
        others: How many other optimizers in the file have moments.
    """

    moments: Mapping[str, Mapping[str, Tensor]]
    groups: Sequence[Mapping[str, Any]]
    matched: bool = True
    others: int = 0

    @property
    def is_fresh(self) -> bool:
        """No step was taken, as far as that shows: of Adam and its kin, which have betas, each step leaves moments."""
        return self.matched and not self.moments and any("betas" in group for group in self.groups)


def find_optimizers(data: Any) -> list[State]:
    """All optimizer state dicts in a saved object, under any key, in the order of the file."""
    return list(_iter_optimizers(data, _MAX_DEPTH, set()))


def _iter_optimizers(data: Any, depth: int, seen: set[int]) -> Iterator[State]:
    # `seen`, as containers in a file can contain each other
    if not isinstance(data, Mapping | list | tuple) or not depth or id(data) in seen:
        return
    seen.add(id(data))
    if isinstance(data, MutableMapping) and isinstance(data.get("state"), MutableMapping) and "param_groups" in data:
        yield data
        return
    for value in _as_list(data):
        yield from _iter_optimizers(value, depth - 1, seen)


def read_optimizer_state(data: Any, tensors: Mapping[str, Tensor]) -> tuple[OptimizerState | None, tuple[str, ...]]:
    """The state of the first optimizer, None if there is none; and notes for the user."""
    found = find_optimizers(data)
    if not found:
        return None, ()
    notes = [f"Used the first of {len(found)} optimizers"] if len(found) > 1 else []
    named = match_states(found[0], tensors)
    if named is None:
        notes.append("The optimizer's moments are left out: they cannot be matched with parameters by name or order")
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


def match_states(optimizer: State, tensors: Mapping[str, Tensor]) -> dict[str, State] | None:
    """Match optimizer states with parameters: parameter name -> state, as it is in the file.

    Matches by name if the file has the names, otherwise by order in the state dict without its buffers. Returns None
    if counts or shapes differ, or if several groups, whose order is arbitrary, have parameters of the same shape.
    """
    states = {_parse_key(key): state for key, state in optimizer["state"].items() if isinstance(state, dict)}
    members = [_members(group) for group in _groups(optimizer)]
    order = list(chain.from_iterable(members))
    named = [key for group in _groups(optimizer) for key in _as_list(group.get("param_names"))] or order
    if named and len(named) == len(order) and all(isinstance(name, str) for name in named):
        names: list[str] | None = _match_by_name(named, tensors)
    else:
        shapes = [[_infer_shape(states.get(key)) for key in group] for group in members]
        is_ambiguous = any(set(one) & set(other) - {None} for one, other in combinations(shapes, 2))
        names = None if is_ambiguous else _match_by_order([*chain.from_iterable(shapes)], tensors)
    if names is None:
        return None
    return {name: states[key] for key, name in zip(order, names, strict=True) if key in states and name in tensors}


def _match_by_name(keys: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
    cleaned = {key: name for name, key in clean_names(keys)[0].items()}
    names = [key if key in tensors else cleaned.get(key, key) for key in keys]
    inner = [key.partition(".")[2] for key in keys]  # the model may be an attribute of a LightningModule
    return inner if all(name in tensors for name in inner) and len(set(inner)) == len(inner) else names


def _match_by_order(shapes: list[tuple[int, ...] | None], tensors: Mapping[str, Tensor]) -> list[str] | None:
    """Parameter names in order, if all shapes agree."""
    parameters = {info.name for info in find_layers(tensors).parameters}
    names = [name for name in tensors if name in parameters]
    if len(names) != len(shapes):  # GINConv's eps may be a buffer
        names = [name for name in names if not name.endswith("eps")]
    if len(names) != len(shapes):
        return None
    fits = all(shape in (None, tuple(tensors[name].shape)) for name, shape in zip(names, shapes, strict=True))
    return names if fits else None


def _infer_shape(state: Any) -> tuple[int, ...] | None:
    """Shape of the parameter that a state belongs to, up to broadcasting: some optimizers keep one value per row."""
    shapes = [value.shape for key, value in (state or {}).items() if isinstance(value, Tensor) and key != "step"]
    try:
        return tuple(torch.broadcast_shapes(*shapes)) if shapes else None
    except RuntimeError:  # shapes that do not broadcast
        return None


def _members(group: Mapping[Any, Any]) -> list[Any]:
    """Keys of the parameters in a group."""
    return [key for key in _as_list(group.get("params")) if isinstance(key, int | str)]


def _holds_moments(optimizer: State) -> bool:
    states = (state for state in optimizer["state"].values() if isinstance(state, Mapping))
    return any(isinstance(value, Tensor) and key != "step" for state in states for key, value in state.items())


def _parse_key(key: Any) -> Any:
    """Parameter indices, which are strings in a file that was a distributed checkpoint, as integers."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key


def _groups(optimizer: State) -> list[Mapping[Any, Any]]:
    return [group for group in _as_list(optimizer["param_groups"]) if isinstance(group, Mapping)]


def _as_list(value: Any) -> list[Any]:
    """A list, which is a dictionary in a file that was a distributed checkpoint."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
