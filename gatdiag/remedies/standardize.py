"""Scale the columns of features to mean 0 and variance 1."""

import torch
from torch import Tensor

_SMALLEST = 1e-6  # deviation over the largest entry of a column: rounding errors of a constant column are below it


def standardize(x: Tensor) -> Tensor:
    """Shift and scale each column to mean 0 and variance 1; constant columns become zero.

    Args:
        x: (rows, ...), floating-point, of any scale.

    Example:
        >>> standardize(torch.tensor([[-1e-12, 7.0, 0.0], [0.0, 7.0, 0.0], [1e-12, 7.0, 0.0]]))
        tensor([[-1.,  0.,  0.],
                [ 0.,  0.,  0.],
                [ 1.,  0.,  0.]])
    """
    mean, deviation = column_statistics(x)
    return (x - mean) / deviation


def column_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, the latter with a lower bound relative to the largest entry."""
    size = x.abs().amax(0)
    size = torch.where(size > 0, size, 1)  # squares of entries below 1e-23 would underflow
    return x.mean(0), (x / size).std(0).clamp(min=_SMALLEST) * size
