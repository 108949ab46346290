"""The rules of other tools on a recorded run, as a baseline for the diagnosis.

Amazon SageMaker Debugger's built-in rules (VanishingGradient, DeadRelu, UnchangedTensor, WeightUpdateRatio,
LossNotDecreasing, AllZero and NaN) with their default thresholds, and the ratio of the gradients of the first and the
last layer from AUTOTRAINER (Zhang et al., ICSE 2021).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from gatdiag.diagnosis import HEALTHY
from gatdiag.run import Run


def published_rules(run: Run) -> str:
    """The cause of the first rule that fires; "healthy" if none does."""
    return next((cause for cause, fires in _RULES.items() if fires(run)), HEALTHY)


def _gradient_ratio(run: Run) -> float:
    """Gradient norm of the first layer divided by that of the last, median over steps."""
    norms = run.layers.pivot_table(index="step", columns="layer", values="output_gradient_norm", observed=True)
    return float((norms.iloc[:, 0] / norms.iloc[:, -1]).median()) if norms.size else 1.0


def _is_vanishing(run: Run) -> bool:
    largest = run.parameters.groupby("step")["gradient_norm"].max().median()
    return bool(largest < 1e-7) or _gradient_ratio(run) < 1e-3


def _has_large_updates(run: Run) -> bool:
    is_weight = ~run.parameters["parameter"].astype(str).str.endswith("bias")
    return bool((run.parameters.loc[is_weight, "update_ratio"] > 10).any())


def _is_not_decreasing(run: Run) -> bool:
    """The loss falls by less than 0.1% in ten steps, at most of the steps."""
    loss = run.steps["loss"].to_numpy()
    return len(loss) > 10 and bool(np.mean(loss[10:] > 0.999 * loss[:-10]) > 0.5)


_RULES: Final[Mapping[str, Callable[[Run], Any]]] = {
    "nonfinite-operation": lambda run: not np.isfinite(run.steps["loss"]).all(),
    "depth-exploding-gradient": lambda run: _gradient_ratio(run) > 70,
    "depth-vanishing-gradient": _is_vanishing,
    "dead-units": lambda run: run.layers.groupby("layer", observed=True)["dead_fraction"].median().max() > 0.5,
    "parameters-without-gradient": lambda run: (
        run.parameters.groupby("parameter", observed=True)["update_ratio"].max() < 1e-5
    ).any(),
    "lr-too-large": _has_large_updates,
    "lr-too-small": _is_not_decreasing,
}
