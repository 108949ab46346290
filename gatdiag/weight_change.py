"""How far weights have moved since initialization, on NumPy arrays. No torch.

`gatdiag.metrics` has the same for tensors on any device. Attention vectors, which may start at zero, are compared by
absolute change |w - w_0|; all other weights by relative change |w - w_0| / |w|, if |w| >= 1e-4 (Mustafa et al., "Are
GATs Out of Balance?", NeurIPS 2023, figures 3a, 4a, 8 and 11). The denominator is the trained value, as in the paper: a
weight that tripled has changed by 2/3, one that flipped its sign by 2.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatdiag.quantities import LEVELS, SIGNIFICANT, THRESHOLDS

FRACTIONS: Final = ("unchanged_fraction", *THRESHOLDS, "significant_fraction")
_BLOCK: Final = 1 << 15  # entries at a time, to fit a CPU cache

Floats = NDArray[np.float64]


def change_fractions(
    initial: NDArray[Any], trained: NDArray[Any], sizes: Sequence[int], absolute: NDArray[np.int64]
) -> Floats:
    """Fractions of each parameter that did not change, that changed by more than 0.05 and 0.5, and that count in these.

    Args:
        initial: w_0 of all parameters, flat and concatenated: float32 or float64.
        trained: w, the same; or (S, entries) at S steps.
        sizes: Number of entries of each parameter.
        absolute: Positions of the entries compared by absolute change, in ascending order.

    Returns:
        (4, parameters), or (4, S, parameters), in the order of `FRACTIONS`. NaN for a parameter with a NaN or infinity
        in either; changed fractions also for one without an entry that counts.
    """
    least, total = significance_cutoff(trained.dtype), 0.0
    chosen = np.empty((2 + len(THRESHOLDS), *trained.shape), dtype=bool)
    entries = trained.shape[-1]
    length = max(1, _BLOCK // prod(trained.shape[:-1]))
    starts = range(0, entries, length)
    places = np.searchsorted(absolute, [*starts, entries])
    with np.errstate(all="ignore"):  # NaN is handled at the end
        for start, first, last in zip(starts, places[:-1], places[1:], strict=True):
            block = slice(start, start + length)
            change, *found = change_masks(initial[block], trained[..., block], absolute[first:last] - start, least)
            total += float(change.sum())
            for row, mask in zip(chosen, found, strict=True):
                row[..., block] = mask
        pieces = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        unchanged, significant, *beyond = (_counts(row, pieces) for row in chosen)
        entries_of_each = np.array(sizes)
        shares = np.array(
            [unchanged / entries_of_each, *(count / significant for count in beyond), significant / entries_of_each]
        )
        if not np.isfinite(total):
            broken = [~np.isfinite(trained[..., piece] - initial[piece]).all(-1) for piece in pieces]
            shares[:, np.stack(broken, -1)] = np.nan
    return shares


def change_masks(initial: Any, trained: Any, absolute: Any, least: Any) -> list[Any]:
    """|w - w_0|, and masks of the entries that did not change, that count, and that exceed each threshold.

    Works on arrays and tensors.

    Args:
        initial: w_0.
        trained: w.
        absolute: Positions of the entries compared by absolute change; all of these count.
        least: The smallest |w| whose relative change counts.
    """
    change, size = abs(trained - initial), abs(trained)
    counted = size >= least
    counted[..., absolute], size[..., absolute] = True, 1.0
    relative = change / size
    return [change, change == 0, counted, *((relative > threshold) & counted for threshold in THRESHOLDS.values())]


def change_quantiles(initial: NDArray[Any], trained: NDArray[Any], *, relative: bool) -> Floats:
    """Quantiles at `LEVELS` of |w - w_0| / |w| over the weights with |w| >= 1e-4, or of |w - w_0| over all.

    Args:
        initial: w_0, flat, float32 or float64.
        trained: w, the same.
        relative: Whether the change is relative.

    Returns:
        (levels,), with linear interpolation. All NaN if no entry counts or a change that counts is NaN; infinities are
        ordinary values.

    Example:
        >>> change_quantiles(np.array([1.0, 1.0]), np.array([1.0, 2.0]), relative=True).tolist()[-1]
        0.5
    """
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        change = abs(trained - initial)
        if relative:
            size = abs(trained)
            significant = size >= significance_cutoff(size.dtype)
            change = np.where(change == 0, change, change / size)
            change = change if significant.all() else change[significant]
        change.sort()  # several times faster than np.partition
        if not len(change) or np.isnan(change[-1]):  # NaN sorts last
            return np.full(len(LEVELS), np.nan)
        position = np.array(LEVELS) * (len(change) - 1)
        below = np.floor(position)
        low, high = (change[place.astype(np.int64)].astype(np.float64) for place in (below, np.ceil(position)))
        between = low + (position - below) * (high - low)
        found: Floats = np.where((low == high) | (position == below), low, between)
    return found


@cache
def significance_cutoff(dtype: np.dtype[Any]) -> Any:
    """The smallest number of a dtype that is at least `SIGNIFICANT`, which few dtypes represent exactly."""
    nearest = dtype.type(SIGNIFICANT)
    return nearest if float(nearest) >= SIGNIFICANT else np.nextafter(nearest, dtype.type(1))


def _counts(mask: NDArray[np.bool_], pieces: Sequence[slice]) -> Floats:
    if mask.ndim == 1:
        return np.array([np.count_nonzero(mask[piece]) for piece in pieces], dtype=np.float64)
    return np.stack([_counts(row, pieces) for row in mask])
