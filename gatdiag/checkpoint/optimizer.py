"""The state of the optimizer in a checkpoint, by the names of the parameters it belongs to."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeGuard

import torch
from torch import Tensor

from gatdiag.checkpoint.checkpoint import OptimizerState
from gatdiag.checkpoint.naming import clean_names

_DEPTH = 5  # of containers that an optimizer's state is looked for in
_KEYS = ("optimizer_state_dict", "optimizer_states", "optimizer", "optimizers", "optimizer_state", "optim", "opt")
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

State = MutableMapping[Any, Any]
Shapes = list[tuple[int, ...] | None]  # None where a state does not tell


def optimizers(data: Any) -> list[State]:
    """All optimizers' state dicts in what was saved: first those under the usual keys, then those anywhere else."""
    found: list[State] = []
    seen: set[int] = set()
    for key in _KEYS:
        given = data.get(key) if isinstance(data, Mapping) else None
        for state in [given] if _is_state(given) else _listed(given):
            if _is_state(state) and id(state) not in seen:
                seen.add(id(state))
                found.append(state)
    return [*found, *_further(data, _DEPTH, seen)]


def _further(data: Any, depth: int, seen: set[int]) -> Iterator[State]:
    """Those with groups of parameters, under whatever key; a file can make containers hold each other."""
    if not isinstance(data, Mapping | list | tuple) or not depth or id(data) in seen:
        return
    seen.add(id(data))
    if _is_state(data) and "param_groups" in data:
        yield data
        return
    for value in _listed(data):
        yield from _further(value, depth - 1, seen)


def optimizer_state(data: Any, tensors: Mapping[str, Tensor]) -> tuple[OptimizerState | None, tuple[str, ...]]:
    """The state of the first optimizer.

    Args:
        data: What was saved.
        tensors: The model's, by name.

    Returns:
        The state, None if there is none; and notes, if its moments cannot be told apart.
    """
    found = optimizers(data)
    if not found:
        return None, ()
    notes = [f"Used the first of {len(found)} optimizers"] if len(found) > 1 else []
    named = named_states(found[0], tensors)
    if named is None:
        notes.append("The optimizer's moments are left out: their shapes do not tell which parameters they belong to")
    moments = {
        name: {key: value for key, value in state.items() if isinstance(key, str) and isinstance(value, Tensor)}
        for name, state in (named or {}).items()
    }
    groups = [{key: value for key, value in group.items() if _is_setting(key)} for group in _groups(found[0])]
    others = sum(map(_holds_moments, found[1:]))
    return OptimizerState(moments, groups, matched=named is not None, others=others), tuple(notes)


def named_states(optimizer: State, tensors: Mapping[str, Tensor]) -> dict[str, State] | None:
    """Parameter's name -> its state, as it lies in the file.

    By the names in the file where it has them. Otherwise by order, which is that of the state dict without its buffers:
    buffers are known by name and dtype, or else because only one way to leave tensors out fits all shapes. Groups
    can be in any order, so that the shapes have to tell which of them has which parameters, too.

    Returns:
        The states, by name; None where several parameters could be meant.
    """
    states = {_key(key): state for key, state in optimizer["state"].items() if isinstance(state, dict)}
    order, given = _order(optimizer)
    if not given and any(isinstance(key, str) for key in states):
        order, given = list(states), [str(key) for key in states]
    if not given:
        order = order or sorted(key for key in states if type(key) is int)
    members = _members(optimizer) if any(_members(optimizer)) else [order]
    shapes = [[_shape(states.get(key)) for key in group] for group in members]
    names = _by_name(given, tensors) if given else _by_order(shapes, tensors)
    if names is None:
        return None
    return {name: states[key] for key, name in zip(order, names, strict=True) if key in states and name in tensors}


