"""The names of "Taming Gradient Oversmoothing and Expansion": deep GCNs and GATs, and weight normalization."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction, by_size, shorter
from gatdiag.experiments.sweep import grid
from gatdiag.run import Run
from gatdiag.summary import layer_series

_PAPER: Final = "Park, Kim, Taming Gradient Oversmoothing and Expansion in Graph Neural Networks, arXiv 2410.04824"
TRAINING: Final[Mapping[str, Any]] = {
    "bias": True,
    "initialization": "default",
    "optimizer": "Adam",
    "learning_rate": 1e-3,
    "epochs": 500,
    "stop_below": 0.0,
}
_SETTINGS: Final = (
    "The paper's learning rate, optimizer, width, number of epochs and form of the normalization are not known to us. "
    "Here: Adam at torch's default rate of 0.001, width 64, PyG's initial weights with biases; the layer computes with "
    "c W / ||W||_F, in all layers (`weight_norm`). Nothing was tuned."
)
_BESIDE: Final = (
    "mu that goes to zero may be nothing but a gradient that vanishes; therefore the norm, and mu relative to it, are "
    "drawn beside it. mu is measured against equal rows, which is not the limit of a GCN (rows in proportion to the "
    "root of the degree): there its relative value does not go to zero even where all rows are parallel. The gradient "
    "of the loss at small outputs, on as many nodes of each class, has rows whose mean is about zero, of which "
    "relative mu is 1."
)


def _of_paper(name: str, where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    return Reproduction(name=name, paper=f"{_PAPER}, {where}", notes=(_SETTINGS, *notes), **stated)


def _of_deep_networks(name: str, where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    """Of GCNs and GATs with and without skips and normalization, each of which is watched."""
    cells = {"model": ("gcn", "gat"), "residual": (False, True), "weight_norm": (0.0, 4.0)}
    full = grid(**TRAINING, layers=(64, 128, 512), **cells)
    quick = shorter(grid(**TRAINING, layers=64, **cells), 60)
    return _of_paper(name, where, full=full, quick=quick, record=True, every=1, notes=(_BESIDE, *notes), **stated)


def _network(row: Mapping[Any, Any] | pd.Series) -> str:
    return f"{'residual ' if row['residual'] else ''}{row['model'].upper()} of {row['layers']} layers"


def _normalization(row: Mapping[Any, Any] | pd.Series) -> str:
    return f"c = {row['weight_norm']:g}" if row["weight_norm"] else "not normalized"


# --- accuracy against c -----------------------------------------------------------------------------------------------

_RESIDUAL: Final = {**TRAINING, "residual": True}
_DATA: Final = ("Cora", "CiteSeer", "chameleon.npz", "squirrel.npz")
_C: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def by_depth(results: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy against depth, a line for each model and c."""
    rows = results[["model", "weight_norm"]].to_numpy().tolist()
    lines = [f"{model}, c = {c:g}" if c else f"{model}, no normalization" for model, c in rows]
    return by_size(results, {"accuracy": "test_accuracy"}, "depth", results["layers"], lines)


TAMING_ACCURACY: Final = _of_paper(
    "taming-accuracy",
    "accuracy by c",
    title="Accuracy of deep residual networks against c of the weight normalization",
    claim="A residual GCN of 512 layers trains with c = 4 without underfitting; a small c leaves each layer little to "
    "express, so that more of them are needed.",
    full=grid(**_RESIDUAL, data=_DATA, model=("gcn", "gat"), layers=(64, 128, 512), weight_norm=_C, seed=(0, 1, 2)),
    quick=shorter(grid(**_RESIDUAL, model="gcn", layers=(8, 32), weight_norm=_C[:-1]), 100),
    columns=("test_accuracy", "last_train_accuracy"),
    drawings=tuple(Drawing("accuracy_by_normalization", {"data": data}, table=by_depth) for data in _DATA),
    notes=("The paper's accuracies are not known to us.",),
)

# --- mu against the layer ---------------------------------------------------------------------------------------------


