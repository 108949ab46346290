"""What the names of "Taming Gradient Oversmoothing and Expansion" share: settings, and how networks are called."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Reproduction, shorter
from gatdiag.experiments.sweep import grid

_PAPER: Final = "Park, Kim, Taming Gradient Oversmoothing and Expansion in Graph Neural Networks, arXiv 2410.04824"
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


def of_paper(where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    """A name of the paper."""
    return Reproduction(paper=f"{_PAPER}, {where}", notes=(_SETTINGS, *notes), **stated)


def of_deep_networks(where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    """A name of the paper on GCNs and GATs with and without skips and normalization, each of which is watched."""
    cells = {"model": ("gcn", "gat"), "residual": (False, True), "weight_norm": (0.0, 4.0)}
    full = grid(**TRAINING, layers=(64, 128, 512), **cells)
    quick = shorter(grid(**TRAINING, layers=64, **cells), 60)
    return of_paper(where, full=full, quick=quick, record=True, every=1, notes=(_BESIDE, *notes), **stated)


def network(row: Mapping[Any, Any] | pd.Series) -> str:
    """A training's network, in words."""
    return f"{'residual ' if row['residual'] else ''}{row['model'].upper()} of {row['layers']} layers"


def normalization(row: Mapping[Any, Any] | pd.Series) -> str:
    """Its normalization, in words."""
    return f"c = {row['weight_norm']:g}" if row["weight_norm"] else "not normalized"
