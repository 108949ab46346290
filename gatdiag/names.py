"""Names from models, files and arguments, made safe to show in messages, terminals and pages; numbers as text."""

import math
import re
import unicodedata
from collections.abc import Iterable

_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def quote(name: object, longest: int = 80) -> str:
    r"""A name for an error message: quoted, ASCII, on one line, truncated to `longest` characters.

    Example:
        >>> print(quote("a\x1b[31m\nb"), quote("x" * 50, 4))
        'a\x1b[31m\nb' 'xxx\u2026'
    """
    text = str(name)
    return ascii(text if len(text) <= longest else f"{text[: longest - 1]}…")


def printable(text: str) -> str:
    r"""The text with control and other unprintable characters escaped, for a terminal.

    Example:
        >>> print(printable("conv" + chr(27) + "[31m1"))
        conv\x1b[31m1
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escape_surrogates(text: str) -> str:
    r"""The text with lone surrogates escaped, which no file can hold as Unicode.

    Example:
        >>> print(escape_surrogates("lin\udc80.weight"))
        lin\udc80.weight
    """
    return text.encode(errors="backslashreplace").decode()


def replace_invisible(text: str) -> str:
    r"""The text with control characters, line breaks and direction marks replaced by spaces.

    Example:
        >>> replace_invisible("two\nlines")
        'two lines'
    """
    return _INVISIBLE.sub(" ", text)


def is_mask(name: str) -> bool:
    """Whether an input is a mask by its name.

    Example:
        >>> is_mask("src_key_padding_mask"), is_mask("masked_x")
        (True, False)
    """
    return name.lower().endswith("mask")


def one_line(text: str) -> str:
    """The text without invisible characters and surrounding space; "(no name)" if nothing is left.

    Example:
        >>> one_line(" a "), one_line("")
        ('a', '(no name)')
    """
    return replace_invisible(text).strip() or "(no name)"


def elide_middle(name: str, longest: int) -> str:
    """The name with its middle replaced by an ellipsis if it is too long: the ends tell layers apart.

    Example:
        >>> elide_middle("layers.17.attention.weight", 15), elide_middle("layers.17", 15)
        ('layers.….weight', 'layers.17')
    """
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[len(name) - tail :]}"


def short(name: str, longest: int = 48) -> str:
    """A name for use in a sentence: one line, shortened, right-to-left text isolated from what surrounds it.

    Example:
        >>> short("convs.0"), len(short("x" * 300))
        ('convs.0', 48)
    """
    name = elide_middle(one_line(name), longest)
    has_rtl = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in name)
    return f"\u2068{name}\u2069" if has_rtl else name


def join_names(names: Iterable[str], most: int = 5) -> str:
    """Names joined by commas and "and"; beyond `most`, the first ones and the number of the rest.

    Example:
        >>> join_names("ab"), join_names("abc"), join_names("abcde", most=2)
        ('a and b', 'a, b and c', 'a, b and 3 more')
    """
    names = list(names)
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def is_of_relation(layer: str) -> bool:
    """Whether `HeteroConv` or `to_hetero` named a layer after a relation of the graph.

    Example:
        >>> is_of_relation("conv.convs.<paper___cites___paper>"), is_of_relation("conv.convs.0")
        (True, False)
    """
    return "__" in layer.rpartition(".")[2]


def ten_to(power: int) -> str:
    """A power of ten in plain characters.

    Example:
        >>> ten_to(-12)
        '10⁻¹²'
    """
    return f"10{str(power).translate(_SUPERSCRIPT)}"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a sentence or a table; integers in full.

    Example:
        >>> number(0.81), number(54321.0), number(1234567), number(float("nan")), number(None)
        ('0.81', '54,321', '1,234,567', 'NaN', 'not measured')
        >>> [plain(number(value)) for value in (0.00000123, -1e-5)] == [f"1.23 {TIMES} 10⁻⁶", f"{MINUS}1 {TIMES} 10⁻⁵"]
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
        return "\N{NO-BREAK SPACE}".join([f"{float(mantissa):g}".replace("-", MINUS), TIMES, ten_to(int(exponent))])
    return f"{value:.{digits}g}".replace("-", MINUS) if abs(value) < 1000 else f"{value:,.0f}".replace("-", MINUS)


def plain(text: str) -> str:
    """Replace no-break spaces, which some terminals do not show as spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")
