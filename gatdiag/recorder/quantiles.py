"""Quantiles of the relative and the absolute change of one parameter, on the CPU several times faster than torch sorts.

The numbers are those of `gatdiag.metrics` (`quantiles` of `relative_change` and `absolute_change`) to the six digits
that float32 has.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag import metrics
from gatdiag.quantities import LEVELS, SIGNIFICANT

_SORTED_BY_NUMPY = (torch.float32, torch.float64)


def change_quantiles(initial: Tensor, weight: Tensor) -> Tensor:
    """Quantiles of |w - w_0| / |w| over the significant weights, and of |w - w_0| over all.

    Args:
        initial: w_0, flat.
        weight: w, the same shape.

    Returns:
        (2, levels), float64, relative change first.

    Example:
        >>> change_quantiles(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]))[:, -1].tolist()
        [0.5, 1.0]
    """
    if weight.device.type == "cpu" and weight.dtype in _SORTED_BY_NUMPY:
        return torch.from_numpy(_by_numpy(initial.numpy(), weight.numpy()))
    significant = weight.double().abs() >= SIGNIFICANT
    relative = metrics.quantiles(metrics.relative_change(initial, weight), LEVELS, where=significant)
    return torch.stack([relative, metrics.quantiles(metrics.absolute_change(initial, weight), LEVELS)])


@cache
def least_significant(dtype: np.dtype[Any]) -> Any:
    """The smallest number of a type that is at least `SIGNIFICANT`, which few types hold exactly."""
    nearest = dtype.type(SIGNIFICANT)
    return nearest if float(nearest) >= SIGNIFICANT else np.nextafter(nearest, dtype.type(1))


def _by_numpy(initial: Any, weight: Any) -> Any:
    with np.errstate(all="ignore"):  # infinities and NaN are results here
        change, size = np.abs(weight - initial), np.abs(weight)
        significant = size >= least_significant(size.dtype)
        relative = np.where(change == 0, change, change / size)
        if not significant.all():
            relative = relative[significant]
        return np.stack([sorted_quantiles(relative), sorted_quantiles(change)])


def sorted_quantiles(values: NDArray[Any]) -> NDArray[Any]:
    """The quantiles of an array at `LEVELS`, as `metrics.quantiles` has them. Sorts it in place.

    numpy sorts whole arrays with vector instructions, several times faster than it finds a few places in them.

    Example:
        >>> sorted_quantiles(np.array([4.0, 0.0, 2.0])).tolist()
        [0.0, 0.2, 1.0, 2.0, 3.0, 3.8, 4.0]
    """
    values.sort()
    if not len(values) or np.isnan(values[-1]):  # NaN sorts last
        return np.full(len(LEVELS), np.nan)
    position = np.array(LEVELS) * (len(values) - 1)
    below = np.floor(position)
    low, high = values[below.astype(np.int64)].astype(np.float64), values[np.ceil(position).astype(np.int64)]
    with np.errstate(invalid="ignore"):  # between two infinities, where the first branch is taken
        between = low + (position - below) * (high - low)
    found: NDArray[Any] = np.where((low == high) | (position == below), low, between)
    return found
