"""What the names of "Lipschitz Normalization for Self-Attention Layers" share: settings of its code, and a figure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from gatdiag.experiments.reproduce.reproduction import Reproduction, by_size

PAPER: Final = "Dasoulas, Scaman, Virmaux, Lipschitz Normalization for Self-Attention Layers, ICML 2021"
SEEDS: Final = (0, 1, 2, 3, 4)
TRAINING: Final[Mapping[str, Any]] = MappingProxyType(
    {
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
)
DEEP_GAT: Final[Mapping[str, Any]] = MappingProxyType(
    {**TRAINING, "model": "deep-gat", "activation": "elu", "dropout": 0.6, "attention_dropout": 0.3}
)
_NOTES: Final = (
    "Settings are those of the released scripts: the paper's text was not available to us. They report the test "
    "accuracy of the last epoch (last test accuracy), without selection by validation.",
    "lipschitz paper divides scores as the paper has it, lipschitz code as the released code does, which differs "
    "(another node's features in the divisor, a factor of 4, and with several heads maxima of other nodes).",
)


def of_paper(where: str, *, notes: Sequence[str] = (), **stated: Any) -> Reproduction:
    """A name of the paper."""
    return Reproduction(paper=f"{PAPER}, {where}", notes=(*_NOTES, *notes), **stated)


def by_depth(results: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy of the last epoch against depth, a line a normalization."""
    return by_size(results, {"accuracy": "last_test_accuracy"}, "depth", results["layers"], variants(results))


def variants(results: pd.DataFrame) -> list[str]:
    """Model and normalization of each row, in words."""
    rows = results[["model", "norm", "lipschitz"]].astype(str).to_numpy().tolist()
    named = [(model, norm, mode if mode == "none" else f"LipschitzNorm ({mode})") for model, norm, mode in rows]
    return [", ".join(word for word in words if word != "none") for words in named]
