"""Figures on a page: the image, its caption and its data.

The image is an SVG in an `<img>`, which isolates it from the page, or a PNG where that is smaller. In dark mode, a
style sheet in the SVG replaces its neutral colors; heat maps keep theirs, since captions refer to dark and pale colors.
"""

import base64
import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup

from gatdiag.figures import Figure, table
from gatdiag.figures.heat import PlacedMap
from gatdiag.figures.rendering import Width, picture
from gatdiag.figures.style import category
from gatdiag.names import one_line
from gatdiag.page.chart import cells_data
from gatdiag.run import Run

LARGE_SVG = 300_000  # bytes above which a PNG is tried
LARGE_DATA = 24_000  # bytes of CSV above which the page names the call that returns the data
_DPI = 200
_DARK = {  # color of `gatdiag.figures` that is hard to see on a dark page -> its replacement
    "#0072b2": "#4aa3dc",
    "#000000": "#e8eaed",
    "#ffffff": "#14171a",
    "#e6e6e6": "#333b44",
    "#555555": "#aab3bd",
}
_RULES = "".join(
    f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
    for light, dark in _DARK.items()
    for kind in ("fill", "stroke")
)
_STYLE = f"@media (prefers-color-scheme:dark){{svg{{fill:{_DARK['#000000']}}}{_RULES}}}".encode()
_SAFE = " /:;=(),.-+*@!?'|[]{}~^`\n"  # in a URL that is written into an attribute
_PLACES = re.compile(rb" (?:d|x|y|transform)='[^']*'")
_DECIMALS = re.compile(rb"(\.\d)\d+")
_UNSEEN = re.compile(
    rb"<\?xml.*?(?=<svg)|<metadata>.*?</metadata>|(?<=>)\s+(?=<)| transform='rotate\(-0 [^']*'| id='[A-Za-z2.]+_\d+'",
    re.DOTALL,
)
_ALIKE = re.compile(rb"<use [^>]*?( style='[^']*')/>(?:<use [^>]*?\1/>)+")  # marks of one style
_NAME = re.compile(rb"(?<=[#\"'])[a-z]+[0-9a-f]{10}(?=[)\"'])")  # of a mark, a clip path or a hatch, by its contents
_FAMILY = re.compile(rb"font-family: ([^;']+);? ?")
_FONT, _TAG = re.compile(rb"'([\w ]+)'"), re.compile(rb"<[^>]*>")


_DASHES = {  # line style -> lengths of dashes and gaps, in widths of the line
    "--": mpl.rcParamsDefault["lines.dashed_pattern"],
    "-.": mpl.rcParamsDefault["lines.dashdot_pattern"],
    ":": mpl.rcParamsDefault["lines.dotted_pattern"],
}
_THICK = 2.5  # pixels of a sample of a line


class FigureBlock(NamedTuple):
    """One figure on the page.

    Attributes:
        figure: The figure.
        anchor: HTML id.
        drawing: The image, with another one for narrow screens if two widths were rendered.
        download: Its data as a data URL; "" if too large.
        cells: What its heat maps show where, as from `cells_data`.
    """

    figure: Figure
    anchor: str
    drawing: Markup
    download: str
    cells: str = ""


def line_sample(index: int) -> Markup:
    """A short line that looks like that of the index-th run in figures.

    Example:
        >>> print(line_sample(2))  # doctest: +ELLIPSIS
        <svg class="line" ... stroke="#009e73" stroke-dasharray="16 4 2.5 4" style=.../></svg>
    """
    line = category(index)
    color = line["color"].lower()
    dashes = " ".join(f"{_THICK * length:.3g}" for length in _DASHES.get(line["linestyle"], ())) or "none"
    return Markup(
        '<svg class="line" viewBox="0 0 36 6" aria-hidden="true"><path d="M0 3h36" stroke-width="{}" stroke="{}" '
        'stroke-dasharray="{}" style="stroke: light-dark({}, {})"/></svg>'
    ).format(_THICK, color, dashes, color, _DARK.get(color, color))


