"""Reduce long series to few points, so that no spike is lost.

A plot that is 1,000 pixels wide loses nothing of 5,000 points if each pixel keeps its lowest and its highest point.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

__all__ = ["bin_steps", "evenly_spaced", "thin", "thin_groups"]

_MOST = 1_500  # points of all groups of a figure, where that leaves each
_FEWEST = 30  # points


def evenly_spaced(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` evenly spaced positions in `range(count)`, including the first and the last.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 8).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= limit:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, limit)).astype(np.int64))


def bin_steps(steps: ArrayLike, limit: int) -> NDArray[np.int64]:
    """Divide steps into bins of equal width.

    Args:
        steps: (T,) increasing.
        limit: Maximum number of bins.

    Returns:
        (T,) the bin of each step, from 0.

    Example:
        >>> bin_steps(range(5), 2).tolist(), bin_steps([0, 1, 2, 3, 8, 12, 16], 5).tolist()
        ([0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 2, 3])
    """
    at = np.asarray(steps, np.int64)
    if len(at) <= limit:
        return np.arange(len(at))
    bins = (at - at[0]) * limit // (2 * at[-1] - at[0] - at[-2])  # the last step lasts as long as the one before
    return np.cumsum(np.diff(bins, prepend=bins[0]) != 0)


def thin(values: pd.Series, limit: int = 150) -> pd.DataFrame:
    """Reduce a series to about `limit` points: the median, minimum and maximum of each bin of steps.

    The first and the last step are bins of their own. A bin with NaN or infinity is NaN, so that the break is visible.

    Args:
        values: Indexed by step, in order.
        limit: Maximum number of points. Shorter series are not reduced.

    Returns:
        step (in the middle of the bin), value, low, high.

    Example:
        >>> thin(pd.Series([5.0, 1.0, 2.0, 9.0, 4.0]), 3)
           step  value  low  high
        0     0    5.0  5.0   5.0
        1     2    2.0  1.0   9.0
        2     4    4.0  4.0   4.0
    """
    step, value = values.index.to_numpy(), values.to_numpy(np.float64)
    count = len(value)
    if count <= limit:
        return pd.DataFrame({"step": step, "value": value, "low": value, "high": value})
    bins = np.pad(bin_steps(step[1:-1], max(limit - 2, 1)) + 1, (1, 1))
    bins[-1] = bins[-2] + 1
    order = np.lexsort((value, bins))  # sorted inside each bin, NaN last
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    ends = np.append(starts[1:], count)
    middle, ordered = (starts + ends - 1) // 2, value[order]
    low, high = ordered[starts], ordered[ends - 1]
    below, above = ordered[middle], ordered[(starts + ends) // 2]
    is_finite = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        median = np.where(below == above, below, below / 2 + above / 2)
    value, low, high = (np.where(is_finite, one, np.nan) for one in (median, low, high))
    return pd.DataFrame({"step": step[middle], "value": value, "low": low, "high": high})


def thin_groups(table: pd.DataFrame, by: str, limit: int = 80) -> pd.DataFrame:
    """Apply `thin` to each group of a tidy table (step, value, and `by`), more to each if there are many.

    Returns:
        step, `by`, value, low, high.
    """
    series = table.set_index("step").groupby(by, observed=True)["value"]
    limit = min(limit, max(_MOST // max(len(series), 1), _FEWEST))
    parts = [thin(values, limit).assign(**{by: name}) for name, values in series]
    if not parts:
        return table[["step", by, "value"]].assign(low=table["value"], high=table["value"])
    thinned = pd.concat(parts, ignore_index=True).astype({by: table[by].dtype})
    return thinned[["step", by, "value", "low", "high"]]
