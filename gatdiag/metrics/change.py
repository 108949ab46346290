"""How far trained weights are from their initial values: which layers learned, and which never moved.

Source of all: Mustafa et al., "Are GATs Out of Balance?", NeurIPS 2023, figures 3a, 4a, 8 and 11. There w* is the
parameter at the best validation accuracy and w_0 the initial one. Attention vectors that start at zero are judged by
their absolute change, all other weights by their relative change.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gatdiag.quantities import SIGNIFICANT

DECILES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def absolute_change(initial: Tensor, trained: Tensor) -> Tensor:
    """|w* - w_0|, entry by entry.

    Args:
        initial: w_0, any shape.
        trained: w*, the same shape.

    Returns:
        The same shape, in the weight's unit. NaN where either is NaN, or both are the same infinity.

    Example:
        >>> absolute_change(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.5])).tolist()
        [0.0, 0.5]
    """
    return (trained.double() - initial.double()).abs()


def relative_change(initial: Tensor, trained: Tensor) -> Tensor:
    """|(w* - w_0) / w*|, entry by entry. The denominator is the TRAINED value, as in the paper.

    A weight that tripled has changed by 2/3, one that flipped its sign by 2, one that shrank to a tenth by 9.

    Args:
        initial: w_0, any shape.
        trained: w*, the same shape.

    Returns:
        The same shape, dimensionless. 0 where nothing changed, zero weights included; infinity where a weight became
        exactly zero; NaN where either is NaN or w* is infinite.

    Example:
        >>> relative_change(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([2.0, -2.0, 0.0])).tolist()
        [0.5, 2.0, 0.0]
    """
    change = absolute_change(initial, trained)
    return torch.where(change == 0, change, change / trained.double().abs())


def changed_fraction(initial: Tensor, trained: Tensor, threshold: float, *, significant: float = SIGNIFICANT) -> Tensor:
    """The part of the significant weights whose relative change exceeds a threshold; near 0, the layer never trained.

        #{k : |w*_k| >= significant, |(w*_k - w_0k) / w*_k| > threshold} / #{k : |w*_k| >= significant}

    Args:
        initial: w_0, any shape.
        trained: w*, the same shape.
        threshold: The paper has 0.05 in figure 3a (5 layers) and 0.5 in figure 4a (10 layers).
        significant: Smaller trained weights are not counted: their relative change is large for no reason.

    Returns:
        0-d in [0, 1]. NaN if no weight is significant, if either tensor holds a NaN, or if w* holds an infinity.

    Example:
        >>> changed_fraction(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1.01, 2.0, 1e-6]), 0.05).item()
        0.5
    """
    change = relative_change(initial, trained)
    counted = trained.double().abs() >= significant
    fraction = ((change > threshold) & counted).sum(dtype=torch.float64) / counted.sum()
    return torch.where(change.isnan().any(), torch.nan, fraction)


def absolutely_changed_fraction(initial: Tensor, trained: Tensor, threshold: float) -> Tensor:
    """The part of the weights whose absolute change exceeds a threshold: `changed_fraction` for attention vectors.

    Args:
        initial: w_0, any shape.
        trained: w*, the same shape.
        threshold: In the weight's unit; 0.05 and 0.5 in figures 3a and 4a.

    Returns:
        0-d in [0, 1]. NaN for an empty tensor, or if either tensor holds a NaN.

    Example:
        >>> absolutely_changed_fraction(torch.zeros(4), torch.tensor([0.01, -0.2, 0.0, 0.1]), 0.05).item()
        0.5
    """
    change = absolute_change(initial, trained)
    return torch.where(change.isnan().any(), torch.nan, (change > threshold).double().mean())


def unchanged_fraction(initial: Tensor, trained: Tensor) -> Tensor:
    """The part of the weights that did not change at all, to the last bit (figure 8); near 1, gradients are zero.

    Args:
        initial: w_0, any shape.
        trained: w*, the same shape.

    Returns:
        0-d in [0, 1]. NaN for an empty tensor, or if either tensor holds a NaN.

    Example:
        >>> unchanged_fraction(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])).item()
        0.5
    """
    change = absolute_change(initial, trained)
    return torch.where(change.isnan().any(), torch.nan, (change == 0).double().mean())


def quantiles(values: Tensor, levels: Sequence[float] = DECILES, *, where: Tensor | None = None) -> Tensor:
    """Quantiles of any tensor, of any size, with linear interpolation: what the box plots of figure 11 draw.

    Quantile q of n sorted values is at position q (n - 1), counted from 0.

    Args:
        values: Any shape.
        levels: Q numbers in [0, 1], copied to the device; by default 0 (the minimum), 0.1, ..., 1 (the maximum).
        where: Same shape, boolean: only these entries count, for example those with |w*| >= SIGNIFICANT.

    Returns:
        (Q,). NaN throughout if nothing is counted or a counted value is NaN; infinities are ordinary values.

    Example:
        >>> quantiles(torch.tensor([0.0, 1.0, 4.0]), [0.0, 0.25, 0.5, 1.0]).tolist()
        [0.0, 0.5, 1.0, 4.0]
    """
    flat = values.double().flatten()
    counted = torch.ones_like(flat, dtype=torch.bool) if where is None else where.flatten()
    fractions = torch.tensor(levels, dtype=torch.float64, device=flat.device)
    if flat.numel() == 0:
        return torch.full_like(fractions, torch.nan)
    ordered = torch.where(counted, flat, torch.inf).sort().values
    position = (fractions * (counted.sum() - 1)).clamp(min=0)
    low, high = ordered[position.floor().long()], ordered[position.ceil().long()]
    between = low + (position - position.floor()) * (high - low)
    found = torch.where(low == high, low, torch.where(position == position.floor(), low, between))
    undefined = (flat.isnan() & counted).any() | ~counted.any()
    return torch.where(undefined, torch.nan, found)
