"""Numbers as text: few digits, and words for NaN and missing values."""

import math

from gatdiag.names import MINUS as MINUS
from gatdiag.names import TIMES as TIMES
from gatdiag.names import number as number
from gatdiag.names import plain as plain


def describe_range(low: float, high: float) -> str:
    """A range in words.

    Example:
        >>> describe_range(0.7, 30.0), describe_range(1.6, math.inf)
        ('0.7 to 30', '1.6 and more')
    """
    return f"{number(low)} to {number(high)}" if math.isfinite(high) else f"{number(low)} and more"


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage; only exact 0 and 1 become 0% and 100%.

    Example:
        >>> percent(0.253), percent(1.0), percent(0.99999), percent(0.00001), percent(0)
        ('25.3%', '100%', '> 99.9%', '< 0.1%', '0%')
    """
    if fraction is None or not math.isfinite(fraction):
        return number(fraction)
    if 0 < abs(fraction) < 0.001:
        return "< 0.1%" if fraction > 0 else f"> {MINUS}0.1%"
    if 0.999 < fraction < 1:
        return "> 99.9%"
    return f"{100 * fraction:.{3 if abs(fraction) >= 0.1 else 2}g}%".replace("-", MINUS)
