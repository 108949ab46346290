"""Gradient oversmoothing and expansion: mu of outputs and gradients over training."""

import numpy as np
import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Drawing
from gatdiag.experiments.reproduce.taming import network, normalization, of_deep_networks


def judged(results: pd.DataFrame) -> list[str]:
    """Which networks learned their training nodes, and whose loss is NaN or infinite."""
    said = []
    for row in results.sort_values(["model", "residual", "layers", "weight_norm"]).to_dict("records"):
        broken = row["loss"] is None or not np.isfinite(row["loss"])
        end = "the loss is NaN or infinite" if broken else f"the loss is {row['loss']:.3g}"
        learned = "trains" if row["last_train_accuracy"] > 0.9 else "does NOT train"
        right = f"{row['last_train_accuracy']:.1%} of training nodes right"
        said.append(f"{network(row)}, {normalization(row)}: {learned} ({right}, {end}).")
    return said


REPRODUCTION = of_deep_networks(
    "similarity and accuracy during training",
    title="mu of outputs and of gradients over training, with and without weight normalization",
    claim="A deep residual GAT without normalization ends in NaN; weight normalization with c = 4 trains a residual "
    "GCN of 512 layers.",
    columns=("loss", "last_train_accuracy", "test_accuracy"),
    judged=judged,
    drawings=(Drawing("smoothing_over_training"), Drawing("compared_curves")),
)
