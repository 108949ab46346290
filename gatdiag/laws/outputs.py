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
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from floating_tensors(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from floating_tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from floating_tensors(getattr(value, field.name))
    elif callable(to_dict := getattr(value, "to_dict", None)):
        yield from floating_tensors(to_dict())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from floating_tensors(vars(value))
