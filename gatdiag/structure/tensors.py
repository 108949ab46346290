"""The tensors in nested values, such as arguments and results of a forward pass."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def named_tensors(item: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested tuples, lists and dicts, with names such as "x" or "x[0]"."""
    if isinstance(item, Tensor):
        yield name or "x", item
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from named_tensors(value, str(key))
    elif isinstance(item, tuple | list):
        for number, value in enumerate(item):
            yield from named_tensors(value, f"{name}[{number}]")


def first_tensor(output: Any) -> Tensor | None:
    """The output itself, or the first floating-point tensor in a tuple, list or dict; None if there is none."""
    if isinstance(output, Tensor):
        is_plain = type(output) in (Tensor, nn.Parameter) and output.layout == torch.strided
        return output if is_plain and output.is_floating_point() else None
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for found in map(first_tensor, items) if found is not None), None)
