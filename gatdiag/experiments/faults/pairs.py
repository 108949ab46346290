"""Two faults at once: is one of them named, and the other once the first is repaired?

A pair counts only if each of its faults does by itself (`bank.should_count`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.experiments.faults.bank import diagnose_run, load_or_train, should_count
from gatdiag.experiments.faults.cases import PAIRS
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import write_table
from gatdiag.experiments.faults.training import Outcome
from gatdiag.experiments.markdown import table as markdown


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


def write_pairs(pairs: pd.DataFrame, folder: Path) -> str:
    """Write `pairs.csv` and `pairs.md`; returns the Markdown."""
    return write_table(folder, "pairs", pairs, _paragraphs)


def _paragraphs(pairs: pd.DataFrame) -> tuple[str, ...]:
    counted = pairs[pairs["counts"]]
    return (
        "# Two faults at once: planted causes and verdicts",
        "Written by `gatdiag faults --part pairs`. The fault that is named is repaired, the other is left in place.",
        f"- Of {len(counted)} trainings with two faults, one of the two is named first in "
        f"{(counted['once that is repaired'] != '').sum()}, and the other after its repair in "
        f"{counted['right'].sum()}.",
        markdown(pairs),
    )
