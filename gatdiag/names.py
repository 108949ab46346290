"""Names that come from outside (models, files, arguments), as messages, terminals and pages show them."""

import re
import unicodedata
from collections.abc import Iterable

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def quoted(name: object, longest: int = 80) -> str:
    r"""A name for an error: in quotes, in ASCII, on one line, cut off if it is long.

    Example:
        >>> print(quoted("a\x1b[31m\nb"), quoted("x" * 50, 4))
        'a\x1b[31m\nb' 'xxx\u2026'
    """
    text = str(name)
    return ascii(text if len(text) <= longest else f"{text[: longest - 1]}…")


def printable(text: str) -> str:
    r"""Text for a terminal: what it would obey instead of showing it is escaped.

    Example:
        >>> print(printable("conv" + chr(27) + "[31m1"))
        conv\x1b[31m1
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


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


def shortened(name: str, longest: int) -> str:
    """A name without its middle if it is long: the ends tell layers apart.

    Example:
        >>> shortened("layers.17.attention.weight", 15), shortened("layers.17", 15)
        ('layers.….weight', 'layers.17')
    """
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[len(name) - tail :]}"


def short(name: str, longest: int = 48) -> str:
    """A name inside a sentence: on one line, shortened, and unable to turn the direction of the text around it.

    Example:
        >>> short("convs.0"), len(short("x" * 300))
        ('convs.0', 48)
    """
    name = shortened(one_line(name), longest)
    rightward = all(unicodedata.bidirectional(letter) not in ("R", "AL") for letter in name)
    return name if rightward else f"\u2068{name}\u2069"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a sentence; of many the first, and how many more there are.

    Example:
        >>> listed("ab"), listed("abc"), listed("abcde", most=2)
        ('a and b', 'a, b and c', 'a, b and 3 more')
    """
    names = list(names)
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
