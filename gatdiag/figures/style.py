"""Sizes, fonts and palettes on top of seaborn's, the context that applies them, and names as matplotlib can draw them.

Colors are those of Okabe and Ito for categories, cividis for heat maps, blue to gold for ordered lines, and blue to
brown through pale yellow for signed values: all safe for color-blind readers. Line styles, markers and hatches differ,
too, so that figures can be read in grayscale.
"""

import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, takewhile
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.typing import ColorType

from gatdiag.errors import InputError
from gatdiag.names import elide_middle
from gatdiag.roles import ATTENTION, FEATURE


class GivenAxes:
    """Axes of the user in place of a figure: `subplots` makes none, but takes these."""

    def __init__(self, axes: Sequence[Axes]) -> None:
        self.axes = list(axes)
        figure: Any = self.axes[0].get_figure()
        self._entries: tuple[list[Any], list[str]] = [], []
        self._handlers: Any = None
        self.bbox, self.dpi, self.text, self.colorbar = figure.bbox, figure.dpi, figure.text, figure.colorbar

    def take(self, count: int) -> list[Axes]:
        """The axes, if these are as many as there are panels."""
        if len(self.axes) != count:
            raise InputError(
                f"ax= expects {count} axes, one for each panel, in reading order, or a figure or subfigure; "
                f"got {len(self.axes)}"
            )
        return self.axes

    def subplots(self, rows: int = 1, columns: int = 1, **_: Any) -> Any:
        """As that of a figure."""
        grid = np.array(self.take(rows * columns), dtype=object).reshape(rows, columns)
        return grid[0, 0] if grid.size == 1 else grid.squeeze()

    def legend(self, handles: Sequence[Any], labels: Sequence[str], *, handler_map: Any = None, **_: Any) -> None:
        """Keep the legend for `finish`: where it has its place is known when all labels are."""
        self._entries, self._handlers = ([*handles], [*labels]), handler_map

    def finish(self) -> None:
        """Add the legend below the labels of the last panel, no wider than that, so that it covers no curve."""
        if not self._entries[0]:
            return
        axes, points = self.axes[-1], 72 / self.dpi  # of a pixel
        size = FontProperties(size="small").get_size_in_points()
        letters = max(int(axes.bbox.width * points / (0.6 * size)) - 5, 12)  # 5: the handle
        labels = axes.xaxis.get_tightbbox()
        below = 0.0 if labels is None else (axes.bbox.y0 - labels.y0) * points / size
        words = ["\n".join(textwrap.wrap(label, letters)) for label in self._entries[1]]
        axes.legend(
            self._entries[0],
            words,
            fontsize="small",
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            borderaxespad=below + 0.3,
            handler_map=self._handlers,
        )


Canvas: TypeAlias = Figure | SubFigure | GivenAxes

SIZES = {"single": 3.3, "double": 6.75}  # inches: one or both columns of a two-column paper
_WIDE = 4.5
_SIZE = 7.0  # points of the text of a paper, in which what is laid out in inches is measured

Context: TypeAlias = Literal["paper", "notebook", "talk"]
SETTINGS: dict[Any, Any] = {  # on top of seaborn's style and context
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same text sizes everywhere
    "mathtext.fontset": "dejavusans",
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), "#000000"),
    "axes.titley": 1.0,  # fixed, so that each layout pass need not search for it
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "agg.path.chunksize": 0,
}
_WIDE_FONTS = (  # with the letters of many languages, for those that DejaVu Sans lacks
    *(f"Noto Sans CJK {region}" for region in ("SC", "JP", "KR", "TC")), "Source Han Sans", "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans", "Arial Unicode MS",
    "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Unifont",
)  # fmt: skip
_LENGTHS = {"axes.labelpad": 2.5, "axes.titlepad": 4.0, "xtick.major.pad": 2.0, "ytick.major.pad": 2.0}  # points
_THIN = ("axes.linewidth", "grid.linewidth", "major.width", "minor.width", "major.size", "minor.size")  # of seaborn's

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")  # Okabe and Ito
_LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
ROLE_STYLES: dict[str, dict[str, str]] = {
    FEATURE: {"color": COLORS[0], "linestyle": "-"},
    ATTENTION: {"color": COLORS[1], "linestyle": "--"},
}

HEAT: Colormap = mpl.colormaps["cividis"].with_extremes(bad="#00000000")
SIGNED: Colormap = LinearSegmentedColormap.from_list(
    "signed", ["#08306b", "#0072B2", "#9ecae1", "#fff3b0", "#fdae6b", "#D55E00", "#6b2500"]
).with_extremes(bad="#00000000")
# dark to light, each with a contrast of at least 2 to both white and black
ORDERED: Colormap = LinearSegmentedColormap.from_list(
    "ordered", ["#3a6fc6", "#2190a4", "#3fa666", "#95ad2f", "#dfa41d"]
)
BROKEN = "#D81B60"  # NaN and infinities; in none of the palettes
UNMEASURED = "#b0b0b0"
OTHERS = "#a0a0a0"  # lines of runs that are not named
MUTED = "#555555"  # notes
PAPER = "#fefefe"  # not #ffffff, which a page in dark mode replaces


