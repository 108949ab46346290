"""What the names of "Taming Gradient Oversmoothing and Expansion" share: settings, trainings, what is measured."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.experiments.sweep import grid
from gatdiag.run import Run
from gatdiag.summary import layer_series

PAPER: Final = "Park, Kim, Taming Gradient Oversmoothing and Expansion in Graph Neural Networks, arXiv 2410.04824"
TRAINING: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "bias": True,
        "initialization": "default",
        "optimizer": "Adam",
        "learning_rate": 1e-3,
        "epochs": 500,
        "stop_below": 0.0,
    }
)
NETWORKS: Final = {"model": ("gcn", "gat"), "residual": (False, True), "weight_norm": (0.0, 4.0)}
FULL: Final = grid(**TRAINING, layers=(64, 128, 512), **NETWORKS)
QUICK: Final = grid(**{**TRAINING, "epochs": 60}, layers=64, **NETWORKS)
LEFT_OUT: Final = "128 and 512 layers, and 440 of 500 epochs."
SETTINGS: Final = (
    "The paper's learning rate, optimizer, width, number of epochs and form of the normalization are not known to us. "
    "Here: Adam at torch's default rate of 0.001, width 64, PyG's initial weights with biases; the layer computes with "
    "c W / ||W||_F, in all layers (`weight_norm`). Nothing was tuned."
)
BESIDE: Final = (
    "mu that goes to zero may be nothing but a gradient that vanishes; therefore the norm, and mu relative to it, are "
    "drawn beside it. mu is measured against equal rows, which is not the limit of a GCN (rows in proportion to the "
    "root of the degree): there its relative value does not go to zero even where all rows are parallel. The gradient "
    "of the loss at small outputs, on as many nodes of each class, has rows whose mean is about zero, of which "
    "relative mu is 1."
)
GROWTH: Final = (
    "gradient decades: log10 of the gradient norm at the first layer's output over that at the last but one, so that "
    "positive is expansion and negative vanishing on the way back; relative gradient mu and relative mu are of the "
    "first and of the last but one layer. At the first step, that is, of the initial weights."
)
COLUMNS: Final = (
    *("gradient_decades", "gradient_mu_decades", "relative_gradient_mu", "relative_mu"),
    *("last_train_accuracy", "test_accuracy"),
)


def smoothing(run: Run) -> dict[str, float]:
    """At the first step, how gradients grow from the last but one layer to the first, and how smooth the ends are."""
    tables = {name: layer_series(run, name) for name in _OF_RUN}
    values = {name: _at_first(table) for name, table in tables.items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        grown, mu = (np.log10(values[name][0] / values[name][-2]) for name in ("output_gradient_norm", "gradient_mu"))
    return {
        "gradient_decades": float(grown),
        "gradient_mu_decades": float(mu),
        "relative_gradient_mu": float(values["relative_gradient_mu"][0]),
        "relative_mu": float(values["relative_mu"][-2]),
    }


_OF_RUN: Final = ("output_gradient_norm", "gradient_mu", "relative_gradient_mu", "relative_mu")


def _at_first(table: pd.DataFrame) -> Any:
    return table[table["step"] == table["step"].min()].sort_values("layer")["value"].to_numpy(np.float64)


def judged_layers(results: pd.DataFrame) -> list[str]:
    """What becomes of gradients on the way back, of each network as it is and normalized."""
    said = []
    for (model, residual, layers), rows in results.groupby(["model", "residual", "layers"]):
        network = f"{'residual ' if residual else ''}{str(model).upper()} of {layers} layers"
        by_norm = {row["weight_norm"]: row for _, row in rows.sort_values("weight_norm").iterrows()}
        said += [f"{network}, {_norm(c)}: {_way_back(row)}" for c, row in by_norm.items()]
        if residual and {0.0, 4.0} <= {*by_norm}:
            free, held = (by_norm[c]["gradient_decades"] for c in (0.0, 4.0))
            less = abs(held) < abs(free)
            said.append(
                f"{network}: weight normalization {'limits' if less else 'does NOT limit'} the expansion "
                f"({free:+.1f} decades without, {held:+.1f} with c = 4)."
            )
    return said


def _norm(c: float) -> str:
    return f"c = {c:g}" if c else "not normalized"


def _way_back(row: pd.Series) -> str:
    grown, mu, relative = row["gradient_decades"], row["gradient_mu_decades"], row["relative_gradient_mu"]
    if not np.isfinite(grown):
        return "gradients of the first layer are zero or not finite."
    moved = f"on the way back mu of the gradient changes by {mu:+.1f} decades, its norm by {grown:+.1f}"
    if mu > 0:
        return f"{moved}: expansion."
    if relative > 0.5:
        return f"{moved}; relative to the norm mu is still {relative:.2f}: the norm falls, gradients vanish."
    return f"{moved}; relative to the norm mu is {relative:.2g}: gradients become alike."


def judged_training(results: pd.DataFrame) -> list[str]:
    """Which networks learned their training nodes, and whose loss is NaN or infinite."""
    said = []
    for row in results.sort_values(["model", "residual", "layers", "weight_norm"]).to_dict("records"):
        name = f"{'residual ' if row['residual'] else ''}{row['model'].upper()} of {row['layers']} layers"
        norm = _norm(row["weight_norm"])
        broken = row["loss"] is None or not np.isfinite(row["loss"])
        end = "the loss is no number" if broken else f"the loss is {row['loss']:.3g}"
        learned = "trains" if row["last_train_accuracy"] > 0.9 else "does NOT train"
        said.append(f"{name}, {norm}: {learned} ({row['last_train_accuracy']:.1%} of training nodes right, {end}).")
    return said
