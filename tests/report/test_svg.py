from io import BytesIO
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from gatdiag.report.svg import inline_svg

HOSTILE = ["<script>alert(1)</script>", "\"'onload='x'", "]]>", "&amp;<b>", "\u202eright to left"]


def drawn(*texts):
    figure = Figure()
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.plot([1.23456789, 2.0], [3.0, 4.0], marker="o", clip_on=True)
    axes.imshow([[0, 1]])
    for text in texts:
        axes.text(1, 3, text)
    content = BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(content, format="svg")
    return content.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text):
    root = ElementTree.fromstring(str(inline_svg(drawn(text), "f-", text, "single")))
    assert text in [element.text for element in root.iter("text")]
    assert root.get("aria-label") == text
    assert not [*root.iter("script"), *root.iter("b")]


def test_identifiers_are_its_own_and_all_references_lead_somewhere():
    root = ElementTree.fromstring(str(inline_svg(drawn(), "f7-", "", "single")))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert len({*ids}) == len(ids)
    assert all(name.startswith("f7-") for name in ids)
    references = [e.get("href") for e in root.iter() if (e.get("href") or "").startswith("#")]
    references += [e.get("clip-path")[4:-1] for e in root.iter() if e.get("clip-path")]
    assert references
    assert {name.removeprefix("#") for name in references} <= {*ids}


def test_pictures_that_are_alike_do_not_share_an_identifier():
    source = b'<svg><image id="a"/><image id="a"/><use href="#a"/><g id="b"/></svg>'
    assert str(inline_svg(source, "f-", "", "single")).count("id=") == 1


def test_nothing_in_it_acts_on_the_page_or_loads_anything():
    root = ElementTree.fromstring(str(inline_svg(drawn(), "f-", "", "single")))
    assert not [e.tag for e in root.iter() if e.tag.lower() in ("style", "metadata", "script", "foreignobject")]
    assert all(value.startswith(("#", "data:image/png")) for e in root.iter() if (value := e.get("href")))
    assert root.get("width") is None
    assert root.get("viewBox")


def test_what_is_not_ours_to_keep_is_left_out():
    source = b'<svg><style>*{x}</style><g><script>x</script><title>t</title><a onclick="b"/></g></svg>'
    text = str(inline_svg(source, "f-", "", "single"))
    assert "script" not in text
    assert "onclick" not in text
    assert "title" not in text


def test_path_data_is_rounded_and_scales_are_not():
    source = b'<svg><g transform="scale(0.015625)"><path d="M 1.23456 7 L 0.001 2.5"/></g></svg>'
    text = str(inline_svg(source, "f-", "", "single"))
    assert 'd="M 1.23 7 L 0.00 2.5"' in text
    assert "scale(0.015625)" in text


def test_a_broken_document_is_refused():
    with pytest.raises(ElementTree.ParseError):
        inline_svg(b"<svg><text>\x00</text></svg>", "f-", "", "single")
