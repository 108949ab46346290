"""Gradient expansion: accuracy against c of the weight normalization."""

import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing, Reproduction
from gatdiag.experiments.reproduce.taming import PAPER, SETTINGS, TRAINING
from gatdiag.experiments.sweep import grid
from gatdiag.figures.accuracy import size_table

_DATA = ("Cora", "CiteSeer", "chameleon.npz", "squirrel.npz")


def _by_depth(results: pd.DataFrame) -> pd.DataFrame:
    rows = results[["model", "weight_norm"]].to_numpy().tolist()
    lines = [f"{model}, c = {c:g}" if c else f"{model}, no normalization" for model, c in rows]
    table = results.rename(columns={"layers": "depth", "test_accuracy": "accuracy_test"})
    return size_table(table.assign(variant=lines, score="accuracy"), "depth", {"accuracy": ["accuracy_test"]})


REPRODUCTION = Reproduction(
    name="taming-accuracy",
    title="Accuracy of deep residual networks against c of the weight normalization",
    paper=f"{PAPER}, accuracy by c",
    claim="A residual GCN of 512 layers trains with c = 4 without underfitting; a small c leaves each layer "
    "little to express, so that more of them are needed.",
    full=grid(
        **TRAINING,
        data=_DATA,
        model=("gcn", "gat"),
        residual=True,
        layers=(64, 128, 512),
        weight_norm=(0.0, 0.5, 1.0, 2.0, 4.0, 8.0),
        seed=(0, 1, 2),
    ),
    quick=grid(
        **{**TRAINING, "epochs": 100}, model="gcn", residual=True, layers=(8, 32), weight_norm=(0.0, 0.5, 1.0, 2.0, 4.0)
    ),
    left_out="64, 128 and 512 layers (8 and 32 in their place), c = 8, residual GATs, all graphs but Cora, seeds 1 and "
    "2, and 400 of 500 epochs.",
    columns=("test_accuracy", "last_train_accuracy"),
    drawings=tuple(Drawing("accuracy_by_normalization", {"data": data}, table=_by_depth) for data in _DATA),
    notes=(SETTINGS, "The paper's accuracies are not known to us."),
)
