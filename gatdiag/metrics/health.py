"""What is plainly broken: units that are dead, and numbers that are not finite."""

import torch
from torch import Tensor

from gatdiag.errors import InputError


def dead_fraction(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The part of the units (columns of X) that are exactly zero at every node.

    Of a ReLU layer's output: units that no node activates, and that no gradient reaches. Of dLoss/dX: units that
    receive no gradient.

    Args:
        x: (N, d), the output after the activation, or its gradient.
        mask: (N,), boolean: only these nodes count.

    Returns:
        0-d in [0, 1]. NaN (undefined) without a node or a unit; NaN if x holds a NaN at a node that counts.

    Raises:
        InputError: `x` does not have two axes.

    Example:
        >>> dead_fraction(torch.tensor([[0.0, 1.0], [0.0, 0.0]])).item()
        0.5
    """
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    counted = x.new_ones(len(x), dtype=torch.bool) if mask is None else mask
    seen = torch.where(counted.unsqueeze(1), x, 0.0)
    fraction = (seen == 0).all(0).double().mean()
    return torch.where(seen.isnan().any() | ~counted.any(), torch.nan, fraction)


def non_finite_counts(x: Tensor) -> Tensor:
    """How many entries are NaN, +infinity and -infinity; anything but zeros means that the numbers cannot be trusted.

    Args:
        x: Any shape and number type: weights, gradients, outputs.

    Returns:
        (3,), int64: NaN, +infinity, -infinity. Zeros for an empty tensor and for integers.

    Example:
        >>> non_finite_counts(torch.tensor([1.0, float("nan"), float("-inf")])).tolist()
        [1, 0, 1]
    """
    return torch.stack([x.isnan().sum(), x.isposinf().sum(), x.isneginf().sum()])
