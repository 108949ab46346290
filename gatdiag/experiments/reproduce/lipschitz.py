"""Tables and figures of "Lipschitz Normalization for Self-Attention Layers", with the settings of its code."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from gatdiag.experiments.reproduce.reproduction import (
    Drawing,
    Reproduction,
    published_values,
    table_by_size,
    with_epochs,
)
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import grid
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series

_PAPER: Final = "Dasoulas, Scaman, Virmaux, Lipschitz Normalization for Self-Attention Layers, ICML 2021"
_SEEDS: Final = (0, 1, 2, 3, 4)
_TRAINING: Final[Mapping[str, Any]] = {
    "bias": True,
    "initialization": "default",
    "transform": "none",
    "optimizer": "Adam",
    "learning_rate": 0.005,
    "weight_decay": 5e-4,
    "schedule": "plateau",
    "epochs": 1000,
    "stop_below": 0.0,
}
DEEP_GAT: Final[Mapping[str, Any]] = {
    **_TRAINING,
    "model": "deep-gat",
    "activation": "elu",
    "dropout": 0.6,
    "attention_dropout": 0.3,
}
_NOTES: Final = (
    "The settings are those of the released scripts, since the paper's text was not available. They report the test "
    "accuracy of the last epoch (last test accuracy), without selection by validation.",
    "`lipschitz paper` divides scores as in the paper, `lipschitz code` as in the released code, which differs "
    "(another node's features in the divisor, a factor of 4, and with several heads the maxima of other nodes).",
)
LIPSCHITZ_SCRIPT: Final = (
    "As released, the depth script of LipschitzNorm never applies it, since it asks for a name that the model does not "
    "know. Whether that affects published numbers is unknown."
)


def _of_paper(name: str, where: str, *, notes: Sequence[str] = (), **fields: Any) -> Reproduction:
    return Reproduction(name=name, paper=f"{_PAPER}, {where}", notes=(*_NOTES, *notes), **fields)


def variants(results: pd.DataFrame) -> list[str]:
    """A label for model and normalization of each row."""
    rows = results[["model", "norm", "lipschitz"]].astype(str).to_numpy().tolist()
    labels = [(model, norm, mode if mode == "none" else f"LipschitzNorm ({mode})") for model, norm, mode in rows]
    return [", ".join(word for word in words if word != "none") for words in labels]


# --- accuracy against depth -------------------------------------------------------------------------------------------

_DATA: Final = ("Cora", "PubMed", "PubMed:missing=1")
_DEPTHS: Final = {"data": _DATA, "layers": (1, 5, 10, 15, 20, 25, 30, 35), "heads": 8}
_SHALLOW: Final = {**DEEP_GAT, "layers": (1, 5, 10, 15)}
_DEEP_GT: Final = {**DEEP_GAT, "model": "deep-gt", "dropout": 0.5}


def by_depth(results: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy of the last epoch against depth, one line per normalization."""
    return table_by_size(results, {"accuracy": "last_test_accuracy"}, "depth", results["layers"], variants(results))


LIPSCHITZ_DEPTH: Final = _of_paper(
    "lipschitz-depth",
    "accuracy against depth",
    title="Accuracy of deep GATs and Graph Transformers against depth, by normalization",
    claim="With LipschitzNorm, attention networks keep their accuracy with depth; others lose it.",
    full=(
        *grid(**DEEP_GAT, **_DEPTHS, lipschitz=("none", "paper", "code"), seed=_SEEDS),
        *grid(**DEEP_GAT, **_DEPTHS, norm="pairnorm", seed=_SEEDS),
        *grid(**_DEEP_GT, **_DEPTHS, lipschitz=("none", "code"), seed=_SEEDS),
        *grid(**_DEEP_GT, **_DEPTHS, norm="layernorm", seed=_SEEDS),
    ),
    quick=with_epochs(
        (*grid(**_SHALLOW, lipschitz=("none", "paper", "code")), *grid(**_SHALLOW, norm="pairnorm")), 100
    ),
    columns=("last_test_accuracy",),
    drawings=tuple(Drawing("accuracy_by_normalization", {"data": data}, table=by_depth) for data in _DATA),
    notes=(
        "The paper's accuracies by depth are only known to exist as a figure.",
        LIPSCHITZ_SCRIPT,
        "The script trains more than seven layers for 2500 epochs; here all depths have 1000, as in its README.",
    ),
)

# --- the evolution of the gradient in a GAT of 25 layers --------------------------------------------------------------


def gradient_spread(run: Run) -> dict[str, float]:
    """Gradient norms of feature weights, and log10 of the ratio of the largest to the smallest layer, over steps."""
    table = role_series(run, "gradient_norm", FEATURE)
    norms = table[np.isfinite(table["value"])].groupby("step")["value"]
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.log10(norms.max() / norms.min())
    return {
        "largest_gradient": float(norms.max().max()),
        "median_gradient": float(norms.median().median()),
        "decades_between_layers_at_first": float(decades.iloc[0]),
        "decades_between_layers": float(decades.median()),
    }


