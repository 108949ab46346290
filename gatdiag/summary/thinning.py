"""Few steps out of many, chosen so that no spike is lost and no pause of recording is bridged.

A line of 5,000 points on a page 1,000 pixels wide hides nothing when each pixel keeps its lowest and its highest point.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

__all__ = ["bin_steps", "evenly_spaced", "stretches", "thin", "thin_groups"]

_PAUSE = 10  # times the usual distance of the steps on either side
_USUAL = 3  # distances whose median is usual


def evenly_spaced(count: int, limit: int) -> NDArray[np.int64]:
    """Positions of at most `limit` of `count` things: the first, the last, and evenly between.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 8).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= limit:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, limit)).astype(np.int64))


def stretches(steps: ArrayLike) -> NDArray[np.int64]:
    """Which uninterrupted stretch of recording each step is in, from 0.

    Recording paused where the next step is more than ten times as far as is usual both before and after. Where steps
    only become rarer, or ever rarer, it did not.

    Args:
        steps: (T,) increasing.

    Example:
        >>> stretches([0, 1, 2, 3, 500, 501, 502]).tolist(), stretches([0, 1, 2, 100, 200, 300]).tolist()
        ([0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0])
    """
    apart = np.diff(np.asarray(steps, np.int64))
    if not len(apart) or apart.max() <= _PAUSE * apart.min():
        return np.zeros(len(np.asarray(steps)), np.int64)
    gaps = pd.Series(apart)
    before, after = (part.rolling(_USUAL, min_periods=1).quantile(0.5, "lower").shift() for part in (gaps, gaps[::-1]))
    paused = apart > _PAUSE * np.fmax(before.to_numpy(), after.to_numpy()[::-1])
    return np.concatenate([[0], np.cumsum(paused)])


def bin_steps(steps: ArrayLike, limit: int) -> NDArray[np.int64]:
    """The bin of each step: about `limit` bins over equal distances, in order, none with a pause of recording inside.

    Args:
        steps: (T,) increasing.
        limit: How many bins there may be; each pause adds one at most.

    Example:
        >>> bin_steps(range(5), 2).tolist(), bin_steps([0, 1, 2, 3, 8, 12, 16], 5).tolist()
        ([0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 2, 3])
    """
    at = np.asarray(steps, np.int64)
    if len(at) <= limit:
        return np.arange(len(at))
    bins = (at - at[0]) * limit // (2 * at[-1] - at[0] - at[-2])  # the last step lasts as long as the one before
    return np.cumsum(np.diff(bins + stretches(at), prepend=bins[0]) != 0)


def thin(values: pd.Series, limit: int = 150) -> pd.DataFrame:
    """A series by step in about `limit` points: the median of each bin of steps, with its lowest and highest value.

    The first and the last step are bins of their own. A bin that holds NaN or an infinity is NaN, so that the break
    shows.

    Args:
        values: Indexed by step, in order.
        limit: How many points there may be; a series that is no longer is kept as it is, and each pause of recording
            adds one at most.

    Returns:
        step (amid the bin), value, low, high, stretch (as `stretches` of the steps gives it).

    Example:
        >>> thin(pd.Series([5.0, 1.0, 2.0, 9.0, 4.0]), 3)
           step  value  low  high  stretch
        0     0    5.0  5.0   5.0        0
        1     2    2.0  1.0   9.0        0
        2     4    4.0  4.0   4.0        0
    """
    step, value = values.index.to_numpy(), values.to_numpy(np.float64)
    stretch, count = stretches(step), len(value)
    if count <= limit:
        return pd.DataFrame({"step": step, "value": value, "low": value, "high": value, "stretch": stretch})
    bins = np.pad(bin_steps(step[1:-1], max(limit - 2, 1)) + 1, (1, 1))
    bins[-1] = bins[-2] + 1
    bins += stretch
    order = np.lexsort((value, bins))  # sorted inside each bin, NaN last
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    ends = np.append(starts[1:], count)
    amid, ordered = (starts + ends - 1) // 2, value[order]
    low, high = ordered[starts], ordered[ends - 1]
    below, above = ordered[amid], ordered[(starts + ends) // 2]
    known = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        middle = np.where(below == above, below, below / 2 + above / 2)
    value, low, high = (np.where(known, one, np.nan) for one in (middle, low, high))
    return pd.DataFrame({"step": step[amid], "value": value, "low": low, "high": high, "stretch": stretch[amid]})


def thin_groups(table: pd.DataFrame, by: str, limit: int = 150) -> pd.DataFrame:
    """Each group of a tidy table (step, value, and `by`) reduced by `thin`.

    Returns:
        step, `by`, value, low, high, stretch.
    """
    series = table.set_index("step").groupby(by, observed=True)["value"]
    parts = [thin(values, limit).assign(**{by: name}) for name, values in series]
    if not parts:
        return table[["step", by, "value"]].assign(low=table["value"], high=table["value"], stretch=0)
    thinned = pd.concat(parts, ignore_index=True).astype({by: table[by].dtype})
    return thinned[["step", by, "value", "low", "high", "stretch"]]
