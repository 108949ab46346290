"""Where the first NaN or infinity of a run is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FirstNonFinite:
    """Where the first NaN or infinity is."""

    step: int
    layer: str
    where: str  # "weight", "output", "output gradient" or "gradient"
    parameter: str | None
    kind: str  # "NaN" or "infinity"


def first_non_finite(
    tables: Mapping[str, Mapping[str, Any]],
    layers: Sequence[str],
    parameters: Sequence[tuple[str, str]],
) -> FirstNonFinite | None:
    """The first NaN or infinity in the rows of several steps; None if all values are finite.

    Within a step the order is that of computation: weights and outputs from the first layer to the last, then gradients
    of outputs and of weights from the last layer to the first.

    Args:
        tables: Name -> columns of the rows.
        layers: Names of the layers.
        parameters: Layer and name of each parameter.
    """
    of_layers, of_parameters = tables.get("layers", {}), tables.get("parameters", {})
    found: list[FirstNonFinite] = []
    for where, columns, norm, count, is_backward in (
        ("weight", of_parameters, "norm", "", False),
        ("output", of_layers, "output_norm", "non_finite", False),
        ("output gradient", of_layers, "output_gradient_norm", "gradient_non_finite", True),
        ("gradient", of_parameters, "gradient_norm", "", True),
    ):
        values = np.ma.filled(columns.get(count or norm, np.zeros(0)), 0.0)
        rows = np.flatnonzero(values > 0 if count else ~np.isfinite(values))
        if not len(rows):
            continue
        steps = columns["step"][rows]
        row = int(rows[steps == steps[0]][-1 if is_backward else 0])
        at = columns.get("parameter")
        layer, name = (layers[columns["layer"][row]], None) if at is None else parameters[at[row]]
        kind = "infinity" if np.isinf(columns[norm][row]) else "NaN"
        found.append(FirstNonFinite(int(steps[0]), layer, where, name, kind))
    return min(found, key=lambda one: one.step, default=None)
