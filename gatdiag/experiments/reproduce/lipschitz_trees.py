"""LipschitzNorm: Tree-NeighborsMatch."""

from typing import Any

import pandas as pd

from gatdiag.experiments.reproduce.lipschitz import PAPER, variants
from gatdiag.experiments.reproduce.reproduction import Drawing, Published, Reproduction
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.sweep import grid
from gatdiag.figures.accuracy import size_table
from gatdiag.run import Run

_DEPTHS = (2, 3, 4, 5, 6, 7, 8)
_TRAINING = {"initialization": "default", "optimizer": "Adam", "learning_rate": 1e-3, "schedule": "plateau"}
_LAYERS = {"bias": True, "residual": True, "norm": "layernorm"}
_MODELS: dict[str, dict[str, Any]] = {
    "gcn": {**_LAYERS, "model": "gcn", "width": 32},
    "gin": {**_LAYERS, "model": "gin", "width": 32},
    "ggnn": {"model": "ggnn", "width": 32, "bias": True, "activation": "none"},
    "gat": {**_LAYERS, "model": "gat", "width": 8, "heads": 4, "activation": "none"},
    "gat, LipschitzNorm": {
        **_LAYERS,
        "model": "gat",
        "width": 8,
        "heads": 4,
        "activation": "none",
        "lipschitz": "paper",
    },
}
_PRINTED = {  # by depth from 2
    "ggnn": (1, 1, 1, 0.60, 0.38, 0.21, 0.16),
    "gat": (1, 1, 1, 0.41, 0.21, 0.15, 0.11),
    "gin": (1, 1, 0.77, 0.29, 0.20),
    "gcn": (1, 1, 0.70, 0.19, 0.14, 0.09, 0.08),
}


def _cells(name: str, depth: int, **settings: Any) -> tuple[Experiment, ...]:
    trees = 64 if depth < 4 else 1024 if depth < 7 else 2048
    data = f"tree:depth={depth}"
    return grid(**_MODELS[name], **_TRAINING, data=data, layers=depth + 1, trees=trees, stop_below=0.0, **settings)


def best(run: Run) -> dict[str, float]:
    """The highest accuracy of training."""
    return {"best_train_accuracy": float(run.steps["train_accuracy"].max())}


def _by_tree_depth(results: pd.DataFrame) -> pd.DataFrame:
    lines = variants(results.assign(norm="none"))
    table = results.assign(variant=lines, depth=results["layers"] - 1, score="accuracy")
    return size_table(table, "depth", {"training accuracy": ["best_train_accuracy"]})


REPRODUCTION = Reproduction(
    name="lipschitz-trees",
    title="Tree-NeighborsMatch: accuracy of training against the depth of the trees",
    paper=f"{PAPER}, trees with increasing depth; Alon & Yahav, On the Bottleneck of Graph Neural Networks, ICLR 2021",
    claim="Networks fit trees up to depth 3 (GCN, GIN) or 4 (GAT, GGNN) and fail beyond; the paper has GATs with "
    "LipschitzNorm beside them.",
    full=tuple(
        cell
        for name in _MODELS
        for depth in _DEPTHS
        for cell in _cells(name, depth, epochs=50 if depth == 2 else 500, passes=1000 if depth == 2 else 100)
    ),
    quick=tuple(
        cell
        for name in _MODELS
        for depth, epochs, passes in ((2, 60, 20), (3, 15, 3))
        for cell in _cells(name, depth, epochs=epochs, passes=passes)
    ),
    left_out="depths 4 to 8, and most passes over the trees: at most 1200 at depth 2 and 45 at depth 3 in place of "
    "50000.",
    published=tuple(
        Published(
            {"data": f"tree:depth={depth}", "model": name, "lipschitz": "none"},
            100 * accuracy,
            column="best_train_accuracy",
            source="Alon & Yahav, their code's README",
        )
        for name, row in _PRINTED.items()
        for depth, accuracy in zip(_DEPTHS, row, strict=False)
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
