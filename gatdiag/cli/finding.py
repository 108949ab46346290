"""What two recorded trainings that differ in one thing say about each other, in numbers and in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gatdiag.run import Run
from gatdiag.summary import FEATURES, compare, logged, loss_name, neuron_series, role_series

_FALLS = 0.05  # share of its first value by which a loss has to fall for the network to count as training
_ENOUGH = 20  # epochs; over fewer, a loss that stays says nothing


@dataclass(frozen=True)
class Finding:
    """The numbers of one run; NaN where something was not recorded.

    Attributes:
        name: Of the run.
        epochs: How many were recorded.
        first_loss: At the first epoch.
        best_loss: The lowest finite one.
        val_accuracy: The highest, in [0, 1].
        test_accuracy: After the same epoch.
        best_epoch: When that was first reached, from 1.
        hidden_gradient: Relative gradient norm ||dL/dW|| / ||W|| of the layers between the first and the last, median
            over layers and epochs; NaN if there are none.
        unchanged: Share of all weights that ended where they began, bit for bit.
        imbalance: Largest |c| of a neuron at the start.
        broke: What the loss became where it was first no finite number, as in "NaN at epoch 3"; "" if it stayed finite.
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
    broke: str = ""

    @property
    def trained(self) -> bool:
        """Whether the loss stayed finite and fell by a twentieth of its first value or more."""
        return not self.broke and self.best_loss < (1 - _FALLS) * self.first_loss


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
        broke=_broke(run),
    )


def verdict(findings: Sequence[Finding], classes: int) -> str:
    """The finding in a few sentences, of the first run against the last.

    Args:
        findings: Of two runs.
        classes: Of the graph's nodes; one in so many is what guessing gets right.
    """
    stuck = all(not finding.trained and not finding.broke and finding.epochs >= _ENOUGH for finding in findings)
    sentences = ["Neither network trains."] if stuck else []
    sentences += [_course(finding, classes) for finding in findings]
    if not any(finding.broke for finding in findings):
        sentences += _gradients(findings[0], findings[-1])
    return " ".join(sentences)


def _course(finding: Finding, classes: int) -> str:
    weights, epochs = f"With {spoken(finding.name)} weights", f"{finding.epochs} epoch{'s' * (finding.epochs != 1)}"
    first, best = f"{finding.first_loss:.3g}", f"{finding.best_loss:.3g}"
    stays = f"the loss goes from {first} to no less than {best}" if finding.epochs > 1 else f"the loss is {first}"
    classified = (
        f"the network classifies {finding.test_accuracy:.1%} of the test nodes correctly (guessing: {1 / classes:.1%})"
    )
    if finding.broke:
        return f"{weights} the loss became {finding.broke}."
    if finding.trained:
        return f"{weights} the network trains: the loss falls from {first} to {best}, and {classified}."
    if finding.epochs < _ENOUGH:
        return f"{weights} it is too early to tell whether the network trains: in {epochs} {stays}, and {classified}."
    return f"{weights} the network does not train: in {epochs} {stays}, and {classified}."


def _gradients(first: Finding, last: Finding) -> list[str]:
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


def _broke(run: Run) -> str:
    name = loss_name(run)
    if name is None:
        return ""
    losses = logged(run, name)
    lost = losses[~np.isfinite(losses)]
    if not len(lost):
        return ""
    return f"{'NaN' if math.isnan(lost.iloc[0]) else 'infinite'} at epoch {lost.index[0] + 1}"
