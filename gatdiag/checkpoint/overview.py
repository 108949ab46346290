"""The last checkpoint of an inspection: one row per layer for a terminal, one per parameter for `gatdiag.diagnosis`."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from torch import Tensor

from gatdiag.checkpoint.initialization import matching_initialization
from gatdiag.checkpoint.inspection import Inspection
from gatdiag.checkpoint.measures import dead, measure
from gatdiag.checkpoint.opening import Checkpoint
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.structure import Layer, ParameterInfo
from gatdiag.structure.adapters import weight_name
from gatdiag.summary import layer_series, neuron_series, role_series

_TABLES: Final = ("Embedding", "EmbeddingBag")  # rows are entries, of which that of the padding is zero by intent
_BALANCED: Final = 1e-6  # of |c| to the squared norm of a whole layer: the rounding of single precision


def layer_table(inspection: Inspection) -> pd.DataFrame:
    """One row a layer.

    Args:
        inspection: The checkpoints.

    Returns:
        NaN where something was not measured. Of feature weights: norm (Frobenius) and spectral_norm (the largest), NaN
        where weights are computed from what is stored; changed (share of those of at least 1e-4 that changed by more
        than 5 %), unchanged, relative_gradient, and remembered_gradient, the same of the gradients that Adam remembers.
        changed_attention: share of attention vectors that moved by more than 0.05. relative_mu: of the output. c and
        c_drift: largest |c| and |c - c_0| of its neurons. initialization: whose distribution the largest weight
        has, and "balanced" if each neuron is; "" if none. Before all these layer and kind.
    """
    run = inspection.run
    series = {
        "norm": role_series(run, "norm", FEATURE),
        "spectral_norm": role_series(run, "spectral_norm", FEATURE),
        "c": neuron_series(run, "c", "largest"),
        "c_drift": _drift(run),
        "changed": role_series(run, "changed_fraction_005", FEATURE),
        "changed_attention": role_series(run, "changed_fraction_005", ATTENTION),
        "unchanged": role_series(run, "unchanged_fraction", FEATURE),
        "relative_gradient": role_series(run, "relative_gradient_norm", FEATURE),
        "relative_mu": layer_series(run, "relative_mu"),
    }
    table = pd.DataFrame({"kind": {layer.name: layer.kind for layer in inspection.structure}})
    for name, values in series.items():
        table[name] = values[values["step"] == _last_step(run)].set_index("layer")["value"].astype(np.float64)
    table["remembered_gradient"] = [
        _remembered(layer, inspection.last, norm)
        for layer, norm in zip(inspection.structure, table["norm"], strict=True)
    ]
    computed = [any(weight_name(i.name) != i.name for i in _features(layer)) for layer in inspection.structure]
    table.loc[computed, ["norm", "spectral_norm"]] = math.nan
    table["initialization"] = [
        _initialization(layer, inspection.last.tensors, c, norm)
        for layer, c, norm in zip(inspection.structure, table["c"], table["norm"], strict=True)
    ]
    return table.rename_axis("layer").reset_index()


def weight_table(inspection: Inspection) -> pd.DataFrame:
    """One row a parameter.

    Args:
        inspection: The checkpoints.

    Returns:
        layer, parameter, role, norm; dead_rows and dead_columns (how many are zero; NaN where rows are no neurons);
        second_moment (the norm of Adam's running mean of squared gradients; NaN where the file holds none).
    """
    run, tensors, optimizer = inspection.run, inspection.last.tensors, inspection.last.optimizer
    table = run.parameters[run.parameters["step"] == _last_step(run)]
    norms = dict(zip(table["parameter"], table["norm"], strict=True))
    moments = {} if optimizer is None else optimizer.moments
    rows: list[tuple[object, ...]] = []
    for layer in inspection.structure:
        for info in layer.parameters:
            if info.name in tensors:
                is_part = "parametrizations." in info.name  # of what a weight is computed from
                rows_are_neurons = info in _features(layer) and layer.kind not in _TABLES and not is_part
                zeros = map(float, dead(tensors[info.name])) if rows_are_neurons else (math.nan, math.nan)
                second = moments.get(info.name, {}).get("exp_avg_sq")
                moment = math.nan if second is None else measure(second)["norm"]
                rows.append((layer.name, info.name, info.role, float(norms[info.name]), *zeros, moment))
    columns = ["layer", "parameter", "role", "norm", "dead_rows", "dead_columns", "second_moment"]
    return pd.DataFrame(rows, columns=columns)


def _features(layer: Layer) -> list[ParameterInfo]:
    return [info for info in layer.parameters if info.role == FEATURE]


def _last_step(run: Run) -> int:
    return int(run.steps["step"].max())


def _drift(run: Run) -> pd.DataFrame:
    """The largest |c - c_0| of each layer; NaN where there is one step alone."""
    c = run.neurons.set_index("law")
    first, last = (c[c["step"] == step] for step in (c["step"].min(), _last_step(run)))
    drift = (last["c"] - first["c"]).abs().where(last["step"] > c["step"].min())
    return last[["step", "layer"]].assign(value=drift).groupby(["step", "layer"], observed=True, as_index=False).max()


def _remembered(layer: Layer, checkpoint: Checkpoint, norm: float) -> float:
    """NaN without Adam's second moment of every feature weight, or where its settings are not in the file."""
    optimizer = checkpoint.optimizer
    decays = set() if optimizer is None else {_decay(group) for group in optimizer.groups}
    if optimizer is None or len(decays) != 1:
        return math.nan
    (decay,) = decays
    names = [info.name for info in _features(layer) if info.name in checkpoint.tensors]
    squares = sum(_mean_square(optimizer.moments.get(name, {}), decay) for name in names)
    return math.sqrt(squares) / norm if norm > 0 and squares >= 0 else math.nan


def _mean_square(state: Mapping[str, Tensor], decay: float) -> float:
    """Of all entries of a gradient together, without the bias towards zero of the first steps."""
    square, step = state.get("exp_avg_sq"), state.get("step")
    if square is None or step is None or step.numel() != 1 or not square.is_floating_point():
        return math.nan
    kept = 1 - decay ** float(step)
    return float(square.double().sum()) / kept if kept > 0 else math.nan


def _decay(group: Mapping[str, Any]) -> float:
    """beta2; NaN where there is none, or none that makes an average."""
    match group.get("betas"):
        case [_, float(decay)] if 0 <= decay < 1:
            return decay
    return math.nan


def _initialization(layer: Layer, tensors: Mapping[str, Tensor], c: float, norm: float) -> str:
    """Of the largest feature weight; and whether all neurons of the layer balance."""
    weights = [tensors[info.name] for info in _features(layer) if info.name in tensors]
    if not weights:
        return ""
    balances = math.isfinite(norm) and abs(c) <= _BALANCED * norm * norm
    return " or ".join(["balanced"] * balances + [*matching_initialization(max(weights, key=Tensor.numel))])