def figure_block(
    figure: Figure, runs: Sequence[Run], section: str, widths: Sequence[Width] = ("single",), **options: Any
) -> FigureBlock | None:
    """Render a figure of one or several runs; with two widths, the second is for narrow screens.

    Returns None if none of its columns was recorded. If rendering fails, the block contains the error, with a warning.
    """
    try:
        data = table(figure, runs, **options)
        if not len(data):
            return None
        sources, maps = zip(*(_data_url(figure, runs, width, data) for width in widths), strict=True)
        drawing, download = _drawing(figure.title, [*zip(widths, sources, strict=True)]), _download(data)
        cells = cells_data(maps)
        described = figure.described(data)
    except Exception as error:  # one failure must not lose the other figures
        warnings.warn(f"gatdiag: the figure {figure.name!r} could not be drawn: {error!r}", stacklevel=2)
        drawing, download = Markup("<p>This figure could not be drawn: {}</p>").format(one_line(repr(error))), ""
        described, cells = figure, ""
    return FigureBlock(described, f"{section}-figure-{figure.name}", drawing, download, cells)


def _drawing(title: str, pictures: Sequence[tuple[Width, Markup]]) -> Markup:
    (width, source), *narrow = pictures
    image = Markup('<img class="plot {}" alt="{}" src="{}">').format(width, title, source)
    if not narrow:
        return image
    source = narrow[0][1].replace(" ", "%20").replace("\n", "%0A")  # spaces end a URL in srcset
    return Markup('<picture><source media="screen and (max-width: 48rem)" srcset="{}">{}</picture>').format(
        source, image
    )


def _data_url(
    figure: Figure, runs: Sequence[Run], width: Width, data: pd.DataFrame
) -> tuple[Markup, Sequence[PlacedMap]]:
    """The image as a data URL, without characters that end an attribute; its heat maps."""
    drawn = picture(figure, runs, data, width=width)
    vector = _styled(drawn.content)
    if len(vector) >= LARGE_SVG:
        pixels = picture(figure, runs, data, format="png", width=width, dpi=_DPI)
        if len(pixels.content) < len(vector):
            return Markup(f"data:image/png;base64,{base64.b64encode(pixels.content).decode()}"), pixels.maps
    return Markup(f"data:image/svg+xml,{quote(vector, safe=_SAFE)}"), drawn.maps  # a third smaller than in base64


def _styled(svg: bytes) -> bytes:
    """The SVG with the style sheet for dark mode, without what nobody sees: a third smaller in a URL."""
    names = {name: b"%d" % place for place, name in enumerate(dict.fromkeys(_NAME.findall(svg)))}

    def tidied(tag: re.Match[bytes]) -> bytes:
        text = _FONT.sub(rb"\1", tag[0]).replace(b'"', b"'")  # a URL may hold ' but not "
        return _NAME.sub(lambda name: name[0][:1] + names[name[0]], text)

    quoted = _TAG.sub(tidied, svg)
    rounded = _PLACES.sub(lambda data: _DECIMALS.sub(rb"\1", data[0]), _UNSEEN.sub(b"", quoted))
    rounded = _ALIKE.sub(lambda marks: b"<g%b>%b</g>" % (marks[1], marks[0].replace(marks[1], b"")), rounded)
    families = {*_FAMILY.findall(rounded)}
    style = _STYLE
    if len(families) == 1:
        rounded = _TAG.sub(lambda tag: _FAMILY.sub(b"", tag[0]), rounded)
        style += b"svg{font-family:%b}" % families.pop()
    return rounded.replace(b"<defs>", b"<style>%b</style><defs>" % style, 1)


def _download(data: pd.DataFrame) -> str:
    if data.size > LARGE_DATA:  # a cell takes at least one byte
        return ""
    text = data.to_csv(index=False, float_format="%.6g")
    content = quote(text, safe=_SAFE.replace("\n", ""), errors="replace")  # a URL loses line breaks
    return f"data:text/csv;charset=utf-8,{content}" if len(text) <= LARGE_DATA else ""