def category(index: int) -> dict[str, Any]:
    """Color and line style of the index-th of several unordered lines; the first 28 pairs are distinct.

    A negative index stands for all that are not told apart, which are gray.

    Example:
        >>> category(1)
        {'color': '#D55E00', 'linestyle': '--'}
    """
    if index < 0:
        return {"color": OTHERS, "linestyle": "-", "zorder": 1.9}
    return {"color": COLORS[index % len(COLORS)], "linestyle": _LINE_STYLES[index % len(_LINE_STYLES)]}


def readable(color: ColorType) -> str:
    """Black or white, whichever is easier to read on a color: the contrast is 4.5 or more.

    Example:
        >>> readable("#00224e"), readable("#fee838")
        ('white', 'black')
    """
    parts = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color))
    light = float(np.dot([*parts], [0.2126, 0.7152, 0.0722]))  # relative luminance (WCAG 2)
    return "black" if (light + 0.05) ** 2 > 1.05 * 0.05 else "white"


def ordered_colors(count: int) -> list[tuple[float, float, float, float]]:
    """`count` colors for ordered lines, dark to light."""
    return [ORDERED(place) for place in (np.linspace(0, 1, count).tolist() if count > 1 else [0.0])]


def text_scale(context: Context) -> float:
    """How much larger text, and with it a figure, is than in a paper.

    Example:
        >>> text_scale("paper"), round(text_scale("talk"), 3)
        (1.0, 1.875)
    """
    import seaborn as sns  # here and below: it loads pyplot and SciPy, and only drawing needs it

    return float(sns.plotting_context(context)["font.size"] / sns.plotting_context("paper")["font.size"])


def width_inches(canvas: Canvas) -> float:
    """The width of a figure or subfigure, in inches of a figure whose text is 7 points high, as in a paper."""
    return float(canvas.bbox.width / canvas.dpi * _SIZE / mpl.rcParams["font.size"])


def is_wide(place: Canvas | float) -> bool:
    """Whether a figure, or a width in inches, has room for panels side by side."""
    return (place if isinstance(place, float | int) else width_inches(place)) > _WIDE


@contextmanager
def style_context(salt: str = "gatdiag", context: Context = "paper", *, as_paths: bool = False) -> Iterator[None]:
    """Apply seaborn's style and context, and `SETTINGS`, to matplotlib's defaults; restored on exit.

    Args:
        salt: Seeds the identifiers inside an SVG, so that equal input gives an equal file.
        context: For what text and lines are sized: as in seaborn.
        as_paths: Whether the text of an SVG is drawn as paths, which look the same everywhere, but cannot be selected.
    """
    import seaborn as sns

    with mpl.rc_context():
        mpl.rcdefaults()
        sized = sns.plotting_context(context, font_scale=_SIZE / 9.6)  # points of seaborn's paper
        thin: dict[Any, float] = {key: 0.6 * value for key, value in sized.items() if key.endswith(_THIN)}
        pads: dict[Any, float] = {key: value * text_scale(context) for key, value in _LENGTHS.items()}
        drawn_as: dict[Any, str] = {"svg.hashsalt": salt, "svg.fonttype": "path" if as_paths else "none"}
        mpl.rcParams.update({**sns.axes_style("ticks"), **sized, **thin, **SETTINGS, **pads, **drawn_as})
        mpl.rcParams["font.family"] = ["sans-serif", *_fallbacks()]
        yield


def plain_text(name: object, limit: int = 40) -> str:
    r"""A name that matplotlib draws literally: dollars escaped, one line, only glyphs of the font, middle elided.

    Letters that no font on this machine has are escaped, as in ``ascii``.

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
    is_known = ord(letter) in _glyphs(tuple(mpl.rcParams["font.family"]), tuple(mpl.rcParams["font.sans-serif"]))
    return letter if is_known else letter.encode("ascii", "backslashreplace").decode()


@cache
def _glyphs(families: tuple[str, ...], _sans_serif: tuple[str, ...]) -> frozenset[int]:
    """The characters of the fonts that matplotlib draws with under these settings."""
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    return frozenset(chain.from_iterable(font.get_charmap() for font in fonts))


def _fallbacks() -> tuple[str, ...]:
    """Those of `_WIDE_FONTS` that are on this machine."""
    there = {entry.name for entry in fontManager.ttflist}
    return tuple(name for name in _WIDE_FONTS if name in there)
