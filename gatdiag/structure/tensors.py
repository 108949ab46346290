"""The tensors in nested values: arguments and results of a forward pass, or a model. No code of the user's runs."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, NoneType
from typing import Any, Final
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError

_PLAIN: Final = (
    NoneType, int, float, complex, str, bytes, Enum, type, np.generic, np.ndarray, torch.dtype, torch.device, ref,
)  # fmt: skip
_SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
_WRITTEN: Final = (int, float, bool, bytes, NoneType)
_MAX_NODES: Final = 200_000  # of an autograd graph
_CONTAINERS: Final = (dict, *_SEQUENCES)


def walk(value: Any, name: str = "", *, objects: bool = True, modules: bool = True) -> Iterator[tuple[str, Any]]:
    """All tensors in order, with names such as "x" or "x['key'][0]", and what cannot be searched, as generators.

    Args:
        value: Tensors in containers, graphs, distributions, and attributes of modules and other objects. Each container
            and object is searched once.
        name: Of the value.
        objects: Whether to search anything but containers.
        modules: Whether to search modules, whose parameters are no outputs.

    Example:
        >>> [name for name, _ in walk({"x": torch.ones(1), "pair": (torch.ones(2), 3, [torch.ones(3)])})]
        ['x', 'pair[0]', 'pair[2][0]']
    """
    waiting, seen = [(name, value)], dict[int, Any]()
    searched, skipped = object if objects else _CONTAINERS, _PLAIN if modules else (*_PLAIN, nn.Module)
    while waiting:
        name, part = waiting.pop()
        kind = type(part)  # asked for, because `isinstance` calls what pretends to be of another class
        if issubclass(kind, Tensor):
            yield name, part
        elif id(part) not in seen and issubclass(kind, searched) and not issubclass(kind, skipped):
            seen[id(part)] = part  # which keeps it alive, and its id in use
            parts = _parts(part, name)
            if parts is None:
                yield name, part
            waiting += reversed([*(parts or [])])


def all_tensors(value: Any) -> list[Tensor]:
    """Every tensor that can be reached from a value, once."""
    found = {id(part): part for _, part in walk(value) if isinstance(part, Tensor)}
    return [*found.values()]


def floating_tensors(output: Any) -> Iterator[Tensor]:
    """Floating-point and complex tensors that a forward pass returns.

    Raises:
        ModelError: A part, such as a generator or a function, cannot be searched for tensors.

    Example:
        >>> list(floating_tensors([torch.ones(3), {"aux": (torch.ones(2), 5)}]))
        [tensor([1., 1., 1.]), tensor([1., 1.])]
    """
    for _, part in walk(output, modules=False):
        if not isinstance(part, Tensor):
            raise ModelError(
                f"The output contains a {type(part).__qualname__}, which cannot be searched for tensors. Return "
                "tensors, graphs, or containers of them."
            )
        if part.is_floating_point() or part.is_complex():
            yield part


def named_tensors(value: Any, name: str = "x") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested containers, with names such as "x" or "x[0]"; not nested tensors, which have no shape."""
    return ((each, tensor) for each, tensor in walk(value, name, objects=False) if not tensor.is_nested)


def first_tensor(output: Any) -> Tensor | None:
    """The output itself, or the first plain floating-point tensor in nested containers; None if there is none."""
    return next((tensor for _, tensor in walk(output, objects=False) if _is_plain(tensor)), None)


def _is_plain(tensor: Tensor) -> bool:
    is_strided = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_nested
    return is_strided and tensor.is_floating_point()


def tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
    """The tensors among the arguments of an operation, including those in lists: the quick walk for each operation."""
    found: list[Tensor] = []
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensor_arguments(value, None)
    return found


def graph_leaves(o: Tensor) -> Iterator[Tensor]:
    """The leaves of the autograd graph of a tensor."""
    stack: list[Any] = [o.grad_fn]
    seen: set[Any] = set()
    while stack and len(seen) < _MAX_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        stack += [following for following, _ in node.next_functions]


def _parts(value: Any, name: str) -> Iterable[tuple[str, Any]] | None:
    """What a container or an object holds, with names; None if it cannot be searched."""
    kind = type(value)
    if issubclass(kind, dict):
        has_name = name and not name.startswith("_")  # that a user knows, unlike one inside a graph
        return [
            pair
            for key, item in dict.items(value)
            for pair in ((name, key), (f"{name}[{spell(key)}]" if has_name else spell(key).strip("'"), item))
        ]
    if issubclass(kind, _SEQUENCES):
        return [(f"{name}[{number}]", item) for number, item in enumerate(items_of(value))]
    if issubclass(kind, torch.jit.ScriptModule):
        return [*value.named_parameters(), *value.named_buffers()]
    if issubclass(kind, MethodType):
        return [(name, value.__self__)]
    if issubclass(kind, partial):
        return [(name, value.args), (name, value.keywords)]
    if issubclass(kind, FunctionType | BuiltinFunctionType):
        return None
    return _attributes(value, name)


def items_of(value: Any, most: int | None = None) -> list[Any]:
    """What a container holds, or the first `most` of it: of a dict the values. Nothing for anything else.

    Example:
        >>> items_of({"x": 1, "y": 2}), items_of((3, 4)), items_of("text")
        ([1, 2], [3, 4], [])
    """
    kind = type(value)
    if issubclass(kind, dict):
        return [*islice(dict.values(value), most)]
    own = next((each for each in _SEQUENCES if issubclass(kind, each)), None)
    return [] if own is None else [*islice(own.__iter__(value), most)]


def spell(key: Any) -> str:
    """How the key of a dict is written; by the name of its class if that is none of Python's own.

    Example:
        >>> spell("x"), spell(("paper", "cites", 1)), spell(torch.float32)
        ("'x'", "('paper', 'cites', 1)", '<dtype>')
    """
    kind = type(key)
    if issubclass(kind, str):
        return repr(str.__str__(key))
    if kind is tuple:
        return f"({', '.join(map(spell, key))}{',' if len(key) == 1 else ''})"
    return repr(key) if kind in _WRITTEN else f"<{kind.__qualname__}>"


def _attributes(value: Any, name: str) -> list[tuple[str, Any]] | None:
    kinds = type(value).__mro__
    members: list[tuple[str, Any]] = [(each, vars(kind).get(each)) for kind in kinds for each in _slots(kind)]
    slots = [(each, member.__get__(value)) for each, member in members if _is_set(member, value)]
    own = _own_dict(value)
    if own is not None or any("__slots__" in vars(kind) for kind in kinds):
        return [*slots, *(own or {}).items()]
    try:  # it is of a class in C, and so is this method
        return [(name, part) for part in value.__reduce_ex__(4)[1:]]
    except TypeError:
        return None


def _own_dict(value: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found


def _is_set(member: Any, value: Any) -> bool:
    """Whether a member of a class is a slot that has a value."""
    if not isinstance(member, MemberDescriptorType):
        return False
    try:
        member.__get__(value)
    except AttributeError:
        return False
    return True


def _slots(kind: type) -> list[str]:
    """The attributes that a class has slots for, by the names that they have outside of it."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [each for each in slots if each not in ("__dict__", "__weakref__")]
    private = f"_{kind.__name__.lstrip('_')}"
    return [private + name if name.startswith("__") and not name.endswith("__") else name for name in names]