def judge_gradients(results: pd.DataFrame) -> list[str]:
    """Compare gradients with and without LipschitzNorm."""
    rows = results.drop_duplicates("lipschitz").set_index("lipschitz")
    if not {"none", "paper"} <= {*rows.index}:
        return []
    bare, normalized = rows.loc["none"], rows.loc["paper"]
    is_reproduced = (
        normalized["largest_gradient"] < bare["largest_gradient"] / 10
        and normalized["decades_between_layers"] < bare["decades_between_layers"]
    )
    sentences = [
        f"{'Reproduced' if is_reproduced else 'NOT reproduced'}: without LipschitzNorm the largest gradient norm is "
        f"{bare['largest_gradient']:.3g}, with it {normalized['largest_gradient']:.3g}; the layers are "
        f"{bare['decades_between_layers']:.2g} and {normalized['decades_between_layers']:.2g} decades apart (median)."
    ]
    accuracies = bare["last_train_accuracy"], normalized["last_train_accuracy"]
    if max(accuracies) < 0.5:
        sentences.append(
            "Neither network fits its training nodes "
            f"(accuracy {accuracies[0]:.1%} without LipschitzNorm, {accuracies[1]:.1%} with it)."
        )
    return sentences


LIPSCHITZ_GRADIENTS: Final = _of_paper(
    "lipschitz-gradients",
    "evolution of the gradient",
    title="Evolution of the gradient in a GAT of 25 layers, with and without LipschitzNorm",
    claim="Gradients of a GAT of 25 layers explode or vanish without LipschitzNorm, and do not with it.",
    full=grid(**DEEP_GAT, layers=25, heads=8, lipschitz=("none", "paper")),
    quick=with_epochs(grid(**DEEP_GAT, layers=25, lipschitz=("none", "paper")), 100),
    columns=(
        "largest_gradient",
        "median_gradient",
        "decades_between_layers_at_first",
        "decades_between_layers",
        "last_train_accuracy",
        "last_test_accuracy",
    ),
    record=True,
    every=1,
    measure=gradient_spread,
    judge=judge_gradients,
    drawings=(Drawing("gradient_evolution"), Drawing("compared_curves")),
    notes=(
        "The data set, heads and number of epochs of the paper's figure are unknown; here it is Cora.",
        "A decade is a factor of ten between the largest and the smallest gradient norm of a layer's feature "
        "weights, as the median over the recorded steps or at the first step.",
    ),
)

# --- nodes without features -------------------------------------------------------------------------------------------

_GCN: Final = {**_TRAINING, "model": "gcn", "dropout": 0.6, "norm": "none", "lipschitz": "none"}
_GAT: Final = {**DEEP_GAT, "heads": 4, "norm": "none", "lipschitz": "none"}
_PAIR: Final = {**_GAT, "norm": "pairnorm"}
_LIPSCHITZ: Final = {**_GAT, "lipschitz": "code"}
_MISSING: Final[Mapping[Experiment, float]] = {
    cell: accuracy
    for data, row in {  # (settings, depth, accuracy), as in the paper
        "Cora:missing=1": ((_GCN, 2, 58.8), (_GAT, 4, 65.3), (_PAIR, 12, 73.8), (_LIPSCHITZ, 11, 75.3)),
        "PubMed:missing=1": ((_GCN, 2, 44.9), (_GAT, 4, 63.1), (_PAIR, 12, 70.4), (_LIPSCHITZ, 15, 73.3)),
        "CiteSeer:missing=1": ((_PAIR, 10, 51.7), (_LIPSCHITZ, 9, 50.9)),
        "Cora": ((_GCN, 2, 82.5), (_GAT, 2, 82.3), (_PAIR, 4, 78.8), (_LIPSCHITZ, 5, 83.1)),
    }.items()
    for settings, layers, accuracy in row
    for cell in grid(**settings, data=data, layers=layers, seed=_SEEDS)
}
_BY: Final = ("data", "layers", "model", "norm", "lipschitz")

LIPSCHITZ_MISSING: Final = _of_paper(
    "lipschitz-missing",
    "table of missing features",
    title="Accuracy if only the training nodes have features, by normalization",
    claim="With missing features, deeper GATs are needed; with LipschitzNorm they have the highest accuracy on Cora "
    "and PubMed.",
    full=tuple(_MISSING),
    quick=with_epochs([cell for cell in _MISSING if cell.data == "Cora:missing=1" and not cell.seed], 200),
    published=published_values(
        {tuple(getattr(cell, name) for name in _BY): accuracy for cell, accuracy in _MISSING.items()},
        _BY,
        column="last_test_accuracy",
        source="table of missing features",
    ),
    columns=("last_test_accuracy", "test_accuracy"),
    notes=(
        "Depths are the paper's best. Omitted are results at unknown depths (GCN and GAT on CiteSeer, CiteSeer and "
        "PubMed with all features) and the GGNN, whose settings are unknown. Of the GCN only the depth is known; it is "
        "trained like the GATs.",
        "100 % missing: the features of all validation and test nodes are zero, on the public split.",
    ),
)

