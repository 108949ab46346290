"""What the user logs: numbers, tensors and metric objects -> scalars, without waiting for a device."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from gatdiag.errors import InputError

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae")


def flattened(mapping: Any, prefix: str = "", inside: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Names and values of a mapping; those of mappings in it have its name before theirs.

    Raises:
        InputError: It is no mapping.

    Example:
        >>> list(flattened({"train": {"loss": 0.5, "top": {5: 0.9}}, "epoch": 3}))
        [('train/loss', 0.5), ('train/top/5', 0.9), ('epoch', 3)]
    """
    if not isinstance(mapping, Mapping):
        kind = type(mapping).__name__
        raise InputError(f'expected log(loss=...) or log({{"loss": ...}}), got an argument of type {kind}')
    inside = (*inside, id(mapping))
    for key, value in mapping.items():
        name = prefix + (str.__str__(key) if isinstance(key, str) else str(key))
        if isinstance(value, Mapping) and id(value) not in inside:
            yield from flattened(value, f"{name}/", inside)
        else:
            yield name, value


def scalar(name: str, value: Any) -> float | Tensor:
    """The value as a float, or as a detached copy if it is on an accelerator.

    Args:
        name: What it is called.
        value: A number, an array or a tensor with one element, or an object whose ``compute()`` gives one, as the
            metrics of torchmetrics do.

    Raises:
        InputError: It is none of these.
    """
    if callable(compute := getattr(value, "compute", None)):
        value = compute()
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and not value.is_meta:
        value = value.detach()
        return float(value) if value.device.type == "cpu" else value.reshape(()).clone()
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.reshape(())[()]
    if isinstance(value, Real | np.bool_ | Decimal):
        return float(value)
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
    raise InputError(
        f"log({name}=...) expects a number, or a tensor with one element, got {type(value).__name__}{shape}"
    )


def best_of(best: str) -> tuple[str, bool]:
    """What `best=` names, and whether larger values are better.

    Args:
        best: Name of a logged scalar, such as "val_accuracy"; "max:" or "min:" before it says which way is better.
            Without them, what has loss, error, perplexity, mse or mae in its name is best when smallest.

    Raises:
        InputError: It is no such name.

    Example:
        >>> best_of("val_loss"), best_of("val_accuracy"), best_of("max:error_margin")
        (('val_loss', False), ('val_accuracy', True), ('error_margin', True))
    """
    if not isinstance(best, str) or not best.removeprefix("max:").removeprefix("min:"):
        raise InputError(f'best= expects the name of a logged scalar, such as "val_accuracy", got {best!r}')
    for prefix in ("max:", "min:"):
        if best.startswith(prefix):
            return best.removeprefix(prefix), prefix == "max:"
    return best, not any(word in best.lower() for word in _SMALLER_IS_BETTER)
