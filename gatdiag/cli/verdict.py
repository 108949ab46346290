"""Two recorded trainings that differ in one thing, compared in numbers and in words."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gatdiag.diagnosis.non_finite import broken_loss
from gatdiag.diagnosis.symptoms import Outcome, outcome
from gatdiag.run import Run
from gatdiag.summary import FEATURES, compare, neuron_series, role_series


class Numbers(NamedTuple):
    """The numbers of one run; NaN where something was not recorded."""

    name: str
    outcome: Outcome
    epochs: int
    first_loss: float
    best_loss: float  # the lowest finite one
    val_accuracy: float  # the highest, in [0, 1]
    test_accuracy: float  # after the same epoch
    best_epoch: float  # when that was first reached, from 1
    hidden_gradient: float  # ||dL/dW|| / ||W|| between the first and the last layer, median over layers and epochs
    unchanged: float  # share of all weights that ended where they began, bit for bit
    imbalance: float  # largest |c| of a neuron at the start
    broke: str = ""  # what the loss became where it was first not finite, as in "NaN at epoch 3"


def numbers_of(run: Run) -> Numbers:
    """Read the numbers off a run."""
    row = compare([run]).iloc[0]
    broken = broken_loss(run)
    return Numbers(
        name=run.name,
        outcome=outcome(run),
        epochs=int(row["steps"]),
        first_loss=float(row["first_loss"]),
        best_loss=float(row["best_loss"]),
        val_accuracy=float(row["accuracy_val"]),
        test_accuracy=float(row["accuracy_test"]),
        best_epoch=float(row["epochs_to_best"]),
        hidden_gradient=_hidden_gradient(run),
        unchanged=_unchanged(run),
        imbalance=_imbalance(run),
        broke=f"{broken[1]} at epoch {broken[0] + 1}" if broken else "",
    )


def verdict(runs: Sequence[Numbers], classes: int) -> str:
    """A few sentences on what happened, of the first run against the last.

    Args:
        runs: Two runs.
        classes: Of the graph's nodes; one in so many is what guessing gets right.
    """
    sentences = ["Neither network trains."] if all(run.outcome == "stuck" for run in runs) else []
    sentences += [_course(run, classes) for run in runs]
    if not any(run.broke for run in runs):
        sentences += _gradients(runs[0], runs[-1])
    return " ".join(sentences)


def _course(run: Numbers, classes: int) -> str:
    weights, epochs = f"With {spoken(run.name)} weights", f"{run.epochs} epoch{'s' * (run.epochs != 1)}"
    first, best = f"{run.first_loss:.3g}", f"{run.best_loss:.3g}"
    stays = f"the loss goes from {first} to no less than {best}" if run.epochs > 1 else f"the loss is {first}"
    classified = (
        f"the network classifies {run.test_accuracy:.1%} of the test nodes correctly (guessing: {1 / classes:.1%})"
    )
    if run.broke:
        return f"{weights} the loss became {run.broke}."
    if run.outcome == "trains":
        return f"{weights} the network trains: the loss falls from {first} to {best}, and {classified}."
    if run.outcome == "too early":
        return f"{weights} it is too early to tell whether the network trains: in {epochs} {stays}, and {classified}."
    return f"{weights} the network does not train: in {epochs} {stays}, and {classified}."


def _gradients(first: Numbers, last: Numbers) -> list[str]:
    """Of hidden layers, compared; nothing where they cannot be."""
    ratio = last.hidden_gradient / first.hidden_gradient if first.hidden_gradient else math.nan
    if not (math.isfinite(ratio) and ratio > 0):
        return []
    larger, smaller = (last, first) if ratio >= 1 else (first, last)
    return [
        f"Relative to the weights, the gradients of hidden layers are {max(ratio, 1 / ratio):.3g} times as large "
        f"with {spoken(larger.name)} weights as with {spoken(smaller.name)} ones."
    ]


def spoken(name: str) -> str:
    """The name of a run as words."""
    return name.replace("-", " ").replace("_", " ").replace("xavier", "Xavier")


def _hidden_gradient(run: Run) -> float:
    series = role_series(run, "relative_gradient_norm", FEATURES)
    hidden = series[~series["layer"].isin([run.layer_names[0], run.layer_names[-1]])]
    return float(hidden["value"].median()) if len(hidden) else math.nan


def _unchanged(run: Run) -> float:
    before, after = run.snapshot("initial"), run.snapshot("final")
    if not before or not after:
        return math.nan
    same = sum(int(np.count_nonzero(before[name] == after[name])) for name in before)
    return same / sum(weight.size for weight in before.values())


def _imbalance(run: Run) -> float:
    series = neuron_series(run, "c", how="largest")
    start = series[series["step"] == series["step"].min()]["value"]
    return float(start.max()) if len(start) else math.nan
