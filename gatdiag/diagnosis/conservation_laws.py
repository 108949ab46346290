"""What the conservation laws say: neurons out of balance, laws that the training broke."""

from textwrap import shorten
from typing import Final

import pandas as pd

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import by_layer, ends, last_values
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import one_line, short
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

# |c| as large as the squared weights into an average neuron: its attention and outgoing weights weigh nothing beside
# its incoming ones, or twice as much. It has no unit, and needs nothing but what a run holds at every step.
IMBALANCED: Final = 1.0
BROKEN: Final = 1e-3  # |c - predicted c| in the same unit; float32 rounds to about 1e-7 of it
_LONGEST = 300  # characters of a reason


def laws_found(run: Run) -> Finding | None:
    """Why there are no laws. None if there are, or if nobody looked for them."""
    laws = run.meta.get("laws") or {}
    found, excluded, title = laws.get("found") or [], laws.get("excluded") or [], "Conservation laws"
    if laws.get("error"):
        reason = shorten(one_line(str(laws["error"])).rstrip("."), _LONGEST, placeholder=" …")
        return Finding("laws-not-found", "note", title, f"They could not be found: {reason}.")
    if found:
        return None
    return Finding(
        "laws-not-found", "info", title, f"None was found. Parts of the model that were excluded: {len(excluded)}."
    )


def imbalance(run: Run, *, in_trouble: bool) -> Finding | None:
    """The largest |c| of a neuron over the mean squared norm of its layer's incoming weights, at the last step.

    Gradient descent with small steps keeps c as it was initialized, and networks train out of balance, too: it is a
    problem only where the training is.

    Args:
        run: The run.
        in_trouble: Whether something else is wrong with the training.
    """
    if not len(run.neurons):
        return None
    first, last = (int(run.neurons["step"].iloc[place]) for place in (0, -1))
    start, end = relative_c(run, first), relative_c(run, last)
    if not end:
        return None
    _, worst = ends(end)
    text = (
        f"In layer {short(worst)} the most unbalanced neuron's |c| is {number(end[worst])} times the mean squared norm "
        "of its layer's incoming weights at the last step"
    )
    if start:
        text += f"; the largest such ratio at the first step is {number(max(start.values()))}"
    flagged = in_trouble and end[worst] >= IMBALANCED
    threshold = (
        f"Flagged at {IMBALANCED:g} and above where something else is wrong. Gradient descent with small steps keeps c "
        "as it was initialized."
    )
    return Finding(
        "imbalance",
        "warning" if flagged else "info",
        "Neurons are out of balance" if flagged else "Balance of the neurons",
        f"{text}.",
        threshold,
        (Evidence(f"largest |c| over the mean squared norm of incoming weights, in layer {short(worst)}", end[worst]),),
        tuple(layer for layer in end if end[layer] >= IMBALANCED),
        steps=(last,),
        figure="balance",
    )


def relative_c(run: Run, step: int) -> dict[str, float]:
    """Layer -> largest |c| of its neurons over the mean squared norm of their incoming feature weights, at a step."""
    rows = _at(run.neurons, step)
    return _relative(run, rows, rows["c"])


def law_violation(run: Run) -> Finding | None:
    """How far c is from where the optimizer's last step must have put it, in the unit of `relative_c`.

    None if c, its prediction or the norms of the weights were not recorded.
    """
    if not len(run.neurons):
        return None
    step = int(run.neurons["step"].iloc[-1])
    rows = _at(run.neurons, step)
    error = _relative(run, rows, rows["c"] - rows["predicted_c"])
    if not error:
        return None
    _, worst = ends(error)
    broken = tuple(layer for layer in error if error[layer] > BROKEN)
    return Finding(
        "law-violation",
        "warning" if broken else "info",
        "Laws do not hold" if broken else "Laws hold",
        f"At the last step c differs from the predicted c by at most {number(error[worst])} times the mean squared "
        f"norm of its layer's incoming weights, in layer {short(worst)} ({len(rows):,} laws).",
        f"Flagged above {percent(BROKEN)} of it.",
        (Evidence(f"largest |c - predicted c| over the mean squared norm, in layer {short(worst)}", error[worst]),),
        broken,
        steps=(step,),
        figure="conservation",
    )


def _relative(run: Run, rows: pd.DataFrame, values: "pd.Series[float]") -> dict[str, float]:
    """Layer -> largest magnitude over the mean squared norm of a neuron's incoming feature weights."""
    own = rows["neuron"].notna().to_numpy()
    by = values[own].abs().groupby(rows["layer"][own].astype(str), sort=False)
    largest, neurons = by_layer(by.max().dropna()), by.size()
    norms = role_series(run, "norm", FEATURES)
    norm = last_values(norms[norms["step"] <= rows["step"].max()])
    known = [layer for layer in largest if norm.get(layer)]
    return {layer: largest[layer] * int(neurons[layer]) / norm[layer] ** 2 for layer in known}


def _at(frame: pd.DataFrame, step: int) -> pd.DataFrame:
    """The rows of one step; steps stand in order."""
    steps = frame["step"].to_numpy()
    return frame.iloc[steps.searchsorted(step) : steps.searchsorted(step, side="right")]
