"""The floating-point tensors that a forward pass returns."""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from types import FunctionType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.structure.copying import reachable_tensors

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
