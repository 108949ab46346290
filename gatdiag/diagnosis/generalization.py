"""Overfitting: the network trains but does not generalize."""

import math

import numpy as np
import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.training import Floats
from gatdiag.diagnosis.wording import number, percent
from gatdiag.summary import compared_score, logged_series, score_names, split

UNVALIDATED = "no validation score and no validation loss was logged"
UNCOMPARED = "no training score was logged to compare"  # start of the reason that the check gives
_AT_CHANCE = (
    " The validation score was never better than that of a constant: what is learned by heart has nothing to do with "
    "the validation data. Labels or features may be in another order than the nodes, or there may be too few of them."
)
_LOOK_AT_ORDER = (
    "\n# are rows of x, of y and node numbers in edge_index in the same order? Compare a few by hand, and\n"
    "print((y[edge_index[0]] == y[edge_index[1]]).float().mean())  # as high as for y[torch.randperm(len(y))]?"
)


@cause(
    "overfitting",
    "Overfitting",
    rank=360,
    why="the network trains",
    figure="training_curves",
    falsified_by="The gap stays with dropout and weight decay: then training and validation data differ.",
    severity="note",
    needs_training=True,
    limits={
        "gap": Limit(0.33, "training minus validation score"),
        "fell": Limit(0.08, "of the best validation score: it was better before"),
        "rose": Limit(0.5, "rise of the validation loss from its lowest value, over the first value"),
        "at-chance": Limit(0.1, "of the way from chance to a perfect validation score, at best"),
    },
)
def check_overfitting(facts: Facts) -> Finding | str | None:
    """Training score far above the validation score, or a validation score or loss that was much better before."""
    names = score_names(facts.run)
    loss = next((name for name in facts.run.logged_names if "loss" in name.lower() and split(name) == "val"), None)
    if "val" not in names and loss is None:
        return UNVALIDATED
    if facts.state == "unknown":
        return f"whether the network trains is not known: {facts.course.reason}"
    if facts.state not in ("trained", "partly"):
        return None
    train, val, losses = (_values(facts, name) for name in (names.get("train"), names.get("val"), loss))
    gap, fell, rose = median(train[-5:]) - median(val[-5:]), _fall(val), _rise(losses)
    if not (gap > limit("gap") or fell > limit("fell") or rose > limit("rose")):
        if not len(train) and len(val) and 1 - (last := _as_share(median(val[-5:]))) > limit("gap"):
            return f"{UNCOMPARED} with {names['val']}, which is {number(last)}"
        return None if np.isfinite([gap, fell, rose]).any() else "too few validation scores or losses were logged"
    what = f"the validation score is {number(gap)} below the training score"
    if fell > limit("fell"):
        what = f"the validation score has fallen by {percent(fell)} of its best"
    if rose > limit("rose"):
        what = f"since its minimum, the validation loss has risen by {number(rose)} times its first value"
    stays = _stays_at_chance(facts, names.get("val"))
    group = facts.groups[-1] if facts.groups else {}
    decay = remedy.round_to_one_digit(max(5e-4, 10 * float(group.get("weight_decay") or 0.0)))
    return facts.finding(
        "overfitting",
        f"The network trains (the loss fell by {percent(facts.progress)}) but does not generalize: {what}."
        f"{_AT_CHANCE if stays else ''}",
        Evidence("training minus validation score", gap),
        Evidence("fall of the validation score from its best, relative", fell),
        Evidence("rise of the validation loss over its first value", rose),
        threshold=f"Flagged above {threshold_text('gap', 'fell', 'rose')}.",
        remedy=Remedy(
            f"{remedy.optimizer_line(facts, weight_decay=decay)}\n"
            "x = torch.nn.functional.dropout(x, 0.5, self.training)  # in forward; stop at the best validation score"
            + (_LOOK_AT_ORDER if stays else "")
        ),
    )


def _values(facts: Facts, name: str | None) -> Floats:
    return logged_series(facts.run, name).dropna().to_numpy(float) if name else np.empty(0)


def _stays_at_chance(facts: Facts, name: str | None) -> bool:
    """The validation accuracy was never better than the share of the most frequent class."""
    labels = facts.output.get("labels") or []
    values = _values(facts, name)
    if len(values) < 5 or sum(labels) < limit("labels") or compared_score(facts.run) != "accuracy":
        return False
    chance, best = max(labels) / sum(labels), _as_share(float(pd.Series(values).rolling(3).median().max()))
    return bool((best - chance) / (1 - chance) < limit("at-chance")) if chance < 1 else False


def _as_share(score: float) -> float:
    return score / 100 if score > 1.5 else score  # percentages


def _fall(values: Floats) -> float:
    if len(values) < 6:
        return math.nan
    smooth = pd.Series(values).rolling(3, min_periods=1).median()
    return float((smooth.max() - median(values[-3:])) / smooth.max()) if smooth.max() > 0 else math.nan


def _rise(values: Floats) -> float:
    if len(values) < 6 or not values[0] > 0:
        return math.nan
    return float((median(values[-3:]) - values.min()) / values[0])
