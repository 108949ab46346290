"""The first value that is not finite: at which step, in which layer, and in what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class FirstNonFinite:
    """Where the first NaN or infinity was seen.

    Attributes:
        step: At which step.
        layer: In which layer.
        where: "output", "output gradient", "gradient" (of a parameter) or "weight".
        parameter: Which parameter, if it is about one.
        kind: "NaN" or "infinity".
    """

    step: int
    layer: str
    where: str
    parameter: str | None
    kind: str


def in_layers(columns: Mapping[str, Any], names: Sequence[str]) -> FirstNonFinite | None:
    """The first in the rows of one step of the table `layers`: outputs in order, then gradients from the last layer."""
    for where, count, norm, order in (
        ("output", "non_finite", "output_norm", 1),
        ("output gradient", "gradient_non_finite", "output_gradient_norm", -1),
    ):
        rows = _broken(columns.get(count))[::order]
        if len(rows):
            row = int(rows[0])
            layer = names[int(columns["layer"][row])]
            return FirstNonFinite(int(columns["step"]), layer, where, None, _kind(columns[norm][row]))
    return None


def in_parameters(
    columns: Mapping[str, Any], parameters: Sequence[tuple[str, str]], where: Literal["weight", "gradient"]
) -> FirstNonFinite | None:
    """The first in one step's rows of the table `parameters`: weights in order, or gradients from the last layer."""
    values = columns.get("norm" if where == "weight" else "gradient_norm")
    if values is None:
        return None
    rows = np.flatnonzero(~np.isfinite(np.ma.filled(values, 0.0)))[:: 1 if where == "weight" else -1]
    if not len(rows):
        return None
    layer, name = parameters[int(columns["parameter"][int(rows[0])])]
    return FirstNonFinite(int(columns["step"]), layer, where, name, _kind(values[int(rows[0])]))


def _broken(counts: Any) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.flatnonzero(np.ma.filled(counts, 0) > 0) if counts is not None else np.zeros(0, np.intp)


def _kind(norm: Any) -> str:
    return "infinity" if np.isinf(norm) else "NaN"
