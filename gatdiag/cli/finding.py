"""What two recorded trainings that differ in one thing say about each other, in numbers and in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gatdiag.run import Run
from gatdiag.summary import FEATURES, compare, neuron_series, role_series

_FALLS = 0.05  # share of its first value by which a loss has to fall for the network to count as training


@dataclass(frozen=True)
class Finding:
    """The numbers of one run; NaN where something was not recorded.

    Attributes:
        name: Of the run.
        epochs: How many were recorded.
        first_loss: At the first epoch.
        best_loss: The lowest.
        val_accuracy: The highest, in [0, 1].
        test_accuracy: After the same epoch.
        best_epoch: When that was first reached, from 1.
        hidden_gradient: Relative gradient norm ||dL/dW|| / ||W|| of the layers between the first and the last, median
            over layers and epochs.
        unchanged: Share of all weights that ended where they began, bit for bit.
        imbalance: Largest |c| of a neuron at the start.
    """

    name: str
    epochs: int
    first_loss: float
    best_loss: float
    val_accuracy: float
    test_accuracy: float
    best_epoch: float
    hidden_gradient: float
    unchanged: float
    imbalance: float

    @property
    def trained(self) -> bool:
        """Whether the loss fell by a twentieth of its first value or more."""
        return self.best_loss < (1 - _FALLS) * self.first_loss


def finding_of(run: Run) -> Finding:
    """Read the numbers off a run."""
    row = compare([run]).iloc[0]
    return Finding(
        name=run.name,
        epochs=int(row["steps"]),
        first_loss=float(row["first_loss"]),
        best_loss=float(row["best_loss"]),
        val_accuracy=float(row["accuracy_val"]),
        test_accuracy=float(row["accuracy_test"]),
        best_epoch=float(row["epochs_to_best"]),
        hidden_gradient=_hidden_gradient(run),
        unchanged=_unchanged(run),
        imbalance=_imbalance(run),
    )


def verdict(findings: Sequence[Finding]) -> str:
    """The finding in two or three sentences, of the first run against the last."""
    first, last = findings[0], findings[-1]
    sentences = [
        f"With {spoken(finding.name)} weights the network "
        + (
            f"trains: the loss falls from {finding.first_loss:.3g} to {finding.best_loss:.3g}, and the network "
            f"classifies {finding.test_accuracy:.1%} of the test nodes rightly."
            if finding.trained
            else f"does not train: in {finding.epochs} epochs the loss goes from {finding.first_loss:.3g} to no less "
            f"than {finding.best_loss:.3g}, and the network classifies {finding.test_accuracy:.1%} of the test nodes "
            "rightly."
        )
        for finding in findings
    ]
    ratio = last.hidden_gradient / first.hidden_gradient if first.hidden_gradient else math.nan
    if math.isfinite(ratio) and ratio > 0:
        larger, smaller = (last, first) if ratio >= 1 else (first, last)
        sentences.append(
            f"Relative to the weights, the gradients of hidden layers are {max(ratio, 1 / ratio):.3g} times as large "
            f"with {spoken(larger.name)} weights as with {spoken(smaller.name)} ones."
        )
    return " ".join(sentences)


def spoken(name: str) -> str:
    """The name of a run as words."""
    return name.replace("-", " ").replace("_", " ").replace("xavier", "Xavier")


def _hidden_gradient(run: Run) -> float:
    series = role_series(run, "relative_gradient_norm", FEATURES)
    hidden = series[~series["layer"].isin([run.layer_names[0], run.layer_names[-1]])]
    values = (hidden if len(hidden) else series)["value"]
    return float(values.median()) if len(values) else math.nan


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
