"""Few steps out of many, chosen so that no spike is lost.

A line of 5,000 points on a page 1,000 pixels wide hides nothing when each pixel keeps its lowest and its highest point.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def spaced(count: int, limit: int) -> NDArray[np.int64]:
    """Positions of at most `limit` of `count` things: the first, the last, and evenly between.

    Example:
        >>> spaced(10, 4).tolist(), spaced(3, 8).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= limit:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, limit)).astype(np.int64))


def bin_steps(count: int, limit: int) -> NDArray[np.int64]:
    """The bin of each of `count` positions, for at most `limit` bins of nearly equal size, in order.

    Example:
        >>> bin_steps(5, 2).tolist()
        [0, 0, 0, 1, 1]
    """
    if count <= limit:
        return np.arange(count)
    return np.arange(count) * limit // count


def envelope(values: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Positions of one series that draw the same line: the ends, and the lowest and highest value of each bin.

    Where a bin holds NaN or infinities, the first of them is kept too, so that a break is never thinned away.

    Args:
        values: (T,), in order of the steps.
        limit: About how many positions may stay; a series that is no longer is kept whole.

    Returns:
        (at most 1.5 `limit` + 2,) increasing positions.

    Example:
        >>> series = np.zeros(1000); series[501] = 1.0
        >>> 501 in envelope(series, 20)
        True
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    bins = max(limit // 2, 1)
    starts = np.searchsorted(bin_steps(count, bins), np.arange(bins))
    finite = np.isfinite(values)
    kept = [np.array([0, count - 1])]
    for wanted in (np.where(finite, values, np.inf), np.where(finite, -values, np.inf), np.where(finite, 1.0, 0.0)):
        lowest = np.minimum.reduceat(wanted, starts)
        hit = wanted == np.repeat(lowest, np.diff(np.append(starts, count)))
        positions = np.flatnonzero(hit)
        kept.append(positions[np.unique(np.searchsorted(starts, positions, side="right"), return_index=True)[1]])
    return np.unique(np.concatenate(kept))


def thin(values: pd.Series, limit: int = 150) -> pd.DataFrame:
    """A series by step in at most `limit` points: the median of each bin of steps, with its lowest and highest value.

    The first and the last step are bins of their own. A bin that holds NaN or an infinity is NaN, so that the break
    shows.

    Args:
        values: Indexed by step, in order.
        limit: How many points there may be; a series that is no longer is kept as it is.

    Returns:
        step (amid the bin), value, low, high.

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
    inner = bin_steps(count - 2, max(limit - 2, 1))
    bins = np.concatenate([[0], inner + 1, [inner[-1] + 2]])
    order = np.lexsort((value, bins))  # sorted inside each bin, NaN last
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    ends = np.append(starts[1:], count)
    ordered = value[order]
    low, high = ordered[starts], ordered[ends - 1]
    below, above = ordered[(starts + ends - 1) // 2], ordered[(starts + ends) // 2]
    with np.errstate(invalid="ignore"):
        middle = np.where(below == above, below, below / 2 + above / 2)
    broken = ~(np.isfinite(low) & np.isfinite(high))
    table = pd.DataFrame({"step": step[(starts + ends - 1) // 2], "value": middle, "low": low, "high": high})
    table.loc[broken, ["value", "low", "high"]] = np.nan
    return table


def thin_groups(table: pd.DataFrame, by: str, limit: int = 150) -> pd.DataFrame:
    """Each group of a tidy table (step, value, a categorical) reduced by `thin`.

    Returns:
        step, the categorical, value, low, high.
    """
    parts = []
    for _, part in table.groupby(by, observed=True, sort=True):
        thinned = thin(part.set_index("step")["value"], limit)
        thinned.insert(1, by, part[by].iloc[[0] * len(thinned)].array)
        parts.append(thinned)
    empty = table[["step", by, "value"]].assign(low=table["value"], high=table["value"])
    return pd.concat(parts, ignore_index=True) if parts else empty
