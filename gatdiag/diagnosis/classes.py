"""Classes: batches of one class each, weights of classes that follow their frequency, a class that the loss ignores."""

import math
from itertools import pairwise
from typing import Final

import numpy as np

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.evaluation import evaluates_badly
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.training import Floats
from gatdiag.diagnosis.wording import number, percent

_POWERS: Final = (0.5, 1.0)  # of the frequency, to which weights of classes are set


@cause(
    "batches-sorted",
    "Batches of one class each",
    rank=104,
    why="each step unlearns what the one before taught",
    figure="training_curves",
    falsified_by="y.unique() of a batch holds several classes.",
    remedy=Remedy("loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)  # a new order each epoch"),
    needs_training=True,
    is_independent=True,
    limits={
        "pure-batches": Limit(0.5, "share of the batches that are of one class: others are where one class ends"),
        "whole-batch": Limit(0.9, "of the rows of the largest batch: rows of saturated outputs show no label"),
        "batch-rows": Limit(4, "rows of a batch, on average: smaller ones are of one class by chance"),
        "sorted-chance": Limit(1e-6, "probability of as many batches of one class if rows were drawn at random"),
    },
)
def check_sorted(facts: Facts) -> Finding | str | None:
    """Each batch holds one class only, and another batch another one, as of data that are sorted and not shuffled."""
    seen = facts.signals.get("batch_labels") or []
    same = [one["counts"] for one in seen if one["counts"] and len(one["counts"]) == len(seen[0]["counts"])]
    counts = np.array(same, float)
    if facts.has_several_optimizers or len(counts) < 2 or facts.step_count < limit("steps"):
        return "the labels of several batches were not seen"
    rows, total = counts.sum(1), counts.sum(0)
    is_pure = (counts.max(1) == rows) & (rows >= limit("whole-batch") * rows.max())
    share = float(is_pure.mean())
    if share < limit("pure-batches") or rows.mean() < limit("batch-rows") or (total > 0).sum() < 2:
        return None
    chance = 2 ** len(counts) * _chance(counts[is_pure], total / total.sum())  # whichever of them are pure
    is_bad = facts.state in ("failing", "partly", "unknown") or bool(evaluates_badly(facts))
    if chance > limit("sorted-chance") or not is_bad:
        return None
    order = ", ".join(map(str, counts.argmax(1)[:8]))
    return facts.finding(
        "batches-sorted",
        f"{percent(share)} of the batches hold one class only (the first ones: class {order}), so that the network "
        "learns to predict the class of the last batch: the data are sorted by class and not shuffled.",
        Evidence("share of the batches that are of one class", share),
        Evidence("rows of a batch, on average", float(rows.mean()), "rows"),
        threshold=f"Flagged from {threshold_text('pure-batches', 'whole-batch', 'batch-rows')}, and below "
        f"{threshold_text('sorted-chance')}.",
        severity="note" if _takes_turns(facts) else "warning" if facts.state in ("trained", "unknown") else None,
    )


def _takes_turns(facts: Facts) -> bool:
    """The network learns, and classes alternate from step to step: no class is forgotten meanwhile."""
    seen = [(one["step"], one["counts"]) for one in facts.signals["batch_labels"] if one["counts"]]
    pairs = [(np.argmax(a), np.argmax(b)) for (i, a), (j, b) in pairwise(seen) if j == i + 1]
    return facts.state == "partly" and bool(pairs) and np.mean([one != other for one, other in pairs]) >= 0.5


def _chance(counts: Floats, shares: Floats) -> float:
    """Probability that batches with these numbers of rows are of one class each."""
    with np.errstate(divide="ignore", under="ignore"):
        return float(np.exp(np.log((shares[None, :] ** counts.sum(1)[:, None]).sum(1)).sum()))


