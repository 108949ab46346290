"""Numbers of the tables of "Are GATs Out of Balance?", from published.csv, by the settings of their trainings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pandas as pd

FILE: Final = Path(__file__).with_name("published.csv")
HETEROPHILIC: Final = ("actor.npz", "chameleon.npz", "cornell.npz", "squirrel.npz", "texas.npz", "wisconsin.npz")
_GRAPHS: Final = {
    "CiteSeer": "CiteSeer:isolated=unmasked",
    **{name.removesuffix(".npz"): name for name in HETEROPHILIC},
}
GATS: Final = "are-gats-out-of-balance"
_PLAIN: Final = {"heads": 1, "activation": "relu", "dropout": 0.0, "weight_decay": 0.0, "share_weights": True}
VARIATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "none": {},
    "heads=8": {"heads": 8},
    "elu": {"activation": "elu"},
    "dropout=0.6": {"dropout": 0.6, "attention_dropout": 0.6},
    "weight_decay=0.0005": {"weight_decay": 5e-4},
    "share_weights=False": {"share_weights": False},
}
"""Variants of the architecture in table 3."""


@dataclass(frozen=True)
class Published:
    """A number of a paper.

    Attributes:
        where: Settings of the trainings that it is the mean of; all others may have any value.
        value: As printed; accuracies in percent.
        ci95: Half the width of its 95% confidence interval; NaN if unknown.
        column: A field of `gatdiag.experiments.experiment.Result` (``epochs`` is ``epochs_trained`` here), or a key
            returned by `reports.papers.study.Study.measure`.
        source: Where in the paper it is.
    """

    where: Mapping[str, Any]
    value: float
    ci95: float = math.nan
    column: str = "test_accuracy"
    source: str = ""


@cache
def _rows() -> pd.DataFrame:
    return pd.read_csv(FILE, dtype={"table": str}, keep_default_na=False)


def published(table: str, paper: str = GATS) -> tuple[Published, ...]:
    """The numbers of a table.

    Example:
        >>> number = published("3")[0]
        >>> number.value, number.ci95, number.where["layers"], number.where["initialization"]
        (73.0, 3.02, 5, 'xavier')
    """
    rows = _rows()
    source = table if table.startswith("figure") else f"table {table}"
    return tuple(
        Published(_settings(row), float(row["mean"]), float(row["half_width_95"] or "nan"), source=source)
        for row in rows[(rows["paper"] == paper) & (rows["table"] == table)].to_dict("records")
    )


def count_published(table: str, paper: str = GATS) -> int:
    """How many numbers of a table are known.

    Example:
        >>> count_published("5")
        6
    """
    rows = _rows()
    return int(((rows["paper"] == paper) & (rows["table"] == table)).sum())


def _settings(row: Mapping[Any, Any]) -> dict[str, Any]:
    own = {} if row["variation"] == "LipschitzNorm" else {**_PLAIN, **VARIATIONS[row["variation"]]}
    return {
        "data": _GRAPHS.get(row["data"], row["data"]),
        "model": row["model"],
        **({"optimizer": row["optimizer"]} if row["optimizer"] else {}),
        "layers": int(row["layers"]),
        "width": int(row["width"]),
        "initialization": row["initialization"],
        **own,
    }


def of_captions(values: Mapping[Any, float], names: tuple[str, ...], source: str) -> tuple[Published, ...]:
    """Numbers that are in no table: value of the varying setting, or tuple of several -> accuracy.

    Example:
        >>> of_captions({(10, "xavier"): 25.5}, ("layers", "initialization"), "caption")[0].where
        {'layers': 10, 'initialization': 'xavier'}
    """
    return tuple(
        Published(dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True)), value, source=source)
        for key, value in values.items()
    )
