"""Facts about the conservation laws: how far the network is out of balance, and whether the laws held."""

import math
from collections.abc import Iterator
from textwrap import shorten

import numpy as np
import pandas as pd

from gatdiag.names import one_line, short
from gatdiag.report.finding import Finding
from gatdiag.report.latest import last_values
from gatdiag.report.wording import count, number, percent
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

IMBALANCED = 1.0  # |c| in units of the mean squared norm of a neuron's incoming weights
_LONGEST_REASON = 300  # characters
BROKEN = 1e-3  # |c - predicted c| in units of the largest |c|


def balance_facts(run: Run) -> Iterator[Finding]:
    """How many laws there are, and how large c is and how well it was predicted. Empty where no law was looked for."""
    laws = run.meta.get("laws") or {}
    found, excluded = laws.get("found") or [], laws.get("excluded") or []
    if laws.get("error"):
        reason = shorten(one_line(str(laws["error"])).rstrip("."), _LONGEST_REASON, placeholder=" …")
        yield Finding("Conservation laws", f"They could not be found: {reason}.", "", notable=True)
    elif not found:
        yield Finding("Conservation laws", f"None was found. Parts of the model that were excluded: {len(excluded)}.")
    elif len(run.neurons):
        yield from _imbalance(run)
        yield from _prediction(run)


def _imbalance(run: Run) -> Iterator[Finding]:
    steps = run.neurons["step"].to_numpy()
    start, end = (imbalance(run, int(step)) for step in (steps[0], steps[-1]))
    if not end:
        return
    worst = max(end, key=end.__getitem__)
    text = (
        f"In layer {short(worst)} the most unbalanced neuron's |c| is {number(end[worst])} times the mean squared norm "
        "of its layer's incoming weights at the last step"
    )
    if start:
        text += f"; the largest such ratio at the first step is {number(max(start.values()))}"
    notable = end[worst] >= IMBALANCED
    threshold = (
        "Gradient descent with small steps keeps c as it was initialized. Flagged where |c| is at least as large as "
        "the squared weights into an average neuron."
    )
    yield Finding("Neurons are out of balance" if notable else "Balance of the neurons", f"{text}.", threshold, notable)


def imbalance(run: Run, step: int) -> dict[str, float]:
    """Layer -> largest |c| of its neurons over the mean squared norm of their incoming feature weights, at a step."""
    rows = _at(run.neurons, step)
    rows = rows[rows["neuron"].notna().to_numpy()]
    magnitude = rows["c"].abs().groupby(rows["layer"].astype(str))
    norms = role_series(run, "norm", FEATURES)
    norm = last_values(norms[norms["step"] <= step])
    largest, neurons = magnitude.max().dropna(), magnitude.size()
    return {
        str(layer): float(largest[layer]) * int(neurons[layer]) / norm[layer] ** 2
        for layer in largest.index.astype(str)
        if norm.get(layer)
    }


def _prediction(run: Run) -> Iterator[Finding]:
    rows = _at(run.neurons, int(run.neurons["step"].iloc[-1]))
    error, scale = float((rows["c"] - rows["predicted_c"]).abs().max()), float(rows["c"].abs().max())
    if not math.isfinite(error) or not scale:
        return
    text = f"At the last step c differs from the predicted c by at most {number(error)}"
    held = error <= BROKEN * scale
    threshold = f"Flagged above {percent(BROKEN)} of the largest |c|."
    size = f"{count(len(rows))} laws, largest |c| {number(scale)}"
    yield Finding("Laws hold" if held else "Laws do not hold", f"{text} ({size}).", threshold, not held)


def _at(frame: pd.DataFrame, step: int) -> pd.DataFrame:
    """The rows of one step; steps stand in order."""
    steps = frame["step"].to_numpy()
    return frame.iloc[np.searchsorted(steps, step) : np.searchsorted(steps, step, side="right")]
