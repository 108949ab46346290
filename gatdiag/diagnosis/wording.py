"""Numbers as text: few digits, and words for NaN and missing values."""

import math

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a sentence or a table; integers in full.

    Example:
        >>> number(0.81), number(54321.0), number(1234567), number(float("nan")), number(None)
        ('0.81', '54,321', '1,234,567', 'NaN', 'not measured')
        >>> number(0.00000123).split() == ["1.23", TIMES, "10⁻⁶"]
        True
    """
    if value is None:
        return "not measured"
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPT)
        return "\N{NO-BREAK SPACE}".join([mantissa.replace("-", MINUS), TIMES, f"10{power}"])
    return f"{value:.{digits}g}".replace("-", MINUS) if abs(value) < 1000 else f"{value:,.0f}".replace("-", MINUS)


def plain(text: str) -> str:
    """Replace no-break spaces, which some terminals do not show as spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


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
