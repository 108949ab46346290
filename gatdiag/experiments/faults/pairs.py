"""Two faults at once: is one of them named, and the other once the first is repaired?

A pair counts only if each of its faults does by itself, by the bank's own yardstick (`bank.counts`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from gatdiag.experiments.faults.bank import counts, in_order, judged, trained
from gatdiag.experiments.faults.recipe import Recipe, initialized
from gatdiag.experiments.faults.tables import save
from gatdiag.experiments.faults.training import Outcome
from gatdiag.experiments.markdown import table as markdown

_SGD: Final = {"optimizer": "SGD", "lr": 0.2}
_DEEP: Final = {"layer": "gatv2", "depth": 12, "optimizer": "SGD", "lr": 0.02, "steps": 200}

PAIRS: Final[tuple[tuple[Mapping[str, dict[str, Any]], dict[str, Any]], ...]] = (
    (
        {"gradients-not-cleared": {"clears": False}, "init-unbalanced": initialized(("xavier", 1))},
        {**_DEEP, **initialized(("balanced", 1))},
    ),
    ({"lr-too-small": {"lr": 1e-6}, "dead-units": initialized(("biases", -6))}, {"layer": "gcn", "depth": 3}),
    (
        {"input-scale": {"inputs": ("scaled", 3e3)}, "output-softmax-twice": {"output": "softmax"}},
        {"layer": "sage", "depth": 4, "classes": 8, "columns": 64, **_SGD},
    ),
    (
        {"weight-decay-too-strong": {"decay": 0.3}, "depth-oversmoothing": {"depth": 32}},
        {"layer": "gcn", "depth": 3, "optimizer": "SGD", "lr": 0.5, **initialized(("he", 1))},
    ),
    (
        {"parameters-not-in-optimizer": {"optimizes": "last"}, "init-too-small": initialized(("scaled", 0.01))},
        {"layer": "sage", "depth": 4, "width": 4, "optimizer": "SGD", "lr": 0.5},
    ),
    (
        {"clipping-too-tight": {"clip": 1e-4}, "init-unbalanced": initialized(("alternating", 30))},
        {"layer": "gcn", "depth": 4, "graph": "small world", "optimizer": "SGD", "lr": 0.3},
    ),
    (
        {"input-constant": {"inputs": ("all equal", 1)}, "lr-too-large": {"lr": 3.0}},
        {"layer": "gatv2", "depth": 3, "graph": "preferential"},
    ),
    (
        {"attention-saturated": initialized(("attention", 1e4)), "weight-decay-too-strong": {"decay": 30.0}},
        {"layer": "gatv2", "depth": 4, "graph": "preferential", "optimizer": "AdamW"},
    ),
    (
        {"no-training-signal": {"labels": "all one"}, "dead-units": initialized(("biases", -8))},
        {"layer": "sage", "depth": 3, "graph": "grid", "optimizer": "SGD", "lr": 0.3},
    ),
    (
        {"depth-vanishing-gradient": {"depth": 12, "activation": "sigmoid"}, "lr-too-small": {"lr": 1e-6}},
        {"layer": "mlp", "depth": 3, "activation": "relu"},
    ),
    (
        {"parameters-without-gradient": {"activation": "detached"}, "lr-too-small": {"lr": 1e-5}},
        {"layer": "gcn", "depth": 4, "width": 6, "lr": 0.02, "steps": 150},
    ),
    (
        {"output-softmax-twice": {"output": "softmax"}, "clipping-too-tight": {"clip": 1e-4}},
        {"layer": "gatv2", "depth": 4, "classes": 8, "columns": 64, **_SGD},
    ),
    (
        {"nonfinite-operation": {"activation": "unit rows"}, "lr-too-large": {"lr": 60.0}},
        {"layer": "gcn", "depth": 3, "optimizer": "SGD", "lr": 0.5},
    ),
    (
        {"init-too-large": initialized(("normal", 3)), "weight-decay-too-strong": {"decay": 20.0}},
        {"layer": "gatv2", "depth": 3, "optimizer": "AdamW"},
    ),
    (
        {"rank-collapse": {"width": 1}, "gradients-not-cleared": {"clears": False}},
        {"layer": "mlp", "depth": 4, "width": 24, "optimizer": "momentum", "lr": 0.1},
    ),
    (
        {"input-nonfinite": {"inputs": ("NaN in rows", 1)}, "parameters-not-in-optimizer": {"optimizes": "of a copy"}},
        {"layer": "tag", "depth": 3, "graph": "tree"},
    ),
)
"""Two causes and what plants each, and the training that they are planted in."""


def run_pairs(folder: Path, jobs: int | None = None) -> pd.DataFrame:
    """Train each pair, each of its faults alone and none of them, if that was not done yet, and diagnose.

    Args:
        folder: Where the runs are kept.
        jobs: Number of processes; None: one for each core.

    Returns:
        A row for each pair: what was planted, whether that counts, the verdict on both, and the one that follows once
        the fault that it names is repaired ("" where it names neither).
    """
    return pd.DataFrame(in_order(partial(_row, folder=folder), range(len(PAIRS)), jobs))


def planted(number: int, *causes: str) -> Recipe:
    """The training of a pair with these of its faults."""
    plants, usual = PAIRS[number]
    recipe = Recipe(**usual, seed=200 + number)
    for cause in causes:
        recipe = replace(recipe, **plants[cause])
    return recipe


def _row(number: int, folder: Path) -> dict[str, Any]:
    one, other = PAIRS[number][0]
    place = folder / f"pair-{number:02}"
    outcomes: dict[tuple[str, ...], Outcome] = {
        causes: trained(planted(number, *causes), place / ("-and-".join(causes) or "repaired"))
        for causes in [(one, other), (one,), (other,), ()]
    }
    first = judged(place / f"{one}-and-{other}")["verdict"]
    rest = {one: other, other: one}.get(first)
    then = judged(place / rest)["verdict"] if rest else ""
    return {
        "planted": f"{one}, {other}",
        "verdict": first,
        "once that is repaired": then,
        "counts": all(counts(cause, outcomes[cause,], outcomes[()]) for cause in (one, other)),
        "right": {first, then} == {one, other},
    }


def save_pairs(pairs: pd.DataFrame, folder: Path) -> str:
    """Write `pairs.csv` and `pairs.md`; the page."""
    counted = pairs[pairs["counts"]]
    page = (
        "# Two faults at once: what was planted, and what the diagnosis said",
        "Written by `gatdiag faults --part pairs`. The fault that is named is repaired, the other one is left.",
        f"- Of {len(counted)} trainings with two faults: one of the two named first in "
        f"{(counted['once that is repaired'] != '').sum()}, and the other once that is repaired in "
        f"{counted['right'].sum()}.",
        markdown(pairs),
    )
    return save(folder, "pairs", pairs, page)
