"""Scale the columns of features to mean 0 and variance 1."""

import torch
from torch import Tensor


def standardize(x: Tensor) -> Tensor:
    """Shift and scale each column to mean 0 and variance 1; constant columns, such as those of one row, become zero.

    Args:
        x: (rows, ...), floating-point, of any scale; at least one row.

    Example:
        >>> standardize(torch.tensor([[-1e-12, 7.0, 0.0], [0.0, 7.0, 0.0], [1e-12, 7.0, 0.0]]))
        tensor([[-1.,  0.,  0.],
                [ 0.,  0.,  0.],
                [ 1.,  0.,  0.]])
        >>> standardize(torch.tensor([[3.0, 7.0]]))
        tensor([[0., 0.]])
    """
    mean, deviation = column_statistics(x)
    return (x - mean) / deviation


def column_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; if it is constant, its size instead of a deviation.

    Then later rows that do differ are divided by no tiny number. Sums are in units of the size, so that they do not
    overflow, and the mean is corrected by that of the differences from it, so that it is exact for equal entries.
    """
    size = x.detach().abs().amax(0)
    size = torch.where(size > 0, size, 1)  # squares of entries below 1e-23 would underflow
    scaled = x / size
    rounded_mean = scaled.detach().mean(0)
    differences = scaled - rounded_mean
    deviation = differences.std(0, correction=min(1, len(x) - 1))
    rounding = 8 * torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps  # torch sums narrower types in float32
    mean = (rounded_mean + differences.mean(0)) * size
    return mean, torch.where(deviation > rounding, deviation, 1) * size