def smoothing(run: Run) -> dict[str, float]:
    """At the first step, how gradients grow from the last but one layer to the first, and how smooth the ends are."""
    norm, mu, relative_gradient_mu, relative_mu = (
        _at_first(layer_series(run, name))
        for name in ("output_gradient_norm", "gradient_mu", "relative_gradient_mu", "relative_mu")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "gradient_decades": float(np.log10(norm[0] / norm[-2])),
            "gradient_mu_decades": float(np.log10(mu[0] / mu[-2])),
            "relative_gradient_mu": float(relative_gradient_mu[0]),
            "relative_mu": float(relative_mu[-2]),
        }


def _at_first(table: pd.DataFrame) -> Any:
    return table[table["step"] == table["step"].min()].sort_values("layer")["value"].to_numpy(np.float64)


def judged_layers(results: pd.DataFrame) -> list[str]:
    """What becomes of gradients on the way back, of each network as it is and normalized."""
    said = []
    for (_, residual, _), rows in results.groupby(["model", "residual", "layers"]):
        by_norm = {row["weight_norm"]: row for _, row in rows.sort_values("weight_norm").iterrows()}
        said += [f"{_network(row)}, {_normalization(row)}: {_way_back(row)}" for row in by_norm.values()]
        if residual and {0.0, 4.0} <= {*by_norm}:
            free, held = (by_norm[c]["gradient_decades"] for c in (0.0, 4.0))
            limits = "limits" if abs(held) < abs(free) else "does NOT limit"
            said.append(
                f"{_network(by_norm[0.0])}: weight normalization {limits} the expansion"
                f" ({free:+.1f} decades without, {held:+.1f} with c = 4)."
            )
    return said


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


TAMING_LAYERS: Final = _of_deep_networks(
    "taming-layers",
    "representation and gradient similarity by layer",
    title="mu of outputs and of gradients against the layer, with and without weight normalization",
    claim="Gradients of deep GCNs and GATs become alike over the nodes (mu falls on the way back), those of residual "
    "ones expand; weight normalization limits the expansion.",
    columns=(
        *("gradient_decades", "gradient_mu_decades", "relative_gradient_mu", "relative_mu"),
        *("last_train_accuracy", "test_accuracy"),
    ),
    measured=smoothing,
    judged=judged_layers,
    drawings=(Drawing("smoothing_by_layer"),),
    notes=(
        "gradient decades: log10 of the gradient norm at the first layer's output over that at the last but one, so "
        "that positive is expansion and negative vanishing on the way back; relative gradient mu and relative mu are "
        "of the first and of the last but one layer. At the first step, that is, of the initial weights.",
    ),
)

# --- mu over training -------------------------------------------------------------------------------------------------


def judged_training(results: pd.DataFrame) -> list[str]:
    """Which networks learned their training nodes, and whose loss is NaN or infinite."""
    said = []
    for row in results.sort_values(["model", "residual", "layers", "weight_norm"]).to_dict("records"):
        broken = row["loss"] is None or not np.isfinite(row["loss"])
        end = "the loss is NaN or infinite" if broken else f"the loss is {row['loss']:.3g}"
        learned = "trains" if row["last_train_accuracy"] > 0.9 else "does NOT train"
        right = f"{row['last_train_accuracy']:.1%} of training nodes right"
        said.append(f"{_network(row)}, {_normalization(row)}: {learned} ({right}, {end}).")
    return said


TAMING_TRAINING: Final = _of_deep_networks(
    "taming-training",
    "similarity and accuracy during training",
    title="mu of outputs and of gradients over training, with and without weight normalization",
    claim="A deep residual GAT without normalization ends in NaN; weight normalization with c = 4 trains a residual "
    "GCN of 512 layers.",
    columns=("loss", "last_train_accuracy", "test_accuracy"),
    judged=judged_training,
    drawings=(Drawing("smoothing_over_training"), Drawing("compared_curves")),
)

REPRODUCTIONS: Final = (TAMING_ACCURACY, TAMING_LAYERS, TAMING_TRAINING)
