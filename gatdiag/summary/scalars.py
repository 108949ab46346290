"""A step of a run in a few numbers under stable names, for trackers that draw scalars."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatdiag.quantities import TableName
from gatdiag.roles import FEATURE
from gatdiag.run import Run

__all__ = ["SCALARS", "SEVERITY_SCALAR", "Scalars", "run_scalars", "scalars_of"]

Scalars: TypeAlias = dict[int, dict[str, float]]
Tables: TypeAlias = Mapping[TableName, Mapping[str, Any]]
_Floats: TypeAlias = NDArray[np.float64]
_Reduce: TypeAlias = Callable[[_Floats], Any]

SEVERITY_SCALAR: Final = "gatdiag/severity"
"""The severity of the verdict, at the last step: 0 for a note or without a cause, 1 for a warning, 2 for an error."""


def _norm(values: _Floats) -> Any:
    return np.sqrt(np.square(values).sum())


# name -> table, column, and how the rows of a step become one number
_OF_STEPS: Final = ("gradient_norm", "gradient_norm_before_clipping", "overshoot", "stale_gradient")
_REDUCED: Final[Mapping[str, tuple[TableName, str, _Reduce]]] = {
    "relative_gradient/min": ("parameters", "relative_gradient_norm", np.min),
    "relative_gradient/max": ("parameters", "relative_gradient_norm", np.max),
    "update_ratio/min": ("parameters", "update_ratio", np.min),
    "update_ratio/median": ("parameters", "update_ratio", np.median),
    "update_ratio/max": ("parameters", "update_ratio", np.max),
    "never_changed/max": ("parameters", "unchanged_fraction", np.max),
    "weight_norm": ("parameters", "norm", _norm),
    "dead_units/max": ("layers", "dead_fraction", np.max),
    "attention_entropy/min": ("layers", "relative_attention_entropy", np.min),
    "non_finite": ("layers", "non_finite", np.sum),
    "abs_c/mean": ("neurons", "c", lambda values: np.abs(values).mean()),
}
SCALARS: Final[Mapping[str, str]] = {
    "gradient_norm": "norm of the gradients of all parameters, as the optimizer used them",
    "gradient_norm_before_clipping": "the same before clipping",
    "overshoot": "how far the previous step went: above 2, gradient descent diverges",
    "stale_gradient": "what was left of the gradients before: 1 if they are not cleared",
    "relative_gradient/min": "smallest gradient over weight, of the feature weights",
    "relative_gradient/max": "largest gradient over weight, of the feature weights",
    "update_ratio/min": "smallest step over weight, of the feature weights",
    "update_ratio/median": "median step over weight, of the feature weights",
    "update_ratio/max": "largest step over weight, of the feature weights",
    "never_changed/max": "largest fraction of a feature weight's entries that have never changed",
    "weight_norm": "norm of all feature weights together",
    "dead_units/max": "largest fraction of a layer's channels that are zero everywhere",
    "relative_mu/last_hidden": "how far nodes differ in the last hidden layer's output: 0 is oversmoothing",
    "output_norm/last_over_first": "norm of the last layer's output over that of the first layer's",
    "attention_entropy/min": "smallest entropy of a layer's attention, over that of uniform attention",
    "non_finite": "NaN and infinite entries of all layers' outputs",
    "abs_c/mean": "mean |c| over the conservation laws",
    "severity": "of the verdict, at the last step: 0 note, 1 warning, 2 error",
}
"""Name of a scalar, without ``gatdiag/`` -> what it is. Layers are in structure order. Names are stable."""


def scalars_of(tables: Tables) -> Scalars:
    """The scalars of some steps, from rows of a run's tables.

    Args:
        tables: Name of a table -> its columns, of which ``step`` is one; ``layer`` numbers the layers in structure
            order, and ``is_feature`` marks the rows of feature weights. NaN and infinite values do not count.

    Returns:
        Step -> name, with ``gatdiag/`` before it -> value. What was not measured at a step is not there.

    Example:
        >>> scalars_of({"neurons": {"step": [0, 0, 1], "c": [1.0, -3.0, 0.5]}})
        {0: {'gatdiag/abs_c/mean': 2.0}, 1: {'gatdiag/abs_c/mean': 0.5}}
    """
    found: Scalars = {}
    for name, step, value in _values(tables):
        if np.isfinite(value):
            found.setdefault(step, {})[f"gatdiag/{name}"] = float(value)
    return dict(sorted(found.items()))


def run_scalars(run: Run) -> Scalars:
    """The scalars of all recorded steps of a run, as `scalars_of` describes."""
    tables: dict[TableName, dict[str, Any]] = {
        "steps": {name: run.steps[name] for name in ("step", *_OF_STEPS) if name in run.steps},
        "layers": {**run.layers, "layer": run.layers["layer"].cat.codes},
        "parameters": {**run.parameters, "is_feature": run.parameters["role"] == FEATURE},
        "neurons": {"step": run.neurons["step"], "c": run.neurons["c"]},
    }
    return scalars_of(tables)


def _values(tables: Tables) -> Iterator[tuple[str, int, float]]:
    """Names, steps and values."""
    for name in _OF_STEPS:
        yield from _reduce(name, tables.get("steps", {}), name, np.max)
    for name, (table, column, how) in _REDUCED.items():
        yield from _reduce(name, tables.get(table, {}), column, how)
    layers = tables.get("layers", {})
    for step, rows in _rows_by_step(layers, "layer"):
        if "relative_mu" in layers and len(rows) > 1:
            yield "relative_mu/last_hidden", step, _floats(layers["relative_mu"])[rows[-2]]
        if "output_norm" in layers and len(rows) > 1:
            first, last = _floats(layers["output_norm"])[rows[[0, -1]]]
            yield "output_norm/last_over_first", step, last / first if first else np.nan


def _reduce(name: str, table: Mapping[str, Any], column: str, how: _Reduce) -> Iterator[tuple[str, int, float]]:
    """The finite values of each step as one; of parameters those of feature weights, or of all if there are none."""
    if table.get(column) is None:
        return
    values, is_feature = _floats(table[column]), np.asarray(table.get("is_feature", False))
    if is_feature.any():
        values = np.where(is_feature, values, np.nan)
    for step, rows in _rows_by_step(table):
        if len(finite := values[rows][np.isfinite(values[rows])]):
            yield name, step, how(finite)


def _rows_by_step(table: Mapping[str, Any], then_by: str = "step") -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each step, and the positions of its rows, in the order of another column."""
    if not len(steps := np.asarray(table.get("step", ()), np.int64)):
        return
    order = np.lexsort((np.asarray(table[then_by]), steps))
    starts = np.flatnonzero(np.diff(steps[order])) + 1
    for rows in np.split(order, starts):
        yield int(steps[rows[0]]), rows


def _floats(values: Any) -> _Floats:
    """As an array, with NaN where nothing was measured."""
    return np.ma.filled(np.ma.asarray(values, np.float64), np.nan)
