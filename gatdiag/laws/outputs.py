"""The floating tensors in whatever a forward pass returns."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def floating_tensors(value: Any) -> Iterator[Tensor]:
    """Floating and complex tensors inside tensors, containers, dataclasses, graphs and model outputs.

    Args:
        value: What a forward pass returned.

    Yields:
        Its tensors in order.

    Example:
        >>> import torch
        >>> [tensor.numel() for tensor in floating_tensors({"logits": torch.ones(3), "aux": (torch.ones(2), 5)})]
        [3, 2]
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    else:
        for item in _parts(value):
            yield from floating_tensors(item)


def _parts(value: Any) -> list[Any]:
    """What an object is made of; nothing for a number, a string or a class."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set):
        return list(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    to_dict = getattr(value, "to_dict", None)
    return list((to_dict() if callable(to_dict) else vars(value)).values())
