import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import cbook
from matplotlib.figure import Figure

from gatdiag.figures.look import layer_labels, look, plain


@given(st.text(max_size=400))
def test_any_text_is_short_one_line_and_never_mathtext(text):
    result = plain(text, 30)
    assert 0 < len(result.replace(r"\$", "$").strip()) <= 30
    assert len(result.splitlines()) == 1
    assert not cbook.is_math_text(result)
    assert not result.startswith("_")


@pytest.mark.parametrize("text", ["$x$", r"\$", "$$", r"a\$b$", "\U0001f9e0\u4f60\u202e", "a\u0300" * 50, "\ud800"])
def test_hostile_text_is_drawn_without_a_warning(text):
    with look():
        figure = Figure()
        figure.text(0, 0, plain(text))
        figure.draw_without_rendering()


def test_shortening_keeps_both_ends():
    assert plain("layers.17.attention.weight", 15) == "layers.….weight"


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
