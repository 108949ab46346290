"""LipschitzNorm: Tree-NeighborsMatch."""

from typing import Any

import pandas as pd

from gatdiag.experiments.reproduce.lipschitz import PAPER, variants
from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction, by_size, published
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import grid
from gatdiag.run import Run

_DEPTHS = (2, 3, 4, 5, 6, 7, 8)
_TRAINING = {"initialization": "default", "optimizer": "Adam", "learning_rate": 1e-3, "schedule": "plateau"}
_COMMON = {**_TRAINING, "stop_below": 0.0, "bias": True, "width": 32}
_LAYERS = {**_COMMON, "residual": True, "norm": "layernorm"}
_GAT = {**_LAYERS, "model": "gat", "width": 8, "heads": 4, "activation": "none"}
_NETWORKS: tuple[dict[str, Any], ...] = (
    {**_LAYERS, "model": "gcn"},
    {**_LAYERS, "model": "gin"},
    {**_COMMON, "model": "ggnn", "activation": "none"},
    _GAT,
    {**_GAT, "lipschitz": "paper"},
)
_PRINTED = {  # by depth from 2
    "ggnn": (1, 1, 1, 0.60, 0.38, 0.21, 0.16),
    "gat": (1, 1, 1, 0.41, 0.21, 0.15, 0.11),
    "gin": (1, 1, 0.77, 0.29, 0.20),
    "gcn": (1, 1, 0.70, 0.19, 0.14, 0.09, 0.08),
}


def _cells(*of_depths: tuple[int, int, int]) -> tuple[Experiment, ...]:
    """Each network on trees of some depths, with epochs and passes over the trees in an epoch."""
    return tuple(
        cell
        for network in _NETWORKS
        for depth, epochs, passes in of_depths
        for trees in [64 if depth < 4 else 1024 if depth < 7 else 2048]
        for cell in grid(
            **network, data=f"tree:depth={depth}", layers=depth + 1, trees=trees, epochs=epochs, passes=passes
        )
    )


def best(run: Run) -> dict[str, float]:
    """The highest accuracy of training."""
    return {"best_train_accuracy": float(run.steps["train_accuracy"].max())}


def _by_tree_depth(results: pd.DataFrame) -> pd.DataFrame:
    lines = variants(results.assign(norm="none"))
    return by_size(results, {"training accuracy": "best_train_accuracy"}, "depth", results["layers"] - 1, lines)


REPRODUCTION = Reproduction(
    title="Tree-NeighborsMatch: accuracy of training against the depth of the trees",
    paper=f"{PAPER}, trees with increasing depth; Alon & Yahav, On the Bottleneck of Graph Neural Networks, ICLR 2021",
    claim="Networks fit trees up to depth 3 (GCN, GIN) or 4 (GAT, GGNN) and fail beyond; the paper has GATs with "
    "LipschitzNorm beside them.",
    full=_cells((2, 50, 1000), *((depth, 500, 100) for depth in _DEPTHS[1:])),
    quick=_cells((2, 60, 20), (3, 15, 3)),
    published=published(
        {
            (f"tree:depth={depth}", name): 100 * accuracy
            for name, row in _PRINTED.items()
            for depth, accuracy in zip(_DEPTHS, row, strict=False)
        },
        *("data", "model"),
        lipschitz="none",
        column="best_train_accuracy",
        source="Alon & Yahav, their code's README",
    ),
    columns=("best_train_accuracy", "last_test_accuracy"),
    record=True,
    measured=best,
    drawings=(Drawing("accuracy_by_tree_depth", table=_by_tree_depth),),
    notes=(
        "Networks are those of the scripts of Alon & Yahav: the GAT without activation between layers, the GGNN "
        "without activation, skip connection and normalization, the GIN with batch normalization.",
        "The accuracy is that of training, measured while the network trains. An epoch is 100 passes over the trees "
        "(1000 at depth 2), after which the rate may fall; training ends after 20 epochs that are no better.",
        "What the LipschitzNorm paper measured on trees, and how it set up its GATs there, is not known to us; "
        "LipschitzNorm here is that of the paper (`lipschitz paper`) on the GAT of Alon & Yahav.",
        "From depth 6 on, the graph takes gigabytes of memory.",
    ),
)
