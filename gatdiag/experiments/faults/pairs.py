"""Two faults at once: is one of them named, and the other once the first is repaired?

A pair counts only if each of its faults does by itself, by the bank's own yardstick (`bank.counts`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.experiments.faults.bank import counts, judged, trained
from gatdiag.experiments.faults.cases import PAIRS
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import save
from gatdiag.experiments.faults.training import Outcome
from gatdiag.experiments.markdown import table as markdown


def planted(number: int, *causes: str) -> Recipe:
    """The training of a pair with these of its faults."""
    plants, usual = PAIRS[number]
    recipe = Recipe(**usual, seed=200 + number)
    for cause in causes:
        recipe = replace(recipe, **plants[cause])
    return recipe


def pair_verdicts(number: int, folder: Path) -> list[dict[str, Any]]:
    """A row of `bank.table_of`: a pair, each of its faults alone and none of them, trained and diagnosed.

    What was planted, whether that counts, the verdict on both, and the one that follows once the fault that it names is
    repaired ("" where it names neither).
    """
    one, other = PAIRS[number][0]
    place = folder / f"pair-{number:02}"
    outcomes: dict[tuple[str, ...], Outcome] = {
        causes: trained(planted(number, *causes), place / ("-and-".join(causes) or "repaired"))
        for causes in [(one, other), (one,), (other,), ()]
    }
    first = judged(place / f"{one}-and-{other}")["verdict"]
    rest = {one: other, other: one}.get(first)
    then = judged(place / rest)["verdict"] if rest else ""
    row = {
        "planted": f"{one}, {other}",
        "verdict": first,
        "once that is repaired": then,
        "counts": all(counts(cause, outcomes[cause,], outcomes[()]) for cause in (one, other)),
        "right": {first, then} == {one, other},
    }
    return [row]


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
