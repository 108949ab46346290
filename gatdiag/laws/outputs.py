"""Find the tensors in the output of a forward pass, and the objects that cannot be searched for tensors."""

import datetime
import re
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import PurePath
from types import EllipsisType, ModuleType, NoneType, SimpleNamespace
from typing import Any
from uuid import UUID
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor

# An iterator with more items may be endless and is not searched.
_MOST_ITEMS = 2**16

# Types that contain no tensor with a gradient.
_LEAVES = (
    NoneType, EllipsisType, int, float, complex, str, bytes, bytearray, memoryview, range, slice, Decimal, Enum, type,
    ModuleType, PurePath, UUID, re.Pattern, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
    np.generic, np.dtype, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
)  # fmt: skip
# Sizes of objects without content, and with attributes only; larger ones have content in C.
_SIZES = (object.__basicsize__, type("Plain", (), {}).__basicsize__)
_CONTAINERS = (list, tuple, set, frozenset, deque, KeysView, ValuesView, ItemsView)


@dataclass
class Outputs:
    """The content of a forward pass's output."""

    tensors: list[Tensor] = field(default_factory=list)  # floating-point and complex ones, in order
    opaque: list[str] = field(default_factory=list)  # classes of objects that cannot be searched

    @property
    def obstacle(self) -> str | None:
        """Why the output is not fully known; None if it is."""
        kinds = ", ".join(sorted(set(self.opaque)))
        return f"the output contains objects that cannot be searched for tensors ({kinds})" if kinds else None


def read_outputs(value: Any) -> Outputs:
    """Search tensors, containers, iterators, dataclasses, graphs, model outputs and other Python objects.

    Attributes and items of objects are searched; an object with ``__slots__`` or state in C is opaque. Iterators are
    consumed.

    Example:
        >>> read_outputs([torch.ones(3), {"aux": (torch.ones(2), 5)}.values()]).tensors
        [tensor([1., 1., 1.]), tensor([1., 1.])]
    """
    found, seen, waiting = Outputs(), dict[int, Any](), [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            pieces = item.unbind() if item.is_nested else (item,)
            found.tensors += [piece for piece in pieces if piece.is_floating_point() or piece.is_complex()]
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        seen[id(item)] = item  # kept alive, so that no other object gets its id
        parts = _parts(item)
        if parts is None:
            found.opaque.append(type(item).__qualname__)
        else:
            waiting += reversed(parts)
    return found


def floating_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of `read_outputs`."""
    yield from read_outputs(value).tensors


def _parts(value: Any) -> list[Any] | None:
    """Attributes and items of an object; None if it is opaque."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else []
    if isinstance(value, Tensor) and value.is_nested:
        return []
    items = _items(value)
    if items is None:
        return None
    known = {id(item) for item in items}  # model outputs hold each tensor as an item and as an attribute
    attributes = getattr(value, "__dict__", {}).values()
    return [*items, *(part for part in attributes if id(part) not in known)]


def _items(value: Any) -> list[Any] | None:
    """Items of an object, without attributes; None if it is opaque."""
    if isinstance(value, Tensor | SimpleNamespace):
        return []
    if any(vars(base).get("__slots__") for base in type(value).__mro__):
        return None
    if type(value).__basicsize__ in _SIZES and (hasattr(value, "__dict__") or type(value) is object):
        return []
    if isinstance(value, ReferenceType):  # PyG graphs have one to themselves
        return [value()]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, _CONTAINERS):
        return list(value)
    items = list(islice(value, _MOST_ITEMS + 1)) if isinstance(value, Iterator) else []
    return items if isinstance(value, Iterator) and len(items) <= _MOST_ITEMS else None
