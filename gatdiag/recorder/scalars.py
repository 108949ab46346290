"""What the user logs: numbers, tensors and metric objects -> scalars, without waiting for a device."""

from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from gatdiag.errors import InputError

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae")


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
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.detach()
        return float(value) if value.device.type == "cpu" else value.reshape(()).clone()
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.reshape(())[()]
    if isinstance(value, Real | np.bool_):
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
