"""LaTeX -> MathML, which browsers render without images or fonts, in the color of the surrounding text.

Covers the part of LaTeX that the catalog of quantities uses. Anything else is shown as source.
"""

import re
from collections.abc import Iterator
from itertools import takewhile

from markupsafe import Markup

from gatdiag.names import one_line

_LONGEST = 600  # characters; longer text is not an equation
_DEEPEST = 20  # nested groups
_BETWEEN = re.compile(r",?\s*\\q?quad(?![a-z])")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9.]*[0-9]|[A-Za-z]|\s+|[-+=<>/|()\[\]{}^_,:;!*'&]")
_LETTERS = {
    "alpha": "\u03b1", "beta": "β", "gamma": "\u03b3", "delta": "δ", "Delta": "Δ", "epsilon": "ε", "eta": "η",
    "theta": "θ", "lambda": "λ", "mu": "μ", "rho": "\u03c1", "sigma": "\u03c3", "tau": "τ", "ell": "\u2113",
    "infty": "∞", "top": "\u22a4", "max": "max", "min": "min",
}  # fmt: skip
_OPERATORS = {
    "{": "{", "}": "}", "sum": "∑", "prod": "∏", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "neq": "≠", "ne": "≠",
    "approx": "≈", "in": "∈", "notin": "∉", "cdot": "·", "times": "\u00d7", "odot": "⊙", "pm": "±", "to": "→",
    "langle": "⟨", "rangle": "⟩", "ldots": "…", "dots": "…", "cdots": "…",
}  # fmt: skip
_TIGHT = {"|": "‖", "lVert": "‖", "rVert": "‖", "#": "#", "nabla": "∇", "partial": "∂"}
_SPACES = {",": "0.17em", ":": "0.22em", ";": "0.28em", " ": "0.3em"}
_ELEMENTS = {  # command -> MathML
    **{name: f"<mi>{text}</mi>" for name, text in _LETTERS.items()},
    **{name: f'<mi style="padding-right:.15em">{name}</mi>' for name in ("exp", "log", "cos", "det")},
    **{name: f'<mo stretchy="false" largeop="false">{text}</mo>' for name, text in _OPERATORS.items()},
    **{name: f'<mo stretchy="false" lspace="0" rspace="0">{text}</mo>' for name, text in _TIGHT.items()},
    **{name: f'<mspace width="{width}"></mspace>' for name, width in _SPACES.items()},
}
_CONTAINERS = {"sqrt": ("msqrt", 1), "frac": ("mfrac", 2), "tfrac": ("mfrac", 2)}  # element, number of arguments
_UPRIGHT = ("mathrm", "operatorname", "text", "mathbf", "boldsymbol")
_ALPHABETS = {"mathcal": {"L": "\u2112"}, "mathbb": {"R": "\u211d", "E": "\U0001d53c"}}
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


def _row(tokens: Iterator[str], closing: str = "", depth: int = 0) -> Markup:
    """Everything up to the closing token, with scripts attached to their bases."""
    if depth > _DEEPEST:
        raise _UnknownError("nested groups")
    done: list[tuple[Markup, dict[str, Markup]]] = []  # each with its scripts
    for token in tokens:
        if token == closing:
            break
        if token not in _SCRIPTS:
            done.append((_atom(tokens, token, depth), {}))
        elif not done or token in done[-1][1]:
            raise _UnknownError(token)
        else:
            done[-1][1][token] = _atom(tokens, next(tokens, ""), depth)
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


def _atom(tokens: Iterator[str], token: str, depth: int) -> Markup:
    """One token, or the group or command that it starts."""
    if token == "{":
        return _row(tokens, "}", depth + 1)
    if token.startswith("\\"):
        return _command(tokens, token[1:], depth)
    if not token or token in "}&":
        raise _UnknownError(token)
    if token == "|":
        return Markup('<mo stretchy="false" lspace="0" rspace="0">|</mo>')
    tag = Markup("mn" if token[-1].isdigit() else "mi" if token.isalpha() else "mo")
    text = {"-": "\N{MINUS SIGN}", "*": "\N{ASTERISK OPERATOR}", "'": "\N{PRIME}"}.get(token, token)
    stretchy = Markup(' stretchy="false"' if token in "()[]/" else "")
    return Markup("<{0}{1}>{2}</{0}>").format(tag, stretchy, text)


def _command(tokens: Iterator[str], name: str, depth: int) -> Markup:
    if name in _ELEMENTS:
        return Markup(_ELEMENTS[name])
    if name in ("left", "right"):
        return _atom(tokens, next(tokens, ""), depth)
    if name in _CONTAINERS:
        tag, count = _CONTAINERS[name]
        arguments = [_atom(tokens, next(tokens, ""), depth) for _ in range(count)]
        return Markup("<{0}>{1}</{0}>").format(Markup(tag), Markup("").join(arguments))
    return _word(tokens, name)


def _word(tokens: Iterator[str], name: str) -> Markup:
    """One letter or a braced group, upright or in another alphabet."""
    letters = next(tokens, "")
    if letters == "{":
        letters = "".join(takewhile(lambda token: token != "}", tokens))
    if not letters.isalnum() or name not in (*_UPRIGHT, *_ALPHABETS):
        raise _UnknownError(name)
    if name in _ALPHABETS:
        return Markup("<mi>{}</mi>").format("".join(_ALPHABETS[name].get(letter, letter) for letter in letters))
    style = Markup(' style="font-weight:bold"' if name.startswith("b") or name == "mathbf" else "")
    return Markup('<mi mathvariant="normal"{}>{}</mi>').format(style, letters)
