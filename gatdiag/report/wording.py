"""Numbers and names as a reader wants them: few digits, words where there is no number, one line a name."""

import math
import re
import unicodedata
from collections.abc import Iterable

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
_LONGEST = 48  # characters of a name inside a sentence
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number for a sentence.

    Example:
        >>> number(0.81), number(54321), number(float("nan")), number(None)
        ('0.81', '54,321', 'NaN', 'not measured')
        >>> number(0.00000123).split() == ["1.23", TIMES, "10⁻⁶"]
        True
    """
    if value is None:
        return "not measured"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPT)
        return "\N{NO-BREAK SPACE}".join([mantissa.replace("-", MINUS), TIMES, f"10{power}"])
    return f"{value:.{digits}g}".replace("-", MINUS) if abs(value) < 1000 else f"{value:,.0f}".replace("-", MINUS)


def count(value: int) -> str:
    """A whole number with its thousands set apart.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return f"{value:,}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage; a part that is not all is never rounded to all or nothing.

    Example:
        >>> percent(0.253), percent(1.0), percent(0.99999), percent(0.00001), percent(0)
        ('25.3 %', '100 %', '> 99.9 %', '< 0.1 %', '0 %')
    """
    if fraction is None or not math.isfinite(fraction):
        return number(fraction)
    if 0 < abs(fraction) < 0.001:
        return "< 0.1 %" if fraction > 0 else f"> {MINUS}0.1 %"
    if 0.999 < fraction < 1:
        return "> 99.9 %"
    return f"{100 * fraction:.{3 if abs(fraction) >= 0.1 else 2}g} %".replace("-", MINUS)


def cell(value: float | None) -> str:
    """A number for a table; nothing where nothing was measured.

    Example:
        >>> cell(0.00000123), cell(12.0), cell(None)
        ('1.23e-06', '12', '')
    """
    if value is None:
        return ""
    return number(value) if not math.isfinite(value) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units.

    Example:
        >>> duration(3.21), duration(75), duration(7384)
        ('3.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def without_unseen(text: str) -> str:
    r"""Text with a space in place of what has no shape: control characters, line breaks, changes of direction.

    Example:
        >>> without_unseen("two\nlines")
        'two lines'
    """
    return _UNSEEN.sub(" ", text)


def one_line(text: str) -> str:
    """The same without space around it; a text in brackets if nothing is left.

    Example:
        >>> one_line(" a "), one_line("")
        ('a', '(no name)')
    """
    return without_unseen(text).strip() or "(no name)"


def short(name: str, longest: int = _LONGEST) -> str:
    """A name inside a sentence: one line, its middle left out if it is long, apart from the direction of the text.

    Example:
        >>> short("convs.0"), len(short("x" * 300))
        ('convs.0', 48)
    """
    name = one_line(name)
    if len(name) > longest:
        half = longest // 2
        name = f"{name[: half - 1]}…{name[-half:]}"
    rightward = all(unicodedata.bidirectional(letter) not in ("R", "AL") for letter in name)
    return name if rightward else f"\u2068{name}\u2069"


def names(items: Iterable[str], most: int = 5) -> str:
    """Names in a sentence; of many the ends.

    Example:
        >>> names(["a", "b"]), names("012345678", most=4)
        ('a and b', '0, 1, …, 7, 8')
    """
    items = [short(item) for item in items]
    if len(items) > most:
        half = max(1, most // 2)
        return ", ".join([*items[:half], "…", *items[-half:]])
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
