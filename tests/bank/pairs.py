"""Two faults at once: is one of them named, and the other once the first is repaired?

A pair counts only if each of its faults does by itself (`bank.should_count`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from reports.papers.markdown import table as markdown
from tests.bank.bank import diagnose_run, load_or_train, should_count
from tests.bank.recipe import Recipe
from tests.bank.rows import SGD, SLOW, Row, by, init, row
from tests.bank.tables import Table
from tests.bank.training import Outcome

PAIRS: Final[tuple[Row, ...]] = (
    row({"gradients-not-cleared": {"clears": False}, "init-unbalanced": init("xavier", 1)},
        layer="gatv2", depth=12, **by("SGD", 0.02), steps=200, **init("balanced", 1)),
    row({"lr-too-small": {"lr": 1e-6}, "dead-units": init("biases", -6)},
        layer="gcn", depth=3),
    row({"input-scale": {"inputs": ("scaled", 3e3)}, "output-softmax-twice": {"output": "softmax"}},
        layer="sage", depth=4, classes=8, columns=64, **SLOW),
    row({"weight-decay-too-strong": {"decay": 0.3}, "depth-oversmoothing": {"depth": 32}},
        layer="gcn", depth=3, **SGD, **init("he", 1)),
    row({"parameters-not-in-optimizer": {"optimizes": "last"}, "init-too-small": init("scaled", 0.01)},
        layer="sage", depth=4, width=4, **SGD),
    row({"clipping-too-tight": {"clip": 1e-4}, "init-unbalanced": init("alternating", 30)},
        layer="gcn", depth=4, graph="small world", **by("SGD", 0.3)),
    row({"input-constant": {"inputs": ("all equal", 1)}, "lr-too-large": {"lr": 3.0}},
        layer="gatv2", depth=3, graph="preferential"),
    row({"attention-saturated": init("attention", 1e4), "weight-decay-too-strong": {"decay": 30.0}},
        layer="gatv2", depth=4, graph="preferential", optimizer="AdamW"),
    row({"no-training-signal": {"labels": "all one"}, "dead-units": init("biases", -8)},
        layer="sage", depth=3, graph="grid", **by("SGD", 0.3)),
    row({"depth-vanishing-gradient": {"depth": 12, "activation": "sigmoid"}, "lr-too-small": {"lr": 1e-6}},
        layer="mlp", depth=3, activation="relu"),
    row({"parameters-without-gradient": {"activation": "detached"}, "lr-too-small": {"lr": 1e-5}},
        layer="gcn", depth=4, width=6, lr=0.02, steps=150),
    row({"output-softmax-twice": {"output": "softmax"}, "clipping-too-tight": {"clip": 1e-4}},
        layer="gatv2", depth=4, classes=8, columns=64, **SLOW),
    row({"nonfinite-operation": {"activation": "unit rows"}, "lr-too-large": {"lr": 60.0}},
        layer="gcn", depth=3, **SGD),
    row({"init-too-large": init("normal", 3), "weight-decay-too-strong": {"decay": 20.0}},
        layer="gatv2", depth=3, optimizer="AdamW"),
    row({"rank-collapse": {"width": 1}, "gradients-not-cleared": {"clears": False}},
        layer="mlp", depth=4, width=24, **by("momentum", 0.1)),
    row({"input-nonfinite": {"inputs": ("NaN in rows", 1)}, "parameters-not-in-optimizer": {"optimizes": "of a copy"}},
        layer="tag", depth=3, graph="tree"),
)  # fmt: skip
"""The changes that plant two faults, by cause, and the training without them."""


def make_recipe(number: int, *causes: str) -> Recipe:
    """The training of a pair, with these of its faults."""
    plants, usual = PAIRS[number]
    recipe = Recipe(**usual, seed=200 + number)
    for cause in causes:
        recipe = replace(recipe, **plants[cause])
    return recipe


def evaluate_pair(number: int, folder: Path) -> list[dict[str, Any]]:
    """Train and diagnose a pair, each of its faults alone, and the training without them; returns one row.

    ``once that is repaired`` is the verdict after the repair of the fault that was named, "" if none was.
    """
    one, other = PAIRS[number][0]
    place = folder / f"pair-{number:02}"
    outcomes: dict[tuple[str, ...], Outcome] = {
        causes: load_or_train(make_recipe(number, *causes), place / ("-and-".join(causes) or "repaired"))
        for causes in [(one, other), (one,), (other,), ()]
    }
    first = diagnose_run(place / f"{one}-and-{other}")["verdict"]
    rest = {one: other, other: one}.get(first)
    then = diagnose_run(place / rest)["verdict"] if rest else ""
    row = {
        "planted": f"{one}, {other}",
        "verdict": first,
        "once that is repaired": then,
        "counts": all(should_count(cause, outcomes[cause,], outcomes[()]) for cause in (one, other)),
        "right": {first, then} == {one, other},
    }
    return [row]


def pair_tables(pairs: pd.DataFrame) -> Iterator[Table]:
    """The verdicts on all pairs."""
    counted = pairs[pairs["counts"]]
    summary = (
        "The fault that is named is repaired, the other is left in place. "
        f"Of {len(counted)} trainings with two faults, one of the two is named first in "
        f"{(counted['once that is repaired'] != '').sum()}, and the other after its repair in "
        f"{counted['right'].sum()}."
    )
    yield Table("diagnosis/pairs", "Two faults at once: planted causes and verdicts", pairs, [summary, markdown(pairs)])
