import html
import io
import re
from dataclasses import replace
from urllib.parse import unquote
from xml.etree import ElementTree

import pandas as pd
import pytest

import gatdiag
from gatdiag.figures import figures_for
from gatdiag.figures.rendering import Picture
from gatdiag.page import plots
from gatdiag.page.plots import figure_block
from tests.page.builder import build, contrast
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return gatdiag.load(synthetic_run(tmp_path_factory.mktemp("runs") / "run", steps=30, layers=3, neurons=2))


@pytest.fixture(scope="module")
def figure(run):
    return next(one for one in figures_for([run]) if one.name == "unchanged_fraction")


def picture(address):
    kind, _, content = address.partition(",")
    assert kind == "data:image/svg+xml"
    return ElementTree.fromstring(unquote(content))


def test_a_block_carries_the_facts_of_its_figure(run, figure):
    made = figure_block(figure, [run], "here")
    assert made.figure is figure
    assert made.anchor == "here-figure-unchanged_fraction"
    image = ElementTree.fromstring(str(made.drawing).replace(">", "/>"))
    assert (image.tag, image.get("class"), image.get("alt")) == ("img", "plot single", figure.title)
    assert picture(image.get("src")).get("viewBox")


def test_no_line_and_no_letter_disappears_in_the_dark(page):
    """Colors of heat maps are read against their color bar and may be as dark as the page."""
    images = re.findall(r'<img class="plot single" alt="([^"]+)" src="data:image/svg\+xml,([^"]+)"', page)
    assert len(images) > 5
    for title, content in images:
        svg = unquote(html.unescape(content))
        ElementTree.fromstring(svg)
        assert svg.count("@media (prefers-color-scheme:dark)") == 1
        grounds = {"#e6e6e6", "#ffffff"}
        for color in {*re.findall(r"(?:fill|stroke): (#\w{6})", svg)} - grounds:
            shown = plots._DARK.get(color, color)
            assert contrast(shown, "#14171a") >= 1.8, (title, color)


def test_the_data_behind_it_are_those_of_the_figure(run, figure):
    made = figure_block(figure, [run], "here")
    content = unquote(made.download.partition(",")[2])
    wanted = gatdiag.figures.table(figure, [run]).reset_index(drop=True)
    read = pd.read_csv(io.StringIO(content))
    assert list(read.columns) == list(wanted.columns)
    pd.testing.assert_frame_equal(read, wanted, check_dtype=False, check_categorical=False, rtol=1e-5)


def test_large_data_are_not_in_the_page(run, figure, monkeypatch):
    monkeypatch.setattr(plots, "LARGE_DATA", 10)
    made = figure_block(figure, [run], "here")
    assert made.download == ""


def test_a_large_drawing_becomes_a_picture_if_that_is_smaller(run, figure, monkeypatch):
    monkeypatch.setattr(plots, "LARGE_SVG", 0)
    contents = {"svg": b"<svg>" + b" " * 9000 + b"</svg>", "png": b"png"}
    monkeypatch.setattr(plots, "picture", lambda *_, format="svg", **__: Picture(contents[format], []))
    made = figure_block(replace(figure, title='"quoted"'), [run], "here")
    assert made.drawing.startswith('<img class="plot single" alt="&#34;quoted&#34;" src="data:image/png;base64,')


def test_narrow_screens_get_a_picture_of_their_own(run, figure):
    made = figure_block(figure, [run], "here", ("double", "single"))
    narrow, wide = ElementTree.fromstring(re.sub(r"(<(?:img|source)[^>]*)>", r"\1/>", str(made.drawing)))
    assert (narrow.get("media"), wide.get("class")) == ("screen and (max-width: 48rem)", "plot double")
    widths = [float(picture(address).get("viewBox").split()[2]) for address in (narrow.get("srcset"), wide.get("src"))]
    assert widths[0] < widths[1]


def test_of_what_was_not_recorded_there_is_no_block(tmp_path, figure):
    assert figure_block(figure, [build(tmp_path / "run", logged={"loss": [1.0]})], "here") is None


def test_a_figure_that_fails_says_so_in_its_place(run, figure, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("<b>")

    monkeypatch.setattr(plots, "picture", fail)
    with pytest.warns(UserWarning, match="^gatdiag: .*unchanged_fraction"):
        made = figure_block(figure, [run], "here")
    assert made.drawing == "<p>This figure could not be drawn: ZeroDivisionError(&#39;&lt;b&gt;&#39;)</p>"
