"""By which logged number two trainings are compared, and from where on one of them is the better one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gatdiag.run import Run
from gatdiag.summary import accuracies, logged, loss_name, split

_POINTS: Final = 0.05  # of a score: five points
_SHARE: Final = 0.1  # of a loss


@dataclass(frozen=True)
class Yardstick:
    """The logged number that says how well a training went.

    Attributes:
        name: Of the scalar.
        is_score: More is better; else it is a loss.
    """

    name: str
    is_score: bool

    def value(self, run: Run) -> float:
        """At the end of a run: the median of the last tenth of what was logged; NaN if the loss ended as NaN."""
        values = logged(run, self.name).to_numpy(float)
        if not len(values) or not math.isfinite(values[-1]):
            return math.nan
        return float(np.nanmedian(values[-max(3, len(values) // 10) :]))

    def gain(self, before: float, after: float) -> float:
        """How much better: points of a score, or the share of the loss that is gone; NaN counts as the worst."""
        if self.is_score:
            low, high = (0.0 if math.isnan(value) else value for value in (before, after))
            return (high - low) / (100 if max(abs(low), abs(high)) > 1.5 else 1)  # some log percentages
        if math.isnan(before) or math.isnan(after):
            return float(math.isnan(before)) - float(math.isnan(after))
        return (before - after) / max(abs(before), 1e-12)

    def helped(self, gains: Sequence[float]) -> bool:
        """Better by 5 points, or a tenth of the loss, on average, and worse by as much for no seed."""
        least = _POINTS if self.is_score else _SHARE
        return bool(gains) and sum(gains) / len(gains) >= least and min(gains) > -least


def yardstick(run: Run) -> Yardstick | None:
    """The validation score, else another score, else the validation loss, else the loss; None if nothing was logged."""
    known = accuracies(run)
    name = next((known[of] for of in ("val", "test", "train") if of in known), None)
    if name is not None:
        return Yardstick(name, True)
    losses = [one for one in run.logged if "loss" in one.lower() and split(one) == "val"]
    name = next(iter(losses), loss_name(run))
    return None if name is None else Yardstick(name, False)