def _by_name(given: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
    cleaned = {key: name for name, key in clean_names(given)[0].items()}
    names = [key if key in tensors else cleaned.get(key, key) for key in given]
    inner = [name.partition(".")[2] for name in given]  # of a model that is an attribute of a LightningModule
    return inner if all(name in tensors for name in inner) and len(set(inner)) == len(inner) else names


def _by_order(groups: list[Shapes], tensors: Mapping[str, Tensor]) -> list[str] | None:
    candidates = _candidates(tensors)
    sizes = [tuple(tensors[name].shape) for name in candidates]
    if all(shape is None for group in groups for shape in group):  # no moments that could go to the wrong ones
        groups = [[shape for group in groups for shape in group]]
    found = _by_group(groups, sizes)
    places = None if found is None else [place for group in found for place in group]
    # Who made groups of another order may have changed the order within them, too.
    return None if places is None or places != sorted(places) else [candidates[place] for place in places]


def _by_group(groups: list[Shapes], sizes: list[tuple[int, ...]]) -> list[list[int]] | None:
    """Places of each group's sizes, group by group that only some fit, of those the others left; None if many do."""
    free = list(range(len(sizes)))
    found: dict[int, list[int]] = {}
    while len(found) < len(groups):
        rest = [sizes[place] for place in free]
        matches = ((number, _only_match(groups[number], rest)) for number in range(len(groups)) if number not in found)
        number, match = next(((number, match) for number, match in matches if match is not None), (0, None))
        if match is None:
            return None
        found[number] = [free[place] for place in match]
        taken = set(found[number])
        free = [place for place in free if place not in taken]
    return [found[number] for number in range(len(groups))]


def _only_match(shapes: Shapes, sizes: list[tuple[int, ...]]) -> list[int] | None:
    first = _match(shapes, sizes)
    last = _match(shapes[::-1], sizes[::-1])
    if first is None or last is None or first != [len(sizes) - 1 - place for place in reversed(last)]:
        return None
    return first


def _match(shapes: Shapes, sizes: list[tuple[int, ...]]) -> list[int] | None:
    """Places of the earliest sizes that fit the shapes in order; None if there are none."""
    places, place = [], 0
    for shape in shapes:
        while place < len(sizes) and shape is not None and sizes[place] != shape:
            place += 1
        if place == len(sizes):
            return None
        places.append(place)
        place += 1
    return places


def _candidates(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of what can be parameters, each once where several share their memory."""
    seen: set[tuple[Any, ...]] = set()
    names = []
    for name, tensor in tensors.items():
        known = name.rpartition(".")[2] in _BUFFERS or not (tensor.is_floating_point() or tensor.is_complex())
        if known or tensor.layout != torch.strided or tensor.is_quantized:
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.numel() or name)
        if place not in seen:
            names.append(name)
        seen.add(place)
    return names


def _shape(state: Any) -> tuple[int, ...] | None:
    """Of the parameter that a state belongs to, as far as its tensors tell: some hold one value, a row or a column."""
    shapes = [value.shape for key, value in (state or {}).items() if isinstance(value, Tensor) and key != "step"]
    try:
        return tuple(torch.broadcast_shapes(*shapes)) if shapes else None
    except RuntimeError:  # shapes that do not go together, of which none need be the parameter's
        return None


def _order(optimizer: State) -> tuple[list[Any], list[str]]:
    """Keys of the parameters in order, and their names where the file has them."""
    order: list[Any] = []
    names: list[str] = []
    for group, members in zip(_groups(optimizer), _members(optimizer), strict=True):
        order += members
        named = _listed(group.get("param_names"))
        names += named if len(named) == len(members) and all(isinstance(name, str) for name in named) else []
    if order and all(isinstance(key, str) for key in order):
        return order, order
    return order, names if len(names) == len(order) else []


def _members(optimizer: State) -> list[list[Any]]:
    """Keys of the parameters in each group."""
    groups = (_listed(group.get("params")) for group in _groups(optimizer))
    return [[key for key in params if isinstance(key, int | str)] for params in groups]


def _holds_moments(optimizer: State) -> bool:
    states = (state for state in optimizer["state"].values() if isinstance(state, Mapping))
    return any(isinstance(value, Tensor) and key != "step" for state in states for key, value in state.items())


def _key(key: Any) -> Any:
    """Distributed checkpoints turn the numbers of parameters into text."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key


def _groups(optimizer: State) -> list[Mapping[Any, Any]]:
    return [group for group in _listed(optimizer.get("param_groups")) if isinstance(group, Mapping)]


def _listed(value: Any) -> list[Any]:
    """A list; in distributed checkpoints it is a dictionary of positions."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _is_setting(key: Any) -> bool:
    return isinstance(key, str) and key not in ("params", "param_names")


def _is_state(given: Any) -> TypeGuard[State]:
    return isinstance(given, MutableMapping) and isinstance(given.get("state"), MutableMapping)
