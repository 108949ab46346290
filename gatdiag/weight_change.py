"""How far weights have moved since initialization: which layers learned, and which never moved. NumPy, no torch.

Attention vectors, which may start at zero, are compared by
absolute change |w - w_0|; all other weights by relative change |w - w_0| / |w|, if |w| >= 1e-4 (Mustafa et al., "Are
GATs Out of Balance?", NeurIPS 2023, figures 3a, 4a, 8 and 11). The denominator is the trained value, as in the paper: a
weight that tripled has changed by 2/3, one that flipped its sign by 2.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatdiag.quantities import LEVELS, SIGNIFICANT, THRESHOLDS, change_quantile

FRACTIONS: Final = ("unchanged_fraction", *THRESHOLDS, "significant_fraction")
_QUANTILES: Final = {kind: [change_quantile(kind, level) for level in LEVELS] for kind in ("relative", "absolute")}
_BLOCK: Final = 1 << 15  # entries at a time, to fit a CPU cache

Floats = NDArray[np.float64]


def change_fractions(
    initial: NDArray[Any], trained: NDArray[Any], sizes: Sequence[int], absolute: NDArray[np.int64]
) -> dict[str, Floats]:
    """Fractions of the weights that did not change at all, that changed by more than 0.05 and 0.5, and that count.

        #{k : w_k = w_0k} / #{k}        near 1 if gradients are zero (figure 8)
        #{k : |w_k| >= 1e-4, |(w_k - w_0k) / w_k| > threshold} / #{k : |w_k| >= 1e-4}     (figures 3a, 4a, 11)
        #{k : |w_k - w_0k| > threshold} / #{k}        for attention vectors
        #{k : |w_k| >= 1e-4} / #{k}     1 for attention vectors

    The second and third are near 0 if a layer never trained.

    Args:
        initial: w_0 of all parameters, flat and concatenated: float32 or float64.
        trained: w, the same.
        sizes: Number of entries of each parameter.
        absolute: Positions of the entries compared by absolute change, in ascending order.

    Returns:
        By column, (parameters,) each. NaN for a parameter with a NaN or infinity in either; changed fractions also for
        one without an entry that counts.

    Example:
        >>> initial, trained = np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.01, 2.0, 1e-6, 0.1])
        >>> change_fractions(initial, trained, [3, 1], absolute=np.array([3]))["changed_fraction_005"].tolist()
        [0.5, 1.0]
    """
    least, total = _significance_cutoff(trained.dtype), 0.0
    chosen = np.empty((2 + len(THRESHOLDS), len(trained)), dtype=bool)
    starts = range(0, len(trained), _BLOCK)
    places = np.searchsorted(absolute, [*starts, len(trained)])
    with np.errstate(all="ignore"):  # NaN is handled at the end
        for start, first, last in zip(starts, places[:-1], places[1:], strict=True):
            block = slice(start, start + _BLOCK)
            change, *found = _change_masks(initial[block], trained[block], absolute[first:last] - start, least)
            total += float(change.sum())
            for row, mask in zip(chosen, found, strict=True):
                row[block] = mask
        pieces = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        unchanged, significant, *beyond = (_counts(row, pieces) for row in chosen)
        shares = np.array([unchanged / sizes, *(count / significant for count in beyond), significant / sizes])
        if not np.isfinite(total):
            broken = [not np.isfinite(trained[piece] - initial[piece]).all() for piece in pieces]
            shares[:, broken] = np.nan
    return dict(zip(FRACTIONS, shares, strict=True))


def _change_masks(
    initial: NDArray[Any], trained: NDArray[Any], absolute: NDArray[np.int64], least: Any
) -> list[NDArray[Any]]:
    """|w - w_0|, and masks of the entries that did not change, that count, and that exceed each threshold."""
    change, size = abs(trained - initial), abs(trained)
    counted = size >= least
    counted[absolute], size[absolute] = True, 1.0
    relative = change / size
    return [change, change == 0, counted, *((relative > threshold) & counted for threshold in THRESHOLDS.values())]


def change_quantiles(
    initial: NDArray[Any], trained: NDArray[Any], kind: Literal["relative", "absolute"]
) -> dict[str, float]:
    """Quantiles at `LEVELS` of |w - w_0| / |w| over the weights with |w| >= 1e-4, or of |w - w_0| over all.

    They are the boxes of figure 11.

    Args:
        initial: w_0, flat, float32 or float64.
        trained: w, the same.
        kind: Of the change.

    Returns:
        By column, with linear interpolation: quantile q of n sorted values is at position q (n - 1), counted from 0.
        All NaN if no entry counts or a change that counts is NaN; infinities are ordinary values.

    Example:
        >>> change_quantiles(np.array([1.0, 1.0]), np.array([1.0, 2.0]), "relative")["relative_change_q100"]
        0.5
    """
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        change = abs(trained - initial)
        if kind == "relative":
            size = abs(trained)
            significant = size >= _significance_cutoff(size.dtype)
            change = np.where(change == 0, change, change / size)
            change = change if significant.all() else change[significant]
        change.sort()  # several times faster than np.partition
        if not len(change) or np.isnan(change[-1]):  # NaN sorts last
            return dict.fromkeys(_QUANTILES[kind], np.nan)
        position = np.array(LEVELS) * (len(change) - 1)
        below = np.floor(position)
        low, high = (change[place.astype(np.int64)].astype(np.float64) for place in (below, np.ceil(position)))
        between = low + (position - below) * (high - low)
        found = np.where((low == high) | (position == below), low, between)
    return dict(zip(_QUANTILES[kind], found.tolist(), strict=True))


@cache
def _significance_cutoff(dtype: np.dtype[Any]) -> Any:
    """The smallest number of a dtype that is at least `SIGNIFICANT`, which few dtypes represent exactly."""
    nearest = dtype.type(SIGNIFICANT)
    return nearest if float(nearest) >= SIGNIFICANT else np.nextafter(nearest, dtype.type(1))


def _counts(mask: NDArray[np.bool_], pieces: Sequence[slice]) -> Floats:
    return np.array([np.count_nonzero(mask[piece]) for piece in pieces], dtype=np.float64)
