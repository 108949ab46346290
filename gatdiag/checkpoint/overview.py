"""An inspection -> one row per layer for a terminal or a JSON document; one per parameter for `gatdiag.diagnosis`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
from torch import Tensor

from gatdiag.checkpoint.initialization import matching_initialization
from gatdiag.checkpoint.inspection import Inspection
from gatdiag.checkpoint.measures import measure
from gatdiag.run import Run
from gatdiag.structure import Layer, ParameterInfo
from gatdiag.summary import ATTENTION, FEATURES, role_series

_TABLES: Final = ("Embedding", "EmbeddingBag")  # rows are entries, of which that of the padding is zero by intent
_BALANCED: Final = 1e-6  # of |c| to the squared norm of a whole layer: the rounding of single precision
_COMPUTED_FROM: Final = re.compile(r"(^|\.)parametrizations\.|_orig$|_[gv]$")  # tensors that make up a weight


@dataclass(frozen=True)
class LayerRow:
    """One layer in the last checkpoint; NaN where something was not measured.

    Attributes:
        layer: Its name.
        kind: Its class.
        parameters: How many numbers it holds.
        norm: Frobenius norm of its feature weights; NaN where they are computed from what is stored.
        spectral_norm: Largest of its feature weights: a Lipschitz bound of the linear map; NaN where they are computed.
        c: Largest |c| of its neurons.
        c_drift: Largest |c - c_0| of its neurons since the first step.
        changed: Share of feature weights (of at least 1e-4) that changed by more than 5 %.
        changed_attention: Share of attention vectors that moved by more than 0.05.
        unchanged: Share of feature weights that did not change at all.
        relative_gradient: Relative gradient norm of its feature weights.
        remembered_gradient: The same of the gradients that Adam remembers, as root mean square over its last steps:
            sqrt(sum v / (1 - beta2^t)) / ||W||.
        relative_mu: Relative mu of its output.
        initialization: Whose distribution its largest weight has, and "balanced" if each neuron is; "" if none.
        non_finite: How many entries are NaN or infinite.
        dead_rows: Rows of feature weights that are zero: neurons that nothing leads into.
        dead_columns: Columns that are zero: inputs that are not read.
    """

    layer: str
    kind: str
    parameters: int
    norm: float
    spectral_norm: float
    c: float
    c_drift: float
    changed: float
    changed_attention: float
    unchanged: float
    relative_gradient: float
    remembered_gradient: float
    relative_mu: float
    initialization: str
    non_finite: int
    dead_rows: int
    dead_columns: int


def layer_rows(inspection: Inspection) -> tuple[LayerRow, ...]:
    """One row a layer.

    Args:
        inspection: The checkpoints.
    """
    run, measured = inspection.run, inspection.measured
    columns = {
        "norm": _last(run, "norm", FEATURES),
        "spectral_norm": _last(run, "spectral_norm", FEATURES),
        "changed": _last(run, "changed_fraction_005", FEATURES),
        "changed_attention": _last(run, "changed_fraction_005", ATTENTION),
        "unchanged": _last(run, "unchanged_fraction", FEATURES),
        "relative_gradient": _last(run, "relative_gradient_norm", FEATURES),
        "relative_mu": _by_layer(_of_last_step(run, run.layers), "relative_mu"),
        **_of_laws(run),
    }
    for layer in inspection.structure:
        if any(_is_computed_from(info) for info in layer.parameters if info.role == FEATURES):
            columns["spectral_norm"][layer.name] = math.nan
            columns["norm"][layer.name] = math.nan
    return tuple(
        LayerRow(
            layer=layer.name,
            kind=layer.kind,
            parameters=sum(math.prod(info.shape) for info in layer.parameters),
            remembered_gradient=_remembered(layer, inspection),
            initialization=_initialization(layer, inspection, columns["c"], columns["norm"]),
            non_finite=sum(measured[info.name].non_finite for info in layer.parameters if info.name in measured),
            dead_rows=sum(measured[i.name].dead_rows for i in _neuron_weights(layer) if i.name in measured),
            dead_columns=sum(measured[i.name].dead_columns for i in _neuron_weights(layer) if i.name in measured),
            **{name: values.get(layer.name, math.nan) for name, values in columns.items()},
        )
        for layer in inspection.structure
    )


def _neuron_weights(layer: Layer) -> list[ParameterInfo]:
    """The feature weights whose rows are neurons: not those of an embedding, nor what a weight is computed from."""
    infos = () if layer.kind in _TABLES else layer.parameters
    return [info for info in infos if info.role == FEATURES and "parametrizations." not in info.name]


def _is_computed_from(info: ParameterInfo) -> bool:
    return _COMPUTED_FROM.search(info.name) is not None


def _remembered(layer: Layer, inspection: Inspection) -> float:
    """NaN without Adam's second moment of every feature weight, or where its settings are not in the file."""
    optimizer = inspection.optimizer
    decays = set() if optimizer is None else {_decay(group) for group in optimizer.groups}
    if optimizer is None or len(decays) != 1:
        return math.nan
    (decay,) = decays
    names = [info.name for info in layer.parameters if info.role == FEATURES and info.name in inspection.measured]
    squares = sum(_mean_square(optimizer.moments.get(name, {}), decay) for name in names)
    weights = sum(inspection.measured[name].norm ** 2 for name in names)
    return math.sqrt(squares / weights) if weights > 0 and squares >= 0 else math.nan


