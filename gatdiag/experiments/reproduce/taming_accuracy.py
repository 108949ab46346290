"""Gradient expansion: accuracy against c of the weight normalization."""

import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing, by_size, shorter
from gatdiag.experiments.reproduce.taming import TRAINING, of_paper
from gatdiag.experiments.sweep import grid

_DATA = ("Cora", "CiteSeer", "chameleon.npz", "squirrel.npz")
_RESIDUAL = {**TRAINING, "residual": True}
_C = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def _by_depth(results: pd.DataFrame) -> pd.DataFrame:
    rows = results[["model", "weight_norm"]].to_numpy().tolist()
    lines = [f"{model}, c = {c:g}" if c else f"{model}, no normalization" for model, c in rows]
    return by_size(results, {"accuracy": "test_accuracy"}, "depth", results["layers"], lines)


REPRODUCTION = of_paper(
    "accuracy by c",
    title="Accuracy of deep residual networks against c of the weight normalization",
    claim="A residual GCN of 512 layers trains with c = 4 without underfitting; a small c leaves each layer "
    "little to express, so that more of them are needed.",
    full=grid(**_RESIDUAL, data=_DATA, model=("gcn", "gat"), layers=(64, 128, 512), weight_norm=_C, seed=(0, 1, 2)),
    quick=shorter(grid(**_RESIDUAL, model="gcn", layers=(8, 32), weight_norm=_C[:-1]), 100),
    columns=("test_accuracy", "last_train_accuracy"),
    drawings=tuple(Drawing("accuracy_by_normalization", {"data": data}, table=_by_depth) for data in _DATA),
    notes=("The paper's accuracies are not known to us.",),
)
