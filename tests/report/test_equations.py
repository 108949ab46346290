from xml.etree import ElementTree

import pytest

from gatdiag.figures import FIGURES
from gatdiag.quantities import QUANTITIES
from gatdiag.report.equations import equation

KNOWN = sorted({*(q.equation for q in QUANTITIES), *(f.equation for f in FIGURES)} - {""})


@pytest.mark.parametrize("latex", KNOWN)
def test_every_equation_of_the_package_is_set(latex):
    parts = ElementTree.fromstring(f"<p>{equation(latex)}</p>")
    assert [part.tag for part in parts] == ["math"] * (1 + latex.count("quad"))
    assert not {*"\\{}$"} & {*"".join(parts.itertext()).replace("{", "", latex.count("\\{")).replace("}", "")}


@pytest.mark.parametrize(
    ("latex", "markup"),
    [
        ("w_0", "<msub><mi>w</mi><mn>0</mn></msub>"),
        ("x^2", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("W^l_{i,:}", "<msubsup><mi>W</mi><mrow><mi>i</mi><mo>,</mo><mo>:</mo></mrow><mi>l</mi></msubsup>"),
        (r"\mathcal{L}", "<mi>\u2112</mi>"),
        (r"\mathrm{tr}", '<mi mathvariant="normal">tr</mi>'),
        ("10.5 < a", "<mn>10.5</mn><mo>&lt;</mo><mi>a</mi>"),
    ],
)
def test_structure(latex, markup):
    assert equation(latex) == f"<math><mrow>{markup}</mrow></math>"


@pytest.mark.parametrize(
    "latex",
    [
        r"\nosuchcommand{x}",
        "{a",
        "a$b",
        "x" * 5000,
        '<script>"',
        "{" * 40,
        "\u05d0\u202e",
        "a^",
        "_b",
        "a_b_c",
        "}",
    ],
    ids=["unknown", "open", "dollar", "long", "markup", "braces", "rightward", "end", "start", "twice", "close"],
)
def test_what_is_no_equation_is_shown_as_written_and_escaped(latex):
    text = str(equation(latex))
    assert "<script" not in text
    assert text.startswith("<code")
    ElementTree.fromstring(f"<p>{text}</p>")


def test_equations_beside_each_other_can_be_broken_apart():
    assert equation(r"a = b, \quad c = d") == equation("a = b") + " " + equation("c = d")


def test_nothing_stays_nothing():
    assert equation(" ") == ""
