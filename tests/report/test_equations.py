import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.path import Path

from gatdiag.figures import FIGURES
from gatdiag.metrics.catalogue import QUANTITIES
from gatdiag.report.equations import _data, equation, spoken

KNOWN = sorted({*(q.equation for q in QUANTITIES), *(f.equation for f in FIGURES)} - {""})


@pytest.mark.parametrize("latex", KNOWN)
def test_every_equation_of_the_package_is_drawn_and_can_be_read_aloud(latex):
    drawings = ElementTree.fromstring(f"<p>{equation(latex)}</p>")
    assert len(drawings) == 1 + latex.count("quad")
    assert {(drawing.tag, drawing.get("role")) for drawing in drawings} == {("svg", "img")}
    labels = "".join(drawing.get("aria-label") for drawing in drawings)
    assert re.sub("[ ,]", "", labels) == re.sub("[ ,]", "", spoken(latex))
    assert not re.search(r"[\\{}$]", spoken(latex))


@pytest.mark.parametrize("latex", KNOWN[::4])
def test_the_drawing_fills_its_box_and_no_more(latex):
    drawing = ElementTree.fromstring(f"<p>{equation(latex)}</p>")[0]
    left, top, width, height = map(float, drawing.get("viewBox").split())
    numbers = np.array([float(n) for n in re.findall(r"-?[\d.]+", drawing[0].get("d"))]).reshape(-1, 2)
    assert left <= numbers[:, 0].min() <= left + 1
    assert top <= numbers[:, 1].min() <= top + 1.5
    assert left + width - 1.5 <= numbers[:, 0].max() <= left + width
    assert top + height - 1.5 <= numbers[:, 1].max() <= top + height


def test_path_data_has_the_points_upside_down():
    codes = [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.CURVE4, Path.CURVE4, Path.CURVE4, Path.CLOSEPOLY]
    path = Path([(0, 0), (1, 2), (3, 4), (5, 6), (1, 1), (2, 2), (3, 3), (0, 0)], codes)
    assert _data(path) == "M0.0 -0.0L1.0 -2.0Q3.0 -4.0 5.0 -6.0C1.0 -1.0 2.0 -2.0 3.0 -3.0Z"


@pytest.mark.parametrize(
    "latex",
    [r"\nosuchcommand{x}", r"\frac{a", "a$b", "x" * 5000, "a\nb\x00", '<script>"', "{" * 40, "\u05d0\u202e"],
    ids=["unknown", "open", "dollar", "long", "lines", "markup", "braces", "rightward"],
)
def test_what_is_no_equation_is_shown_as_written_and_escaped(latex):
    text = str(equation(latex))
    assert "<script" not in text
    assert text.startswith(("<code", "<svg"))
    ElementTree.fromstring(f"<p>{text}</p>")


def test_equations_beside_each_other_can_be_broken_apart():
    apart = equation(r"a = b, \quad c = d")
    assert apart == equation("a = b") + " " + equation("c = d")


def test_nothing_stays_nothing():
    assert equation(" ") == ""


def test_fractions_and_greek_are_spoken():
    assert spoken(r"\frac{a}{b} \leq \alpha_{ij}") == "(a) / (b) ≤\u03b1_ij"