# --- Tree-NeighborsMatch ----------------------------------------------------------------------------------------------

_TREE_SETTINGS: Final = {
    "initialization": "default",
    "optimizer": "Adam",
    "learning_rate": 1e-3,
    "schedule": "plateau",
    "stop_below": 0.0,
    "bias": True,
    "width": 32,
}
_RESIDUAL: Final = {**_TREE_SETTINGS, "residual": True, "norm": "layernorm"}
_TREE_GAT: Final = {**_RESIDUAL, "model": "gat", "width": 8, "heads": 4, "activation": "none"}
_TREE_NETWORKS: Final[tuple[dict[str, Any], ...]] = (
    {**_RESIDUAL, "model": "gcn"},
    {**_RESIDUAL, "model": "gin"},
    {**_TREE_SETTINGS, "model": "ggnn", "activation": "none"},
    _TREE_GAT,
    {**_TREE_GAT, "lipschitz": "paper"},
)
_TREE_DEPTHS: Final = (2, 3, 4, 5, 6, 7, 8)
_TRAIN_ACCURACY: Final = {  # training accuracy by depth
    "ggnn": (1, 1, 1, 0.60, 0.38, 0.21, 0.16),
    "gat": (1, 1, 1, 0.41, 0.21, 0.15, 0.11),
    "gin": (1, 1, 0.77, 0.29, 0.20),
    "gcn": (1, 1, 0.70, 0.19, 0.14, 0.09, 0.08),
}


def _tree_cells(*of_depths: tuple[int, int, int]) -> tuple[Experiment, ...]:
    """Each network on trees, for each (depth, epochs, passes over the trees per epoch)."""
    return tuple(
        cell
        for network in _TREE_NETWORKS
        for depth, epochs, passes in of_depths
        for trees in [64 if depth < 4 else 1024 if depth < 7 else 2048]
        for cell in grid(
            **network, data=f"tree:depth={depth}", layers=depth + 1, trees=trees, epochs=epochs, passes=passes
        )
    )


def best_accuracy(run: Run) -> dict[str, float]:
    """The highest training accuracy of any epoch."""
    return {"best_train_accuracy": float(run.steps["train_accuracy"].max())}


def by_tree_depth(results: pd.DataFrame) -> pd.DataFrame:
    """The highest training accuracy against the depth of the trees, one line per network."""
    lines = variants(results.assign(norm="none"))
    return table_by_size(results, {"training accuracy": "best_train_accuracy"}, "depth", results["layers"] - 1, lines)


LIPSCHITZ_TREES: Final = Reproduction(
    name="lipschitz-trees",
    title="Tree-NeighborsMatch: training accuracy against the depth of the trees",
    paper=f"{_PAPER}, trees with increasing depth; Alon & Yahav, On the Bottleneck of Graph Neural Networks, ICLR 2021",
    claim="Networks fit trees up to depth 3 (GCN, GIN) or 4 (GAT, GGNN), not deeper ones; the paper compares GATs with "
    "LipschitzNorm.",
    full=_tree_cells((2, 50, 1000), *((depth, 500, 100) for depth in _TREE_DEPTHS[1:])),
    quick=_tree_cells((2, 60, 20), (3, 15, 3)),
    published=published_values(
        {
            (f"tree:depth={depth}", name): 100 * accuracy
            for name, row in _TRAIN_ACCURACY.items()
            for depth, accuracy in zip(_TREE_DEPTHS, row, strict=False)
        },
        ("data", "model"),
        lipschitz="none",
        column="best_train_accuracy",
        source="README of the code of Alon & Yahav",
    ),
    columns=("best_train_accuracy", "last_test_accuracy"),
    record=True,
    measure=best_accuracy,
    drawings=(Drawing("accuracy_by_tree_depth", table=by_tree_depth),),
    notes=(
        "The networks are those of the scripts of Alon & Yahav: the GAT has no activation between layers, the GGNN no "
        "activation, skip connection or normalization, the GIN batch normalization.",
        "The training accuracy is measured during the epoch. An epoch is 100 passes over the trees (1000 at depth 2), "
        "after which the rate may fall; training ends after 20 epochs without improvement.",
        "The results and settings of the LipschitzNorm paper on trees are unknown; here, its LipschitzNorm (`lipschitz "
        "paper`) is applied to the GAT of Alon & Yahav.",
        "From depth 6 on, the graph takes gigabytes of memory.",
    ),
)

REPRODUCTIONS: Final = (LIPSCHITZ_DEPTH, LIPSCHITZ_GRADIENTS, LIPSCHITZ_MISSING, LIPSCHITZ_TREES)