@cause(
    "class-weights",
    "Weights of classes follow their frequency",
    rank=293,
    why="frequent classes count even more",
    figure="training_curves",
    falsified_by="weight[c] times the number of rows of class c is the same for all classes.",
    severity="warning",
    needs_training=True,
    is_independent=True,
    limits={
        "class-ratio": Limit(2, "times as many rows in the most frequent class as in the rarest"),
        "power-error": Limit(0.1, "of the power of the frequency that weights follow: 1, or 0.5 of the root"),
        "off-power": Limit(0.1, "largest error of the log of a weight, over the range of the logs"),
        "doubt": Limit(0.3, "the most that is added to both where few rows show the frequency"),
    },
)
def check_weights(facts: Facts) -> Finding | str | None:
    """The loss weighs classes by their frequency, or its root, where the inverse is meant."""
    found = facts.signals.get("class_weights") or {}
    weights, rows = (np.array([one or 0.0 for one in found.get(name, [])], float) for name in ("weights", "rows"))
    known = (weights > 0) & (rows > 0)
    if facts.has_several_optimizers or known.sum() < 2:
        return "no weights of classes were seen in dL/dout"
    w, n = np.log(weights[known]), np.log(rows[known])
    if np.ptp(n) < math.log(limit("class-ratio")):
        return None
    power, offset = np.polyfit(n, w, 1)
    error = float(np.abs(w - power * n - offset).max() / np.ptp(n))
    nearest = min(_POWERS, key=lambda one: abs(one - power))
    # of the frequency, as of rows that were drawn at random
    doubt = 2 * math.sqrt(float(((n - n.mean()) ** 2 / rows[known]).sum())) / float(((n - n.mean()) ** 2).sum())
    most_doubt = 2 / math.sqrt(rows[known].min()) / np.ptp(n)
    if abs(power / nearest - 1) > limit("power-error") + min(doubt, limit("doubt")):
        return None
    if error > limit("off-power") + min(most_doubt, limit("doubt")):
        return None
    most, least = (int(np.flatnonzero(known)[place(n)]) for place in (np.argmax, np.argmin))
    is_learned = facts.state == "trained" and not evaluates_badly(facts)
    return facts.finding(
        "class-weights",
        f"A row of class {most}, the most frequent one ({rows[most]:,.0f} rows were seen), counts "
        f"{number(weights[most] / weights[least])} times as much as one of class {least} ({rows[least]:,.0f} rows): "
        "weights grow with the frequency instead of with its inverse, so that rare classes hardly count.",
        Evidence("power of the frequency that weights follow", float(power)),
        Evidence("weight of the most frequent class over that of the rarest", float(weights[most] / weights[least])),
        threshold=f"Flagged from {threshold_text('class-ratio')}, within {threshold_text('power-error', 'off-power')}.",
        severity="note" if is_learned else None,
        remedy=_inverse(len(weights)),
    )


def _inverse(classes: int) -> Remedy:
    if classes == 2:
        return Remedy(
            "weight = 1 / torch.bincount(y_train).float()  # for cross_entropy: weight / weight.mean()\n"
            "pos_weight = (y_train == 0).sum() / (y_train == 1).sum()  # for binary_cross_entropy_with_logits"
        )
    return Remedy(
        "weight = 1 / torch.bincount(y_train).clamp(min=1).float()\n"
        "loss = torch.nn.functional.cross_entropy(out, y, weight=weight / weight.mean())"
    )


@cause(
    "class-ignored",
    "The loss ignores a class",
    rank=296,
    why="only rows of that class are lost",
    figure="training_curves",
    falsified_by="No row is of that class, or it stands for padding or unlabeled rows.",
    remedy=Remedy("loss = torch.nn.functional.cross_entropy(out, y)  # without ignore_index, or with a number below 0"),
    severity="note",
    needs_training=True,
    is_independent=True,
)
def check_ignored(facts: Facts) -> Finding | str | None:
    """The number that the loss ignores (ignore_index) is that of a class, and scores are bad."""
    loss = facts.loss_graph
    if not loss:
        return "the graph of the loss was not seen"
    ignored = loss.get("ignored")
    labels = facts.output.get("labels") or []
    is_bad = facts.state in ("failing", "partly") or bool(evaluates_badly(facts))
    if ignored is None or not is_bad or (ignored < len(labels) and labels[ignored]):
        return None
    return facts.finding(
        "class-ignored",
        f"The loss ignores rows of class {ignored} (ignore_index={ignored}), although the model has an output for it: "
        "rows of this class teach nothing, and are predicted as another one.",
        Evidence("number that the loss ignores", float(ignored)),
        threshold="Exact: no threshold.",
    )
