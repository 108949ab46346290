"""Sizes, fonts and palettes, the context that applies them and nothing else; how names and quantities are written.

Colors are those of Okabe and Ito for categories, cividis for heat maps, viridis for lines in an order, and blue to
orange through white for what has a sign: all safe for color-blind readers. Line styles, markers and hatches differ too,
so that a print in gray can be read.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font

from gatdiag.names import shortened
from gatdiag.quantities import quantity

Canvas: TypeAlias = Figure | SubFigure

SINGLE = 3.25  # inches: one column of a two-column paper
DOUBLE = 6.75
SIZES = {"single": SINGLE, "double": DOUBLE}

FONTS = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same measure everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.title_fontsize": 6.5,
}
LINES = {
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "axes.labelpad": 2.5,
    "axes.titlepad": 4.0,
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.borderaxespad": 0.3,
    "legend.labelspacing": 0.3,
    "legend.columnspacing": 1.2,
}
FILES = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "agg.path.chunksize": 0,
}

OKABE_ITO = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "black": "#000000",
    "sky": "#56B4E9",
    "orange": "#E69F00",
}
_LINE_STYLES = ("-", "--", "-.", ":")
DASHES = {"-": "", "--": (3.7, 1.6), "-.": (6.4, 1.6, 1, 1.6), ":": (1, 1.65)}  # as seaborn takes them
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")  # one more than colors: no pair comes back soon
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo")

FEATURE_STYLE: dict[str, Any] = {"color": OKABE_ITO["blue"], "linestyle": "-", "marker": "o", "hatch": ""}
ATTENTION_STYLE: dict[str, Any] = {"color": OKABE_ITO["orange"], "linestyle": "--", "marker": "^", "hatch": "////"}
# 7 colors and 4 line styles: the same pair comes back only after 28 categories
CATEGORIES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "linestyle": line, "marker": marker, "hatch": hatch}
    for color, line, marker, hatch in islice(
        zip(cycle(OKABE_ITO.values()), cycle(_LINE_STYLES), cycle(_MARKERS), cycle(_HATCHES), strict=False), 28
    )
)

_CIVIDIS = mpl.colormaps["cividis"]
HEAT: Colormap = _CIVIDIS.with_extremes(bad="#00000000")
# of lines: the part of viridis that can be seen on a white and on a black page
ORDERED: Colormap = LinearSegmentedColormap.from_list(
    "ordered", mpl.colormaps["viridis"]([0.22 + i / 255 * 0.6 for i in range(256)])
)
SIGNED: Colormap = LinearSegmentedColormap.from_list(
    "signed", ["#08306b", "#0072B2", "#9ecae1", "#f7f7f7", "#fdbe85", "#D55E00", "#6b2500"]
).with_extremes(bad="#00000000")
BROKEN = "#D81B60"  # NaN and infinities: in none of the palettes
UNMEASURED = "#dcdcdc"
ZERO = "#fefefe"  # not the white of the page, which a dark page changes


def category(index: int) -> dict[str, Any]:
    """Color, line style, marker and hatch of the index-th of several things without an order.

    Example:
        >>> category(0)["color"], category(1)["linestyle"]
        ('#0072B2', '--')
    """
    return CATEGORIES[index % len(CATEGORIES)]


def inches(figure: Canvas) -> float:
    """The width of a figure, or of a part of one."""
    return float(figure.bbox.width / figure.dpi)


def is_wide(figure: Canvas) -> bool:
    """Whether there is room for panels beside each other."""
    return inches(figure) > 4.5


@contextmanager
def look(salt: str = "gatdiag") -> Iterator[None]:
    """Matplotlib's own defaults and this look on top of them; whatever was set before comes back afterwards.

    Args:
        salt: What the identifiers inside an SVG are derived from: equal input, equal file.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        settings: dict[Any, Any] = {**FONTS, **LINES, **FILES, "svg.hashsalt": salt}
        mpl.rcParams.update(settings)
        yield


SMOOTHING = {  # column of the layers' table -> label; outputs, then gradients
    column: quantity("layers", column).symbol
    for column in ("mu", "relative_mu", "output_norm", "gradient_mu", "relative_gradient_mu", "output_gradient_norm")
}
ZERO_NORM = {"relative_mu": "output is zero", "relative_gradient_mu": "gradient is zero"}  # why they are undefined


_UNKNOWN = "\ufffd"


def plain(name: object, limit: int = 40) -> str:
    r"""A name as matplotlib shows it literally: dollars escaped, one line, only glyphs of the font, shortened amid.

    Example:
        >>> print(plain("cost in $"), plain("a\nb"), plain("x" * 50, 9))
        cost in \$ a b xxxx…xxxx
    """
    text = "".join(_drawable(letter) for letter in str(name))
    text = " ".join(text.split()) or "(no name)"
    text = shortened(text, limit).replace("$", r"\$")
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
