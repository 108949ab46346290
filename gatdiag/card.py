"""Objects as short HTML for notebooks, readable on light and on dark."""

from collections.abc import Iterable
from html import escape
from typing import Final, Literal, TypeAlias

from gatdiag.names import replace_invisible

Tone: TypeAlias = Literal["failing", "degraded", "healthy", "unknown"]

_EDGES: Final[dict[Tone, str]] = {
    "failing": "#c8452c", "degraded": "#d9a02b", "healthy": "#4f9d74", "unknown": "#888888",
}  # fmt: skip
_MOST: Final = 12  # rows


def card(
    title: str,
    text: str = "",
    *,
    tone: Tone = "unknown",
    rows: Iterable[tuple[str, object]] = (),
    code: str = "",
) -> str:
    """What `_repr_html_` returns: a colored edge, a title, a sentence, names with values, code to paste.

    Text has the color of the notebook.

    Args:
        title: The first line, in bold.
        text: One or two sentences.
        tone: The color of the edge.
        rows: Names and values; of many, the first twelve are shown.
        code: Code to paste.

    Example:
        >>> print(card("Dead <units>", tone="failing"))
        <div style="border-left: .3em solid #c8452c; padding: .2em .8em"><strong>Dead &lt;units&gt;</strong></div>
    """
    parts = [f"<strong>{_safe(title)}</strong>"]
    if text:
        parts.append(f"<div>{_safe(text)}</div>")
    shown = list(rows)
    if shown:
        cells = "".join(
            f'<tr><td style="text-align: left">{_safe(name)}</td><td style="text-align: left">{_safe(value)}</td></tr>'
            for name, value in shown[:_MOST]
        )
        parts.append(f"<table>{cells}</table>")
    if len(shown) > _MOST:
        parts.append(f"<div>and {len(shown) - _MOST:,} more</div>")
    if code:
        parts.append(f"<pre>{escape(code)}</pre>")
    style = f"border-left: .3em solid {_EDGES[tone]}; padding: .2em .8em"
    return f'<div style="{style}">{"".join(parts)}</div>'


def _safe(text: object) -> str:
    return escape(replace_invisible(str(text)))
