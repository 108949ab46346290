"""How far trained weights are from their initial values: which layers learned, and which never moved.

Source: Mustafa et al., "Are GATs Out of Balance?", NeurIPS 2023, figures 3a, 4a, 8 and 11. There w is the parameter at
the best validation accuracy and w_0 the initial one. Attention vectors, which may start at zero, are compared by their
absolute change, all other weights by their relative change. `gatdiag.weight_change` has the definition.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag import weight_change
from gatdiag.quantities import LEVELS, SIGNIFICANT

__all__ = ["change_fractions", "change_quantiles"]


def change_fractions(initial: Tensor, trained: Tensor, sizes: Sequence[int], absolute: Tensor) -> Tensor:
    """Fractions of the weights that did not change at all, that changed by more than 0.05 and 0.5, and that count.

        #{k : w_k = w_0k} / #{k}        near 1 if gradients are zero (figure 8)
        #{k : |w_k| >= 1e-4, |(w_k - w_0k) / w_k| > threshold} / #{k : |w_k| >= 1e-4}     (figures 3a, 4a, 11)
        #{k : |w_k - w_0k| > threshold} / #{k}        for attention vectors
        #{k : |w_k| >= 1e-4} / #{k}     1 for attention vectors

    The second and third are near 0 if a layer never trained. The denominator is the trained value, as in the paper: a
    weight that tripled has changed by 2/3, one that flipped its sign by 2.

    Args:
        initial: w_0 of P parameters, flat, one after the other.
        trained: w, the same; or (S, entries) at S steps.
        sizes: Number of entries of each parameter.
        absolute: Positions of the entries that are compared by absolute change: those of attention vectors.

    Returns:
        (4, P), or (4, S, P), float64. NaN for a parameter with a NaN or infinity in either; the second and third also
        for one without an entry that counts.

    Example:
        >>> initial, trained = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.01, 2.0, 1e-6, 0.1])
        >>> change_fractions(initial, trained, [3, 1], absolute=torch.tensor([3])).tolist()
        [[0.0, 0.0], [0.5, 1.0], [0.0, 0.0], [0.6666666666666666, 1.0]]
    """
    if trained.is_cpu:
        w_0, w = (_as_float(tensor).numpy() for tensor in (initial, trained))
        return torch.from_numpy(weight_change.change_fractions(w_0, w, sizes, absolute.numpy()))
    before, after = initial.double(), trained.double()
    change, *chosen = weight_change.change_masks(before, after, absolute, SIGNIFICANT)
    starts, ends = _bounds(sizes, trained.device)
    unchanged, significant, *beyond = (_counts(mask, starts, ends) for mask in chosen)
    entries = ends - starts
    found = torch.stack([unchanged / entries, *(count / significant for count in beyond), significant / entries])
    return found.masked_fill(_counts(~change.isfinite(), starts, ends) > 0, torch.nan)


def change_quantiles(initial: Tensor, trained: Tensor, sizes: Sequence[int]) -> Tensor:
    """Quantiles of |w - w_0| / |w| where |w| >= 1e-4, and of |w - w_0| over all: the boxes of figure 11.

    Args:
        initial: w_0 of P parameters, flat, one after the other.
        trained: w, the same; or (S, entries) at S steps.
        sizes: Number of entries of each parameter.

    Returns:
        (2, levels, P), or (2, levels, S, P), float64, relative change first, at `gatdiag.quantities.LEVELS`, with
        linear interpolation: quantile q of n sorted values is at position q (n - 1), counted from 0. All NaN if no
        entry counts or a change that counts is NaN; infinities are ordinary values.

    Example:
        >>> change_quantiles(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]), [2])[:, -1].tolist()
        [[0.5], [1.0]]
    """
    if trained.is_cpu:
        pairs = zip(*(_as_float(tensor).split(list(sizes), -1) for tensor in (initial, trained)), strict=True)
        found = np.array([_quantiles_of_piece(w_0.numpy(), w.numpy()) for w_0, w in pairs])
        return torch.from_numpy(found.reshape(len(sizes), 2, len(LEVELS), *trained.shape[:-1])).movedim(0, -1)
    before, after = initial.double(), trained.double()
    change, size = abs(after - before), abs(after)
    relative = torch.where(change == 0, change, change / size)
    every = torch.ones_like(size, dtype=torch.bool)
    return torch.stack([_quantiles(relative, size >= SIGNIFICANT, sizes), _quantiles(change, every, sizes)])


def _quantiles_of_piece(w_0: NDArray[Any], w: NDArray[Any]) -> NDArray[np.float64]:
    """(2, levels, ...), of the last axis of w."""
    if w.ndim > 1:
        return np.stack([_quantiles_of_piece(w_0, row) for row in w], -1)
    return np.array([weight_change.change_quantiles(w_0, w, relative=relative) for relative in (True, False)])


def _as_float(tensor: Tensor) -> Tensor:
    """The tensor as float32 or float64, in which NumPy computes differences without loss."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()


def _quantiles(values: Tensor, counted: Tensor, sizes: Sequence[int]) -> Tensor:
    """As `weight_change.change_quantiles` of each parameter, without synchronizing with the device."""
    levels = torch.tensor(LEVELS, dtype=torch.float64).to(values.device, non_blocking=True)
    levels = levels.view(-1, *[1] * values.dim())
    starts, ends = _bounds(sizes, values.device)
    if not values.numel():
        return values.new_full((len(LEVELS), *values.shape[:-1], len(sizes)), torch.nan)
    owner = torch.bucketize(torch.arange(values.shape[-1], device=values.device), ends, right=True)
    ordered, origin = torch.where(counted, values, torch.inf).sort(-1)
    ordered = ordered.gather(-1, owner[origin].argsort(dim=-1, stable=True))  # sorted within each parameter
    count = _counts(counted, starts, ends)
    position = (levels * (count - 1)).clamp(min=0)
    low, high = (_at(ordered, starts + place.long()) for place in (position.floor(), position.ceil()))
    between = low + (position - position.floor()) * (high - low)
    found = torch.where((low == high) | (position == position.floor()), low, between)
    undefined = (count == 0) | (_counts(values.isnan() & counted, starts, ends) > 0)
    return found.masked_fill(undefined, torch.nan)


def _at(ordered: Tensor, places: Tensor) -> Tensor:
    """The entries of (..., n) at (levels, ..., P)."""
    places = places.clamp(max=ordered.shape[-1] - 1)
    return ordered.expand(len(places), *ordered.shape).gather(-1, places)


def _bounds(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The first entry of each parameter, and the one after its last."""
    lengths = torch.tensor(sizes, dtype=torch.long)
    ends = lengths.cumsum(0)
    return (ends - lengths).to(device, non_blocking=True), ends.to(device, non_blocking=True)


def _counts(mask: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Number of true entries of each parameter, (..., P), float64."""
    counts = torch.nn.functional.pad(mask.cumsum(-1), (1, 0))
    return (counts.index_select(-1, ends) - counts.index_select(-1, starts)).double()
