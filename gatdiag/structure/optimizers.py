"""What optimizers hold."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer


def parameters_of(*optimizers: Optimizer) -> dict[int, Tensor]:
    """id -> parameter, for all parameters of optimizers.

    Example:
        >>> import torch
        >>> weight = torch.ones(2)
        >>> id(weight) in parameters_of(torch.optim.SGD([weight]))
        True
    """
    return {id(held): held for optimizer in optimizers for group in optimizer.param_groups for held in group["params"]}


def plain_setting(value: Any) -> Any:
    """A setting of an optimizer as JSON can hold it: a number, a text, a list of them, or None.

    No method of the user's is called: what is of a class of its own becomes what it derives from, or else the name of
    the class.

    Example:
        >>> plain_setting((0.9, torch.tensor(0.5), np.float32(2)))
        [0.9, 0.5, 2.0]
    """
    kind = type(value)
    for sequence in (list, tuple):
        if issubclass(kind, sequence):
            return [plain_setting(item) for item in sequence.__iter__(value)]
    if value is None or kind is bool:
        return value
    if issubclass(kind, Tensor | np.ndarray | np.generic):
        return value.tolist()
    for plain, convert in ((float, float.__float__), (int, int.__int__), (str, str.__str__)):
        if issubclass(kind, plain):
            return convert(value)
    return str(value) if kind in (torch.dtype, torch.device, complex) else kind.__qualname__