def _decay(group: Mapping[str, Any]) -> float:
    """beta2; NaN where there is none, or none that makes an average."""
    betas = group.get("betas")
    known = isinstance(betas, list | tuple) and len(betas) == 2 and isinstance(betas[1], float) and 0 <= betas[1] < 1
    return betas[1] if known and betas is not None else math.nan


def _mean_square(state: Mapping[str, Tensor], decay: float) -> float:
    """Of all entries of a gradient together, without the bias towards zero of the first steps."""
    square, step = state.get("exp_avg_sq"), state.get("step")
    if square is None or step is None or step.numel() != 1 or not square.is_floating_point():
        return math.nan
    kept = 1 - decay ** float(step)
    return float(square.double().sum()) / kept if kept > 0 else math.nan


def _last(run: Run, column: str, role: str) -> dict[str, float]:
    return _by_layer(_of_last_step(run, role_series(run, column, role)), "value")


def _of_last_step(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    last: pd.DataFrame = table[table["step"] == run.steps["step"].max()]
    return last


def _of_laws(run: Run) -> dict[str, dict[str, float]]:
    """The largest |c| of each layer in the last step, and the largest |c - c_0| where there are more steps."""
    table = run.neurons.dropna(subset=["layer"]).set_index("law")
    first, last = table[table["step"] == table["step"].min()], _of_last_step(run, table)
    drift = (last["c"] - first["c"]).abs() if table["step"].nunique() > 1 else math.nan
    sizes = last[["layer"]].assign(c=last["c"].abs(), c_drift=drift).groupby("layer", observed=True).max()
    return {name: _by_layer(sizes.reset_index(), name) for name in ("c", "c_drift")}


def _by_layer(table: pd.DataFrame, column: str) -> dict[str, float]:
    return {str(name): float(value) for name, value in zip(table["layer"], table[column], strict=True)}


def _initialization(layer: Layer, inspection: Inspection, c: Mapping[str, float], norm: Mapping[str, float]) -> str:
    """Of the largest feature weight; and whether all neurons of the layer balance."""
    weights = [info for info in layer.parameters if info.role == FEATURES and info.name in inspection.tensors]
    if not weights:
        return ""
    largest = max(weights, key=lambda info: math.prod(info.shape))
    found = matching_initialization(inspection.tensors[largest.name])
    length, largest_c = norm.get(layer.name, 0.0), c.get(layer.name, math.inf)
    balances = math.isfinite(largest_c) and math.isfinite(length) and largest_c <= _BALANCED * length * length
    return " or ".join(["balanced"] * balances + [*found])


def weight_table(inspection: Inspection) -> pd.DataFrame:
    """One row a parameter of the last checkpoint.

    Args:
        inspection: The checkpoints.

    Returns:
        layer, parameter, role, norm; dead_rows and dead_columns (how many are zero; NaN where rows are no neurons);
        second_moment (the norm of Adam's running mean of squared gradients; NaN where the file holds none).
    """
    moments = {} if inspection.optimizer is None else inspection.optimizer.moments
    rows: list[tuple[object, ...]] = []
    for layer in inspection.structure:
        neurons = _neuron_weights(layer)
        for info in layer.parameters:
            if info.name in inspection.measured:
                found, second = inspection.measured[info.name], moments.get(info.name, {}).get("exp_avg_sq")
                dead = (found.dead_rows, found.dead_columns) if info in neurons else (math.nan, math.nan)
                moment = math.nan if second is None else measure(second).norm
                rows.append((layer.name, info.name, info.role, found.norm, *map(float, dead), moment))
    columns = ["layer", "parameter", "role", "norm", "dead_rows", "dead_columns", "second_moment"]
    return pd.DataFrame(rows, columns=columns)
