"""Figures of "Taming Gradient Oversmoothing and Expansion": deep GCNs and GATs, and weight normalization."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.experiments.sweep import grid
from gatdiag.run import Run
from gatdiag.summary import layer_series
from reports.papers.study import Drawing, Study, with_epochs

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
    "The paper's learning rate, optimizer, width, number of epochs and form of the normalization are unknown. Here: "
    "Adam at torch's default rate of 0.001, width 64, PyG's initial weights with biases, and c W / ||W||_F as the "
    "weight of all layers (`weight_norm`). Nothing was tuned."
)
_RELATIVE_MU: Final = (
    "mu also goes to zero if the gradient vanishes; therefore the norm, and mu relative to it, are drawn, too. mu is "
    "the distance to equal rows, which are not the limit of a GCN (rows in proportion to the square root of the "
    "degree): relative mu does not go to zero even if all rows are parallel. With small outputs and equally many nodes "
    "of each class, the rows of the loss gradient have a mean of about zero, and relative mu is 1."
)


def _of_paper(name: str, where: str, *, notes: Sequence[str] = (), **fields: Any) -> Study:
    return Study(name=name, paper=f"{_PAPER}, {where}", notes=(_SETTINGS, *notes), **fields)


def _of_deep_networks(name: str, where: str, *, notes: Sequence[str] = (), **fields: Any) -> Study:
    """A figure of recorded GCNs and GATs with and without skips and weight normalization."""
    cells = {"model": ("gcn", "gat"), "residual": (False, True), "weight_norm": (0.0, 4.0)}
    full = grid(**TRAINING, layers=(64, 128, 512), **cells)
    quick = with_epochs(grid(**TRAINING, layers=64, **cells), 60)
    return _of_paper(name, where, full=full, quick=quick, record=True, every=1, notes=(_RELATIVE_MU, *notes), **fields)


def _label(row: Mapping[Any, Any] | pd.Series) -> str:
    return f"{'residual ' if row['residual'] else ''}{row['model'].upper()} of {row['layers']} layers"


def _label_with_c(row: Mapping[Any, Any] | pd.Series) -> str:
    return f"{_label(row)}, " + (f"c = {row['weight_norm']:g}" if row["weight_norm"] else "not normalized")


# --- mu against the layer ---------------------------------------------------------------------------------------------


def smoothing(run: Run) -> dict[str, float]:
    """Growth of gradients from the second-to-last layer to the first, and smoothness of both, at the first step."""
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


def judge_layers(results: pd.DataFrame) -> list[str]:
    """Describe the gradients of each network in the backward pass, with and without normalization."""
    sentences = []
    for (_, residual, _), rows in results.groupby(["model", "residual", "layers"]):
        by_norm = {row["weight_norm"]: row for _, row in rows.sort_values("weight_norm").iterrows()}
        sentences += [f"{_label_with_c(row)}: {_describe_backward(row)}" for row in by_norm.values()]
        if residual and {0.0, 4.0} <= {*by_norm}:
            without, with_norm = (by_norm[c]["gradient_decades"] for c in (0.0, 4.0))
            limits = "limits" if abs(with_norm) < abs(without) else "does NOT limit"
            sentences.append(
                f"{_label(by_norm[0.0])}: weight normalization {limits} the expansion"
                f" ({without:+.1f} decades without, {with_norm:+.1f} with c = 4)."
            )
    return sentences


def _describe_backward(row: pd.Series) -> str:
    grown, mu, relative = row["gradient_decades"], row["gradient_mu_decades"], row["relative_gradient_mu"]
    if not np.isfinite(grown):
        return "gradients of the first layer are zero or not finite."
    change = f"in the backward pass, mu of the gradient changes by {mu:+.1f} decades and its norm by {grown:+.1f}"
    if mu > 0:
        return f"{change}: expansion."
    if relative > 0.5:
        return f"{change}; relative to the norm, mu is still {relative:.2f}: gradients vanish."
    return f"{change}; relative to the norm, mu is {relative:.2g}: gradients become alike."


TAMING_LAYERS: Final = _of_deep_networks(
    "taming-layers",
    "representation and gradient similarity by layer",
    title="mu of outputs and of gradients against the layer, with and without weight normalization",
    claim="Gradients of deep GCNs and GATs become alike over the nodes (mu falls in the backward pass), those of "
    "residual networks expand; weight normalization limits the expansion.",
    columns=(
        "gradient_decades",
        "gradient_mu_decades",
        "relative_gradient_mu",
        "relative_mu",
        "last_train_accuracy",
        "test_accuracy",
    ),
    measure=smoothing,
    judge=judge_layers,
    drawings=(Drawing("smoothing_by_layer"),),
    notes=(
        "gradient decades: log10 of the ratio of the gradient norms at the outputs of the first and the second-to-last "
        "layer; positive is expansion, negative vanishing in the backward pass. relative gradient mu is that of the "
        "first layer, relative mu that of the second-to-last. All are of the first step, that is, of the initial "
        "weights.",
    ),
)

# --- mu over training -------------------------------------------------------------------------------------------------


def judge_training(results: pd.DataFrame) -> list[str]:
    """Which networks fit their training nodes, and whose loss is NaN or infinite."""
    sentences = []
    for row in results.sort_values(["model", "residual", "layers", "weight_norm"]).to_dict("records"):
        is_finite = row["loss"] is not None and np.isfinite(row["loss"])
        loss = f"{row['loss']:.3g}" if is_finite else "NaN or infinite"
        accuracy = row["last_train_accuracy"]
        outcome = "trains" if accuracy > 0.9 else "does NOT train"
        sentences.append(f"{_label_with_c(row)}: {outcome} (training accuracy {accuracy:.1%}, loss {loss}).")
    return sentences


TAMING_TRAINING: Final = _of_deep_networks(
    "taming-training",
    "similarity and accuracy during training",
    title="mu of outputs and of gradients over training, with and without weight normalization",
    claim="A deep residual GAT without normalization ends in NaN; weight normalization with c = 4 trains a residual "
    "GCN of 512 layers.",
    columns=("loss", "last_train_accuracy", "test_accuracy"),
    judge=judge_training,
    drawings=(Drawing("smoothing_over_training"), Drawing("compared_curves")),
)

STUDIES: Final = (TAMING_LAYERS, TAMING_TRAINING)
