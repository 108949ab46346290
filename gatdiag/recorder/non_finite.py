"""Where the first NaN or infinity of a run is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    watched: Mapping[str, Any],
    layers: Sequence[str],
    parameters: Sequence[tuple[str, str]],
) -> FirstNonFinite | None:
    """The first NaN or infinity in the rows of several steps; None if all values are finite.

    Within a step the order is that of computation: weights and outputs from the first layer to the last, then gradients
    of outputs and of weights from the last layer to the first.

    Args:
        tables: Name -> columns of the rows.
        watched: Columns "step", "parameter" and "gradient_norm" of steps that are not recorded.
        layers: Names of the layers.
        parameters: Layer and name of each parameter.
    """
    of_layers, of_parameters = tables.get("layers", {}), tables.get("parameters", {})
    found: list[FirstNonFinite] = []
    for where, columns, rows, norm, is_backward in (
        ("weight", of_parameters, _rows_not_finite(of_parameters.get("norm")), "norm", False),
        ("output", of_layers, _rows_above_zero(of_layers.get("non_finite")), "output_norm", False),
        (
            "output gradient",
            of_layers,
            _rows_above_zero(of_layers.get("gradient_non_finite")),
            "output_gradient_norm",
            True,
        ),
        ("gradient", of_parameters, _rows_not_finite(of_parameters.get("gradient_norm")), "gradient_norm", True),
        ("gradient", watched, _rows_not_finite(watched.get("gradient_norm")), "gradient_norm", True),
    ):
        if not len(rows):
            continue
        steps = columns["step"][rows]
        row = int(rows[steps == steps[0]][-1 if is_backward else 0])
        at = columns.get("parameter")
        layer, name = (layers[columns["layer"][row]], None) if at is None else parameters[at[row]]
        kind = "infinity" if np.isinf(columns[norm][row]) else "NaN"
        found.append(FirstNonFinite(int(steps[0]), layer, where, name, kind))
    return min(found, key=lambda one: one.step, default=None)


def _rows_above_zero(counts: Any) -> NDArray[np.intp]:
    return np.flatnonzero(np.ma.filled(counts, 0) > 0) if counts is not None else np.zeros(0, np.intp)


def _rows_not_finite(norms: Any) -> NDArray[np.intp]:
    return np.flatnonzero(~np.isfinite(np.ma.filled(norms, 0.0))) if norms is not None else np.zeros(0, np.intp)
