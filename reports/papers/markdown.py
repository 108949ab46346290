"""Tables in Markdown."""

import math

import pandas as pd


def table(rows: pd.DataFrame) -> str:
    r"""A table of text and numbers (three digits); missing values are empty.

    Example:
        >>> print(table(pd.DataFrame({"case": ["a|b", None], "rate": [0.1234, 300.0], "steps": [300, 5]})))
        | case | rate | steps |
        | --- | --- | --- |
        | a\|b | 0.123 | 300 |
        |  | 300 | 5 |
    """
    if rows.empty:
        return "None."
    cells = [[_text(cell) for cell in row] for row in rows.astype(object).to_numpy().tolist()]
    lines = [[*rows.columns], ["---"] * len(rows.columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.3g}"
    return "" if cell is None else str(cell).replace("|", "\\|")
