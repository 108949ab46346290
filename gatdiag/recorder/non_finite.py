"""The first value that is not finite: at which step, in which layer, and in what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FirstNonFinite:
    """Where the first NaN or infinity was seen."""

    step: int
    layer: str
    where: str
    parameter: str | None
    kind: str


def first_non_finite(
    tables: Mapping[str, Mapping[str, Any]],
    watched: Mapping[str, Any],
    layers: Sequence[str],
    parameters: Sequence[tuple[str, str]],
) -> FirstNonFinite | None:
    """The first in the rows of a few steps.

    Within a step weights come first, for what is wrong with them shows in all that follows: in order of the layers, as
    outputs do; then gradients of outputs and of weights, from the last layer.
    """
    of_layers, of_parameters = tables.get("layers", {}), tables.get("parameters", {})
    found: list[FirstNonFinite] = []
    for where, columns, broken, norm, is_backward in (
        ("weight", of_parameters, _not_finite(of_parameters.get("norm")), "norm", False),
        ("output", of_layers, _counted(of_layers.get("non_finite")), "output_norm", False),
        ("output gradient", of_layers, _counted(of_layers.get("gradient_non_finite")), "output_gradient_norm", True),
        ("gradient", of_parameters, _not_finite(of_parameters.get("gradient_norm")), "gradient_norm", True),
        ("gradient", watched, _not_finite(watched.get("gradient_norm")), "gradient_norm", True),
    ):
        if not len(broken):
            continue
        steps = columns["step"][broken]
        row = int(broken[steps == steps[0]][-1 if is_backward else 0])
        at = columns.get("parameter")
        layer, name = (layers[columns["layer"][row]], None) if at is None else parameters[at[row]]
        kind = "infinity" if np.isinf(columns[norm][row]) else "NaN"
        found.append(FirstNonFinite(int(steps[0]), layer, where, name, kind))
    return min(found, key=lambda one: one.step, default=None)


def _counted(counts: Any) -> NDArray[np.intp]:
    return np.flatnonzero(np.ma.filled(counts, 0) > 0) if counts is not None else np.zeros(0, np.intp)


def _not_finite(norms: Any) -> NDArray[np.intp]:
    return np.flatnonzero(~np.isfinite(np.ma.filled(norms, 0.0))) if norms is not None else np.zeros(0, np.intp)
