import itertools

import matplotlib as mpl
import numpy as np
import pytest
import seaborn as sns
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import cbook
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from gatdiag.figures.style import (
    HEAT,
    MARKERS,
    SIGNED,
    category,
    is_wide,
    layer_labels,
    ordered_colors,
    plain_text,
    readable,
    style_context,
    text_scale,
)
from tests.figures.canvas import luminance
from tests.page.builder import contrast

CATEGORIES = [category(index) for index in range(28)]


def test_no_two_categories_share_color_and_line():
    assert len({(style["color"], style["linestyle"]) for style in CATEGORIES}) == 28
    assert category(28) == category(0)
    assert len(set(MARKERS)) == 8


@pytest.mark.parametrize("count", [2, 8])
def test_few_categories_differ_in_gray(count):
    for one, other in itertools.combinations(CATEGORIES[:count], 2):
        difference = abs(luminance(one["color"]) - luminance(other["color"]))
        assert one["linestyle"] != other["linestyle"] or difference > 0.04


def test_what_is_ordered_grows_lighter():
    for colors in (ordered_colors(10), HEAT(np.linspace(0, 1, 50))):
        brightness = [luminance(color) for color in colors]
        assert brightness == sorted(brightness)
        assert np.diff(brightness).min() > 0.005


def test_ordered_lines_are_seen_on_a_white_and_on_a_black_page():
    for count in (1, 2, 10, 256):
        for color in ordered_colors(count):
            assert contrast(color, "white") > 2
            assert contrast(color, "#14171a") > 3  # the report's dark page


def test_signs_differ_in_hue_and_zero_is_lightest():
    ends, middle = SIGNED([0.0, 1.0]), SIGNED(0.5)
    assert ends[0][2] > ends[0][0]
    assert ends[1][0] > ends[1][2]
    assert luminance(middle) > 0.9 > max(map(luminance, ends))


def test_the_look_ends_with_its_context():
    before = dict(mpl.rcParams)
    with style_context("salt"):
        assert mpl.rcParams["svg.hashsalt"] == "salt"
        assert mpl.rcParams["pdf.fonttype"] == 42
    assert dict(mpl.rcParams) == before
    with pytest.raises(ZeroDivisionError), style_context():
        1 / 0  # noqa: B018
    assert dict(mpl.rcParams) == before


def test_text_of_a_paper_has_seven_points_and_that_of_a_talk_is_as_much_larger_as_in_seaborn():
    sizes = {}
    for context in ("paper", "notebook", "talk"):
        with style_context(context=context):
            sizes[context] = mpl.rcParams["font.size"], mpl.rcParams["axes.labelsize"]
    assert sizes["paper"] == pytest.approx((7, 7))
    expected = sns.plotting_context("talk")["font.size"] / sns.plotting_context("paper")["font.size"]
    assert sizes["talk"][0] / sizes["paper"][0] == pytest.approx(expected) == text_scale("talk")
    assert sizes["paper"] < sizes["notebook"] < sizes["talk"]


@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_what_is_written_on_a_color_can_be_read(color):
    assert contrast(readable(color), color) >= 4.5


def test_width_is_that_of_the_part_that_is_drawn_on():
    whole = Figure(figsize=(6.75, 2))
    left, _ = whole.subfigures(1, 2)
    assert is_wide(whole)
    assert not is_wide(left)


@settings(max_examples=40)
@given(st.text(max_size=400))
def test_any_text_is_short_one_line_and_never_mathtext(text):
    result = plain_text(text, 30)
    assert 0 < len(result.replace(r"\$", "$").strip()) <= 30
    assert len(result.splitlines()) == 1
    assert not cbook.is_math_text(result)
    assert not result.startswith("_")


@pytest.mark.parametrize("text", ["$x$", r"\$", "$$", r"a\$b$", "\U0001f9e0\u4f60\u202e", "a\u0300" * 50, "\ud800"])
def test_hostile_text_is_drawn_without_a_warning(text):
    with style_context():
        figure = Figure()
        figure.text(0, 0, plain_text(text))
        figure.draw_without_rendering()


def test_letters_without_a_font_are_escaped_and_no_boxes():
    with style_context():
        mpl.rcParams["font.family"] = ["DejaVu Sans"]
        assert plain_text("d\u00e9j\u00e0 \u0394 \u5b9e\u9a8c") == "d\u00e9j\u00e0 \u0394 \\u5b9e\\u9a8c"


def test_letters_are_drawn_with_a_font_of_the_machine_that_has_them(tmp_path, monkeypatch):
    made = FontBuilder(100)
    made.setupGlyphOrder([".notdef", "one"])
    made.setupCharacterMap({0x5B9E: "one"})
    empty = TTGlyphPen(None).glyph()
    made.setupGlyf({".notdef": empty, "one": empty})
    made.setupHorizontalMetrics(dict.fromkeys((".notdef", "one"), (100, 0)))
    made.setupHorizontalHeader(ascent=80, descent=-20)
    made.setupNameTable({"familyName": "Unifont", "styleName": "Regular"})
    made.setupOS2()
    made.setupPost()
    made.save(tmp_path / "unifont.ttf")
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])
    fontManager.addfont(tmp_path / "unifont.ttf")
    with style_context():
        assert plain_text("\u5b9e\u9a8c") == "\u5b9e\\u9a8c"
        figure = Figure()
        figure.text(0, 0, plain_text("\u5b9e"))
        figure.draw_without_rendering()  # without a warning


@pytest.mark.parametrize(
    ("names", "labels", "pattern"),
    [
        (["convs.0", "convs.1", "convs.10"], ["0", "1", "10"], "convs.*"),
        (["a.convs.0.gat", "a.convs.1.gat"], ["0", "1"], "a.convs.*.gat"),
        (["encoder", "decoder"], ["encoder", "decoder"], ""),
        (["convs.0", "head"], ["convs.0", "head"], ""),
        (["net.0", "net.0.inner"], ["0", "0.inner"], "net.*"),
        (["only"], ["only"], ""),
        ([], [], ""),
        (["same.x", "same.x"], ["x", "x"], "same.*"),
    ],
)
def test_shared_parts_of_layer_names_are_said_once(names, labels, pattern):
    assert layer_labels(names) == (labels, pattern)
