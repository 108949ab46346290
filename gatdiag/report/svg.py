"""An SVG file -> markup that stands inside a page beside others of its kind.

Its identifiers get a prefix of their own, what would act on the whole page (style sheets, metadata) is left out, and
everything is written anew from the parsed tree, so that text is text whatever it says.
"""

import re
from xml.etree import ElementTree

from markupsafe import Markup

_XLINK = "{http://www.w3.org/1999/xlink}href"
_LEFT_OUT = {"metadata", "style", "script", "foreignObject", "title", "desc"}
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inline_svg(source: bytes, prefix: str, label: str, kind: str) -> Markup:
    """An SVG document as an inline element.

    Args:
        source: The document.
        prefix: What its identifiers begin with; unique on the page.
        label: What it shows, for who cannot see it.
        kind: A class for the page's style sheet.

    Raises:
        ElementTree.ParseError: The document is no well-formed XML.

    Example:
        >>> print(inline_svg(b'<svg width="1"><a id="p"/><b href="#p"/></svg>', "f1-", "A line", "single"))
        <svg class="plot single" role="img" aria-label="A line"><a id="f1-p" /><b href="#f1-p" /></svg>
    """
    root = ElementTree.fromstring(source)
    _prune(root)
    wanted = _referenced(root)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            _local(name): _own(name, value, prefix)
            for name, value in element.attrib.items()
            if not _local(name).startswith("on") and (name != "id" or value in wanted)
        }
        wanted.discard(element.get("id", "").removeprefix(prefix))  # pictures that are alike have the same
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"class": f"plot {kind}", "role": "img", "aria-label": label})
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _referenced(root: ElementTree.Element) -> set[str]:
    """The identifiers that something in the drawing uses."""
    values = [(_local(name), value) for element in root.iter() for name, value in element.attrib.items()]
    uses = {value[1:] for name, value in values if name == "href" and value.startswith("#")}
    return uses | {found for _, value in values for found in _REFERENCE.findall(value)}


def _prune(element: ElementTree.Element) -> None:
    for child in list(element):
        if child.tag.rpartition("}")[2] in _LEFT_OUT:
            element.remove(child)
        else:
            _prune(child)


def _local(name: str) -> str:
    return "href" if name == _XLINK else name.rpartition("}")[2]


def _own(name: str, value: str, prefix: str) -> str:
    """The value with the prefix on every identifier, and path data with no more digits than a screen shows."""
    match _local(name):
        case "id" | "clip-path" as local if not value.startswith("url("):
            return prefix + value if local == "id" else value
        case "href":
            return f"#{prefix}{value[1:]}" if value.startswith("#") else value
        case "d" | "points":
            return _DECIMALS.sub(r"\1", value).strip()
    return _REFERENCE.sub(rf"url(#{prefix}\1)", value)
