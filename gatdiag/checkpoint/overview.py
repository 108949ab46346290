"""The table of an inspection's last checkpoint, with one row per layer."""

import math

import numpy as np
import pandas as pd

from gatdiag.checkpoint.inspection import Inspection
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.structure import Layer, ParameterInfo
from gatdiag.structure.adapters import weight_name
from gatdiag.summary import layer_series, neuron_series, role_series


def layer_table(inspection: Inspection) -> pd.DataFrame:
    """One row per layer of the last checkpoint.

    Args:
        inspection: Result of `gatdiag.checkpoint.inspect`.

    Returns:
        Columns, NaN where not measured:

        - layer, kind
        - norm (Frobenius), spectral_norm (largest): of feature weights; NaN for weights computed from other parameters
        - c, c_drift: largest |c| and |c - c_0| of its neurons
        - changed: share of feature weights of at least 1e-4 that changed by more than 5%
        - changed_attention: share of attention vector entries that changed by more than 0.05
        - unchanged, relative_gradient: of feature weights
        - relative_mu: of the output
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
    computed = [any(weight_name(i.name) != i.name for i in _features(layer)) for layer in inspection.structure]
    table.loc[computed, ["norm", "spectral_norm"]] = math.nan
    return table.rename_axis("layer").reset_index()


def _features(layer: Layer) -> list[ParameterInfo]:
    return [info for info in layer.parameters if info.role == FEATURE]


def _last_step(run: Run) -> int:
    return int(run.steps["step"].max())


def _drift(run: Run) -> pd.DataFrame:
    """The largest |c - c_0| of each layer; NaN if there is only one step."""
    c = run.neurons.set_index("law")
    first, last = (c[c["step"] == step] for step in (c["step"].min(), _last_step(run)))
    drift = (last["c"] - first["c"]).abs().where(last["step"] > c["step"].min())
    return last[["step", "layer"]].assign(value=drift).groupby(["step", "layer"], observed=True, as_index=False).max()
