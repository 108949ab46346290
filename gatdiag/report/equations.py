"""LaTeX -> MathML, which browsers render without images or fonts, in the color of the surrounding text.

Covers the part of LaTeX that the catalog of quantities uses. Anything else is shown as source.
"""

import re
from collections.abc import Iterator
from itertools import takewhile

from markupsafe import Markup

from gatdiag.names import one_line

_LONGEST = 300  # characters; longer text is not an equation
_BETWEEN = re.compile(r",?\s*\\q?quad(?![a-z])")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9.]*[0-9]|[A-Za-z]|\s+|[-+=<>/|()\[\]{}^_,:!*]")
_LETTERS = {
    "alpha": "\u03b1", "gamma": "\u03b3", "delta": "δ", "eta": "η", "lambda": "λ", "mu": "μ", "sigma": "\u03c3",
    "tau": "τ", "top": "\u22a4", "max": "max",
}  # fmt: skip
_OPERATORS = {"{": "{", "}": "}", "sum": "∑", "geq": "≥", "notin": "∉", "langle": "⟨", "rangle": "⟩"}
_TIGHT = {"|": "‖", "#": "#", "nabla": "∇", "partial": "∂"}
_SPACES = {",": "0.17em", " ": "0.3em"}
_ELEMENTS = {  # command -> MathML
    **{name: f"<mi>{text}</mi>" for name, text in _LETTERS.items()},
    **{name: f'<mi style="padding-right:.15em">{name}</mi>' for name in ("exp", "log", "cos")},
    **{name: f'<mo stretchy="false" largeop="false">{text}</mo>' for name, text in _OPERATORS.items()},
    **{name: f'<mo stretchy="false" lspace="0" rspace="0">{text}</mo>' for name, text in _TIGHT.items()},
    **{name: f'<mspace width="{width}"></mspace>' for name, width in _SPACES.items()},
}
_STYLES = {"mathrm": Markup(""), "mathbf": Markup(' style="font-weight:bold"')}
_ALPHABETS = {"mathcal": {"L": "\u2112"}, "mathbb": {"R": "\u211d"}}
_SCRIPTS = {"_": "msub", "^": "msup"}


class _UnknownError(ValueError):
    """Not an equation, or it uses unsupported LaTeX."""


def equation(latex: str) -> Markup:
    r"""An equation as inline MathML, or its source as code if it is not supported.

    Args:
        latex: LaTeX without dollar signs; lines may break at ``\quad``.

    Example:
        >>> print(equation(r"W_2"))
        <math><mrow><msub><mi>W</mi><mn>2</mn></msub></mrow></math>
    """
    parts = [one_line(part) for part in _BETWEEN.split(latex) if part.strip()]
    return Markup(" ").join(_set(part) for part in parts)


def _set(latex: str) -> Markup:
    try:
        return Markup("<math>{}</math>").format(_row(iter(_tokens(latex))))
    except _UnknownError:
        return Markup('<code class="equation">{}</code>').format(latex)


def _tokens(latex: str) -> list[str]:
    tokens = _TOKEN.findall(latex)
    if len(latex) > _LONGEST or "".join(tokens) != latex:
        raise _UnknownError(latex)
    return [token for token in tokens if not token.isspace()]


def _row(tokens: Iterator[str], closing: str = "") -> Markup:
    """Everything up to the closing token, with scripts attached to their bases."""
    done: list[tuple[Markup, dict[str, Markup]]] = []  # each with its scripts
    for token in tokens:
        if token == closing:
            break
        if token not in _SCRIPTS:
            done.append((_atom(tokens, token), {}))
        elif not done or token in done[-1][1]:
            raise _UnknownError(token)
        else:
            done[-1][1][token] = _atom(tokens, next(tokens, ""))
    else:
        if closing:
            raise _UnknownError(closing)
    return Markup("<mrow>{}</mrow>").format(Markup("").join(_scripted(*item) for item in done))


def _scripted(base: Markup, scripts: dict[str, Markup]) -> Markup:
    if not scripts:
        return base
    tag = Markup("msubsup" if len(scripts) == 2 else _SCRIPTS[next(iter(scripts))])
    ordered = (scripts[kind] for kind in _SCRIPTS if kind in scripts)
    return Markup("<{0}>{1}{2}</{0}>").format(tag, base, Markup("").join(ordered))


def _atom(tokens: Iterator[str], token: str) -> Markup:
    """One token, or the group or command that it starts."""
    if token == "{":
        return _row(tokens, "}")
    if token.startswith("\\"):
        name = token[1:]
        return Markup(_ELEMENTS[name]) if name in _ELEMENTS else _word(tokens, name)
    if not token or token == "}":
        raise _UnknownError(token)
    if token == "|":
        return Markup('<mo stretchy="false" lspace="0" rspace="0">|</mo>')
    tag = Markup("mn" if token[-1].isdigit() else "mi" if token.isalpha() else "mo")
    text = {"-": "\N{MINUS SIGN}", "*": "\N{ASTERISK OPERATOR}"}.get(token, token)
    stretchy = Markup(' stretchy="false"' if token in "()[]/" else "")
    return Markup("<{0}{1}>{2}</{0}>").format(tag, stretchy, text)


def _word(tokens: Iterator[str], name: str) -> Markup:
    """One letter or a braced group, upright or in another alphabet."""
    letters = next(tokens, "")
    if letters == "{":
        letters = "".join(takewhile(lambda token: token != "}", tokens))
    if letters.isalnum() and name in _ALPHABETS:
        return Markup("<mi>{}</mi>").format("".join(_ALPHABETS[name].get(letter, letter) for letter in letters))
    if letters.isalnum() and name in _STYLES:
        return Markup('<mi mathvariant="normal"{}>{}</mi>').format(_STYLES[name], letters)
    raise _UnknownError(name)
