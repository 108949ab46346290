"""How far trained weights are from their initial values: which layers learned, and which never moved.

Source: Mustafa et al., "Are GATs Out of Balance?", NeurIPS 2023, figures 3a, 4a, 8 and 11. There w is the parameter at
the best validation accuracy and w_0 the initial one. Attention vectors, which may start at zero, are compared by their
absolute change, all other weights by their relative change. `gatdiag.weight_change` has the definition.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gatdiag import weight_change
from gatdiag.quantities import LEVELS, SIGNIFICANT

__all__ = ["change_fractions", "change_quantiles"]


def change_fractions(initial: Tensor, trained: Tensor, sizes: Sequence[int], absolute: Tensor) -> Tensor:
    """Fractions of the weights that did not change at all, and that changed by more than 0.05 and 0.5.

        #{k : w_k = w_0k} / #{k}        near 1 if gradients are zero (figure 8)
        #{k : |w_k| >= 1e-4, |(w_k - w_0k) / w_k| > threshold} / #{k : |w_k| >= 1e-4}     (figures 3a, 4a, 11)
        #{k : |w_k - w_0k| > threshold} / #{k}        for attention vectors

    The last two are near 0 if a layer never trained. The denominator is the trained value, as in the paper: a weight
    that tripled has changed by 2/3, one that flipped its sign by 2.

    Args:
        initial: w_0 of P parameters, flat, one after the other.
        trained: w, the same; or (S, entries) at S steps.
        sizes: Number of entries of each parameter.
        absolute: Positions of the entries that are compared by absolute change: those of attention vectors.

    Returns:
        (3, P), or (3, S, P), float64. NaN for a parameter with a NaN or infinity in either, or without an entry that
        counts.

    Example:
        >>> initial, trained = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.01, 2.0, 1e-6, 0.1])
        >>> change_fractions(initial, trained, [3, 1], absolute=torch.tensor([3])).tolist()
        [[0.0, 0.0], [0.5, 1.0], [0.0, 0.0]]
    """
    if trained.is_cpu:
        w_0, w = (_as_float(tensor).numpy() for tensor in (initial, trained))
        return torch.from_numpy(weight_change.change_fractions(w_0, w, sizes, absolute.numpy()))
    before, after = initial.double(), trained.double()
    change, *chosen = weight_change.change_masks(before, after, absolute, SIGNIFICANT)
    pieces = [mask.split(list(sizes), -1) for mask in chosen]
    counts = [torch.stack([piece.sum(-1, dtype=torch.float64) for piece in of_mask], -1) for of_mask in pieces]
    unchanged, significant, *beyond = counts
    entries = torch.tensor(sizes, dtype=torch.float64).to(trained.device, non_blocking=True)
    found = torch.stack([unchanged / entries, *(count / significant for count in beyond)])
    broken = torch.stack([~piece.isfinite().all(-1) for piece in change.split(list(sizes), -1)], -1)
    return found.masked_fill(broken, torch.nan)


def change_quantiles(initial: Tensor, trained: Tensor) -> Tensor:
    """Quantiles of |w - w_0| / |w| where |w| >= 1e-4, and of |w - w_0| over all: the boxes of figure 11.

    Args:
        initial: w_0, flat.
        trained: w, the same shape.

    Returns:
        (2, levels), float64, relative change first, at `gatdiag.quantities.LEVELS`, with linear interpolation: quantile
        q of n sorted values is at position q (n - 1), counted from 0. All NaN if no entry counts or a change that
        counts is NaN; infinities are ordinary values.

    Example:
        >>> change_quantiles(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]))[:, -1].tolist()
        [0.5, 1.0]
    """
    if trained.is_cpu:
        w_0, w = (_as_float(tensor).numpy() for tensor in (initial, trained))
        found = [weight_change.change_quantiles(w_0, w, relative=relative) for relative in (True, False)]
        return torch.stack([torch.from_numpy(values) for values in found])
    before, after = initial.double(), trained.double()
    change, size = abs(after - before), abs(after)
    relative = torch.where(change == 0, change, change / size)
    return torch.stack(
        [_quantiles(relative, size >= SIGNIFICANT), _quantiles(change, torch.ones_like(change, dtype=torch.bool))]
    )


def _as_float(tensor: Tensor) -> Tensor:
    """The tensor as float32 or float64, in which NumPy computes differences without loss."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()


def _quantiles(values: Tensor, counted: Tensor) -> Tensor:
    """As `weight_change.change_quantiles`, without synchronizing with the device."""
    levels = torch.tensor(LEVELS, dtype=torch.float64).to(values.device, non_blocking=True)
    if not len(values):
        return torch.full_like(levels, torch.nan)
    ordered = torch.where(counted, values, torch.inf).sort().values
    position = (levels * (counted.sum() - 1)).clamp(min=0)
    low, high = ordered[position.floor().long()], ordered[position.ceil().long()]
    between = low + (position - position.floor()) * (high - low)
    found = torch.where((low == high) | (position == position.floor()), low, between)
    return torch.where((values.isnan() & counted).any() | ~counted.any(), torch.nan, found)
