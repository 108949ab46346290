"""The floating-point tensors that a forward pass returns."""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import FunctionType, GeneratorType, MethodType, NoneType
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError

OUTPUT = "the output"
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LEAVES = (
    NoneType, int, float, complex, str, bytes, range, Enum, type, np.generic, np.ndarray, torch.dtype, torch.device,
    ReferenceType,
)  # fmt: skip


def floating_tensors(output: Any) -> Iterator[Tensor]:
    """Each floating-point or complex tensor in containers, dataclasses, graphs, distributions and other objects.

    Raises:
        ModelError: A part, such as a generator or a function, cannot be searched for tensors.

    Example:
        >>> list(floating_tensors([torch.ones(3), {"aux": (torch.ones(2), 5)}]))
        [tensor([1., 1., 1.]), tensor([1., 1.])]
    """
    tensors, opaque = tensors_inside(output)
    if opaque is not None:
        raise ModelError(
            f"The output contains a {opaque}, which cannot be searched for tensors. Return tensors, graphs, or "
            "containers of them."
        )
    yield from (tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex())


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
    if type(value) is object:
        return []
    if isinstance(value, FunctionType | MethodType | partial | GeneratorType):
        return None
    parts: list[Any] = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else []
    for kind in _CONTAINERS:
        parts += kind.__iter__(value) if isinstance(value, kind) else ()
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if name not in ("__dict__", "__weakref__")]
    parts += [getattr(value, name) for name in slots if hasattr(value, name)]
    if hasattr(value, "__dict__"):
        return [*parts, *vars(value).values()]
    return parts if slots or isinstance(value, (dict, *_CONTAINERS)) else None


def _slots(kind: type) -> list[str]:
    """The attributes that a class has slots for, by the names that they have outside of it."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return [private + name if name.startswith("__") and not name.endswith("__") else name for name in names]
