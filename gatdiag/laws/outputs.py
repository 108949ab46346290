"""The floating-point tensors that a forward pass returns."""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import FunctionType, GeneratorType, MethodType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.structure.copying import reachable_tensors

OUTPUT = "the output"
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LEAVES = (
    NoneType, int, float, complex, str, bytes, Enum, type, np.generic, np.ndarray, torch.dtype, torch.device,
)  # fmt: skip


def floating_tensors(output: Any, _within: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Floating-point and complex tensors in containers, dataclasses, graphs, distributions and other objects.

    A container inside of itself is searched once.

    Raises:
        ModelError: A part, such as a generator or a function, cannot be searched for tensors.

    Example:
        >>> list(floating_tensors([torch.ones(3), {"aux": (torch.ones(2), 5)}]))
        [tensor([1., 1., 1.]), tensor([1., 1.])]
    """
    if isinstance(output, Tensor):
        if output.is_floating_point() or output.is_complex():
            yield output
    elif isinstance(output, Mapping | list | tuple | set | frozenset | deque):
        if id(output) not in _within:
            for part in output.items() if isinstance(output, Mapping) else output:
                yield from floating_tensors(part, _within | {id(output)})
    elif not isinstance(output, _LEAVES):
        yield from floating_tensors(_tensors_in_object(output))


def tensors_inside(value: Any) -> tuple[list[Tensor], str | None]:
    """The tensors in containers and in the attributes of objects, without calling code of the user's.

    Returns:
        The tensors, and the type of a part that cannot be searched, such as a generator or a function, or None.

    Example:
        >>> tensors_inside([torch.ones(2), {"function": print}])
        ([tensor([1., 1.])], 'builtin_function_or_method')
    """
    found: dict[int, Tensor] = {}
    seen: dict[int, Any] = {}
    opaque, waiting = None, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            found.setdefault(id(part), part)
        elif not isinstance(part, _LEAVES) and id(part) not in seen:
            seen[id(part)] = part
            parts = _parts(part)
            opaque = type(part).__qualname__ if parts is None else opaque
            waiting += reversed(parts or [])
    return list(found.values()), opaque


def _parts(value: Any) -> list[Any] | None:
    """What a container or an object holds, by the methods of Python's own classes; None if it cannot be looked into."""
    if isinstance(value, nn.Module):
        return []  # its parameters are no outputs
    if isinstance(value, FunctionType | MethodType | partial | GeneratorType):
        return None
    parts: list[Any] = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else []
    for kind in _CONTAINERS:
        parts += kind.__iter__(value) if isinstance(value, kind) else ()
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    parts += [getattr(value, name) for name in slots if hasattr(value, name)]
    if hasattr(value, "__dict__"):
        return [*parts, *vars(value).values()]
    return parts if slots or isinstance(value, (dict, *_CONTAINERS)) else None


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def _tensors_in_object(value: Any) -> list[Tensor]:
    try:
        if isinstance(value, FunctionType):
            raise TypeError("it is a function")
        return reachable_tensors(value)
    except Exception as error:
        raise ModelError(
            f"The output contains a {type(value).__qualname__}, which cannot be searched for tensors ({error}). "
            "Return tensors, graphs, or containers of them."
        ) from error
