"""Sizes, fonts and palettes, the context that applies them, and names as matplotlib can draw them.

Colors are those of Okabe and Ito for categories, cividis for heat maps, blue to gold for ordered lines, and blue to
orange through white for signed values: all safe for color-blind readers. Line styles, markers and hatches differ, too,
so that figures can be read in grayscale.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font

from gatdiag.names import elide_middle
from gatdiag.roles import ATTENTION, FEATURE

Canvas: TypeAlias = Figure | SubFigure

SIZES = {"single": 3.25, "double": 6.75}  # inches: one or both columns of a two-column paper
_WIDE = 4.5

SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same text sizes everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "axes.labelpad": 2.5,
    "axes.titlepad": 4.0,
    "axes.titley": 1.0,  # fixed, so that each layout pass need not search for it
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.borderaxespad": 0.3,
    "legend.labelspacing": 0.3,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "agg.path.chunksize": 0,
    **{
        f"{axis}tick.{key}": value
        for axis in "xy"
        for key, value in (
            ("labelsize", 6.5),
            ("major.width", 0.6),
            ("minor.width", 0.4),
            ("major.size", 2.5),
            ("minor.size", 1.5),
            ("major.pad", 2.0),
        )
    },
}

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")  # Okabe and Ito
_LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
ROLE_STYLES: dict[str, dict[str, str]] = {
    FEATURE: {"color": COLORS[0], "linestyle": "-"},
    ATTENTION: {"color": COLORS[6], "linestyle": "--"},
}
PREDICTED = COLORS[1]

HEAT: Colormap = mpl.colormaps["cividis"].with_extremes(bad="#00000000")
SIGNED: Colormap = LinearSegmentedColormap.from_list(
    "signed", ["#08306b", "#0072B2", "#9ecae1", "#f7f7f7", "#fdbe85", "#D55E00", "#6b2500"]
).with_extremes(bad="#00000000")
# dark to light, each with a contrast of at least 2 to both white and black
ORDERED: Colormap = LinearSegmentedColormap.from_list(
    "ordered", ["#3a6fc6", "#2190a4", "#3fa666", "#95ad2f", "#dfa41d"]
)
BROKEN = "#D81B60"  # NaN and infinities; in none of the palettes
UNMEASURED = "#b0b0b0"
ZERO = "#fefefe"  # not #ffffff, which a page in dark mode replaces


def category(index: int) -> dict[str, Any]:
    """Color and line style of the index-th of several unordered lines; the first 28 pairs are distinct.

    Example:
        >>> category(1)
        {'color': '#D55E00', 'linestyle': '--'}
    """
    return {"color": COLORS[index % len(COLORS)], "linestyle": _LINE_STYLES[index % len(_LINE_STYLES)]}


def ordered_colors(count: int) -> list[tuple[float, float, float, float]]:
    """`count` colors for ordered lines, dark to light."""
    return [ORDERED(place) for place in (np.linspace(0, 1, count).tolist() if count > 1 else [0.0])]


def width_inches(canvas: Canvas) -> float:
    """The width of a figure or subfigure."""
    return float(canvas.bbox.width / canvas.dpi)


def is_wide(place: Canvas | float) -> bool:
    """Whether a figure, or a width in inches, has room for panels side by side."""
    return (place if isinstance(place, float | int) else width_inches(place)) > _WIDE


@contextmanager
def style_context(salt: str = "gatdiag") -> Iterator[None]:
    """Apply `SETTINGS` on top of matplotlib's defaults; the previous settings are restored on exit.

    Args:
        salt: Seeds the identifiers inside an SVG, so that equal input gives an equal file.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**SETTINGS, "svg.hashsalt": salt})
        yield


def plain_text(name: object, limit: int = 40) -> str:
    r"""A name that matplotlib draws literally: dollars escaped, one line, only glyphs of the font, middle elided.

    Example:
        >>> print(plain_text("cost in $"), plain_text("a\nb"), plain_text("x" * 50, 9))
        cost in \$ a b xxxx…xxxx
    """
    text = "".join(_to_glyph(letter) for letter in str(name))
    text = " ".join(text.split()) or "(no name)"
    text = elide_middle(text, limit).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # a legend omits labels that begin with an underscore


def layer_labels(names: Sequence[str], limit: int = 18) -> tuple[list[str], str]:
    """Short layer names without the dotted parts that all share, and the shared pattern.

    Returns:
        One label per layer, and the pattern, for example "convs.*"; "" if nothing is shared.

    Example:
        >>> layer_labels(["encoder.convs.0.gat", "encoder.convs.1.gat"])
        (['0', '1'], 'encoder.convs.*.gat')
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return [plain_text(name, limit) for name in names], ""
    head = _common_length([part[:-1] for part in parts])  # one part of each name is kept
    tail = _common_length([part[:head:-1] for part in parts])
    labels = [plain_text(".".join(part[head : len(part) - tail]), limit) for part in parts]
    if not head and not tail:
        return labels, ""
    return labels, plain_text(".".join([*parts[0][:head], "*", *parts[0][len(parts[0]) - tail :]]), 30)


def _common_length(parts: Sequence[Sequence[str]]) -> int:
    """How many leading parts are the same in all names."""
    return len([*takewhile(lambda at: len(set(at)) == 1, zip(*parts, strict=False))])


def _to_glyph(letter: str) -> str:
    kind = unicodedata.category(letter)
    if kind in ("Cc", "Zl", "Zp", "Zs"):
        return " "
    if kind in ("Cf", "Cs", "Mn", "Me"):  # directions, joiners, surrogates, stacks of accents
        return ""
    return letter if ord(letter) in _glyphs() else "\N{REPLACEMENT CHARACTER}"


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
