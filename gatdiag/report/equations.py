"""LaTeX -> a drawing of the equation that needs no font and no script, and words for who cannot see it.

matplotlib sets the equation; its outlines become one SVG path in the colour of the text around it. What matplotlib
cannot set is shown as it is written.
"""

import re
from functools import lru_cache
from html import escape

import numpy as np
from markupsafe import Markup
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from gatdiag.report.wording import one_line

_SIZE = 16.0  # units of the drawing
_LETTER = 14.0  # units that are as wide as one of the page's letters is high: its letters are larger than STIX
_LONGEST = 600  # characters; beyond it no equation was meant
_LETTERS = FontProperties(math_fontfamily="stix")
_COMMANDS = {  # of a matplotlib path -> of an SVG path, with how many points it takes
    int(Path.MOVETO): ("M", 1),
    int(Path.LINETO): ("L", 1),
    int(Path.CURVE3): ("Q", 2),
    int(Path.CURVE4): ("C", 3),
    int(Path.CLOSEPOLY): ("Z", 1),
}
_BETWEEN = re.compile(r",?\s*\\q?quad(?![a-z])")
_UNSUPPORTED = {r"\left\|": r"\|", r"\right\|": r"\|", r"\lVert": r"\|", r"\rVert": r"\|", r"\tfrac": r"\frac"}
_SPOKEN = {
    "nabla": "∇", "partial": "∂", "sum": "Σ", "prod": "Π", "sigma": "\u03c3",
    "gamma": "\u03b3", "delta": "δ", "Delta": "Δ",
    "lambda": "λ", "alpha": "\u03b1", "beta": "β", "eta": "η", "mu": "μ", "tau": "τ", "theta": "θ", "epsilon": "ε",
    "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "neq": "≠", "ne": "≠", "approx": "≈", "in": "∈", "notin": "∉",
    "cdot": "·", "times": "\u00d7", "infty": "∞", "top": "ᵀ", "langle": "⟨", "rangle": "⟩", "sqrt": "√", "to": "→",
    "ldots": "…", "dots": "…", "cdots": "…", "ell": "\u2113", "pm": "±", "quad": " ", "qquad": " ", "odot": "⊙",
}  # fmt: skip


def equation(latex: str) -> Markup:
    r"""An equation as inline markup: an SVG drawing with a spoken label, or the source where it cannot be drawn.

    Args:
        latex: LaTeX as matplotlib's mathtext takes it, without dollar signs.

    Example:
        >>> str(equation(r"\|W\|_F"))[:42]
        '<svg class="equation" role="img" aria-labe'
    """
    parts = [one_line(part) for part in _BETWEEN.split(latex) if part.strip()]
    return Markup(" ").join(_drawn(part) for part in parts)


def _drawn(latex: str) -> Markup:
    drawing = _outlines(latex)
    if drawing is None:
        return Markup('<code class="equation">{}</code>').format(latex)
    return Markup(drawing)


def spoken(latex: str) -> str:
    r"""An equation in plain characters, to be read aloud or where there is no drawing.

    Example:
        >>> spoken(r"\|\nabla_W\mathcal{L}\|_F / \|W\|_F")
        '‖∇_W L‖_F / ‖W‖_F'
    """
    text = latex.replace(r"\|", "‖").replace(r"\#", "#")
    while (plain := re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)", text)) != text:
        text = plain
    text = re.sub(r"\\(?:mathcal|mathrm|mathbf|mathbb|text|operatorname|boldsymbol|hat|tilde)\b\s*", " ", text)
    text = re.sub(r"\\([A-Za-z]+)\s*", lambda match: _SPOKEN.get(match[1], f"{match[1]} "), text)
    text = re.sub(r"\\[,;:! ]", " ", text).replace("\\", "").replace("{", "").replace("}", "")
    text = re.sub(r"\s+", " ", text)
    return re.sub(r"(?<=[‖(\[|]) | (?=[‖)\]|,](?:[_^ ,]|$))", "", text).strip()


@lru_cache(maxsize=512)
def _outlines(latex: str) -> str | None:
    """The SVG element, or None where matplotlib refuses the source."""
    if len(latex) > _LONGEST or "$" in latex or not latex.isascii():
        return None
    source = latex
    for written, known in _UNSUPPORTED.items():
        source = source.replace(written, known)
    try:
        path = TextPath((0, 0), f"${source}$", size=_SIZE, prop=_LETTERS)
    except (ValueError, RuntimeError):  # mathtext's complaint about what it cannot parse
        return None
    if not np.size(path.vertices):
        return None
    box = path.get_extents()
    left, width, height = box.x0 - 0.5, box.width + 1, box.height + 1
    depth = max(0.0, -box.y0 + 0.5)
    style = f"width:{width / _LETTER:.2f}em;height:{height / _LETTER:.2f}em;vertical-align:{-depth / _LETTER:.2f}em"
    return (
        f'<svg class="equation" role="img" aria-label="{escape(spoken(latex))}" style="{style}" '
        f'viewBox="{left:.1f} {-box.y1 - 0.5:.1f} {width:.1f} {height:.1f}"><path d="{_data(path)}"/></svg>'
    )


def _data(path: Path) -> str:
    """SVG path data; the vertical axis points down there."""
    vertices, codes = np.asarray(path.vertices), np.asarray(path.codes)
    parts, at = [], 0
    while at < len(vertices):
        letter, length = _COMMANDS.get(int(codes[at]), ("", 1))
        points = " ".join(f"{x:.1f} {-y:.1f}" for x, y in vertices[at : at + length])
        parts.append(letter if letter in ("", "Z") else letter + points)
        at += length
    return "".join(parts)
