"""Names that come from the user's model, runs and logs, made safe to draw: no mathtext, one line, short."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

_UNKNOWN = "\ufffd"


def plain(name: object, limit: int = 40) -> str:
    r"""A name as matplotlib shows it literally: dollars escaped, one line, only glyphs of the font, shortened amid.

    Example:
        >>> print(plain("cost in $"), plain("a\nb"), plain("x" * 50, 9))
        cost in \$ a b xxxx…xxxx
    """
    text = "".join(_drawable(letter) for letter in str(name))
    text = " ".join(text.split()) or "(no name)"
    if len(text) > limit:
        head = limit // 2
        text = f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # a legend leaves out what begins with an underscore


def layer_labels(names: Sequence[str], limit: int = 18) -> tuple[list[str], str]:
    """Short names of layers: without the dotted parts that all share, and the pattern they were taken from.

    Returns:
        The labels, one a layer, and for example "convs.*"; "" if nothing is shared.

    Example:
        >>> layer_labels(["encoder.convs.0.gat", "encoder.convs.1.gat"])
        (['0', '1'], 'encoder.convs.*.gat')
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return [plain(name, limit) for name in names], ""
    shortest = min(map(len, parts))
    head = _shared(parts, shortest - 1)
    tail = _shared([part[::-1] for part in parts], shortest - 1 - head)
    labels = [plain(".".join(part[head : len(part) - tail]), limit) for part in parts]
    if not head and not tail:
        return labels, ""
    return labels, plain(".".join([*parts[0][:head], "*", *parts[0][len(parts[0]) - tail :]]), 30)


def _shared(parts: Sequence[Sequence[str]], limit: int) -> int:
    count = 0
    while count < limit and len({part[count] for part in parts}) == 1:
        count += 1
    return count


def _drawable(letter: str) -> str:
    kind = unicodedata.category(letter)
    if kind in ("Cc", "Zl", "Zp", "Zs"):
        return " "
    if kind in ("Cf", "Cs", "Mn", "Me"):  # directions, joiners, surrogates, stacks of accents
        return ""
    return letter if ord(letter) in _glyphs() else _UNKNOWN


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
