"""The last checkpoint of an inspection: one row per layer for a terminal, one per parameter for `gatdiag.diagnosis`."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from torch import Tensor

from gatdiag.checkpoint.initialization import matching_initialization
from gatdiag.checkpoint.inspection import Inspection
from gatdiag.checkpoint.measures import dead
from gatdiag.checkpoint.opening import Checkpoint
from gatdiag.run import Run
from gatdiag.structure import Layer, ParameterInfo
from gatdiag.summary import ATTENTION, FEATURES, layer_series, neuron_series, role_series

_TABLES: Final = ("Embedding", "EmbeddingBag")  # rows are entries, of which that of the padding is zero by intent
_BALANCED: Final = 1e-6  # of |c| to the squared norm of a whole layer: the rounding of single precision
_COMPUTED_FROM: Final = re.compile(r"(^|\.)parametrizations\.|_orig$|_[gv]$")  # tensors that make up a weight


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
        "norm": role_series(run, "norm", FEATURES),
        "spectral_norm": role_series(run, "spectral_norm", FEATURES),
        "c": neuron_series(run, "c", "largest"),
        "c_drift": _drift(run),
        "changed": role_series(run, "changed_fraction_005", FEATURES),
        "changed_attention": role_series(run, "changed_fraction_005", ATTENTION),
        "unchanged": role_series(run, "unchanged_fraction", FEATURES),
        "relative_gradient": role_series(run, "relative_gradient_norm", FEATURES),
        "relative_mu": layer_series(run, "relative_mu"),
    }
    table = pd.DataFrame({"kind": {layer.name: layer.kind for layer in inspection.structure}})
    for name, values in series.items():
        table[name] = values[values["step"] == _last_step(run)].set_index("layer")["value"].astype(np.float64)
    table["remembered_gradient"] = _remembered(weight_table(inspection))
    computed = [any(_COMPUTED_FROM.search(info.name) for info in _features(layer)) for layer in inspection.structure]
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
        second_moment: the sum of the squared gradients that Adam remembers, sum v / (1 - beta2^t) (NaN where the file
        holds none).
    """
    run, tensors = inspection.run, inspection.last.tensors
    table = run.parameters[run.parameters["step"] == _last_step(run)]
    norms = dict(zip(table["parameter"], table["norm"], strict=True))
    rows: list[tuple[object, ...]] = []
    for layer in inspection.structure:
        for info in layer.parameters:
            if info.name in tensors:
                rows_are_neurons = info in _features(layer) and layer.kind not in _TABLES and not _is_part(info)
                zeros = map(float, dead(tensors[info.name])) if rows_are_neurons else (math.nan, math.nan)
                second = _second_moment(inspection.last, info.name)
                rows.append((layer.name, info.name, info.role, float(norms[info.name]), *zeros, second))
    columns = ["layer", "parameter", "role", "norm", "dead_rows", "dead_columns", "second_moment"]
    return pd.DataFrame(rows, columns=columns)


def _features(layer: Layer) -> list[ParameterInfo]:
    return [info for info in layer.parameters if info.role == FEATURES]


def _is_part(info: ParameterInfo) -> bool:
    """True for what a parametrization computes a weight from."""
    return "parametrizations." in info.name


def _last_step(run: Run) -> int:
    return int(run.steps["step"].max())


def _drift(run: Run) -> pd.DataFrame:
    """The largest |c - c_0| of each layer; NaN where there is one step alone."""
    c = run.neurons.set_index("law")
    first, last = (c[c["step"] == step] for step in (c["step"].min(), _last_step(run)))
    drift = (last["c"] - first["c"]).abs().where(last["step"] > c["step"].min())
    return last[["step", "layer"]].assign(value=drift).groupby(["step", "layer"], observed=True, as_index=False).max()


def _remembered(weights: pd.DataFrame) -> "pd.Series[float]":
    """sqrt(sum v / (1 - beta2^t)) / ||W|| of each layer's feature weights."""
    found = {}
    for layer, table in weights[weights["role"] == FEATURES].groupby("layer"):
        moment, square = table["second_moment"].sum(skipna=False), (table["norm"] ** 2).sum()
        found[layer] = math.sqrt(moment / square) if moment >= 0 and square > 0 else math.nan
    return pd.Series(found, dtype=np.float64)


def _second_moment(checkpoint: Checkpoint, name: str) -> float:
    """Of Adam, without the bias towards zero of the first steps."""
    if checkpoint.optimizer is None:
        return math.nan
    state = checkpoint.optimizer.moments.get(name, {})
    square, step = state.get("exp_avg_sq"), state.get("step")
    decays = {_decay(group) for group in checkpoint.optimizer.groups}
    if square is None or step is None or step.numel() != 1 or len(decays) != 1:
        return math.nan
    kept = 1 - decays.pop() ** float(step)
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
