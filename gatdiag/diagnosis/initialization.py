"""Initial weights: too large, too small, or out of balance with those before and after.

Outputs follow the product of the norms: what one layer has too much, another may have too little. So geometric means
over layers are judged.
"""

import math
from statistics import geometric_mean

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.depth import is_smoothed, layers_of_rank_one
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.laws import relative_to_weights
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.units import saturated_at_start
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import short
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.summary import has_role

_ATTENTION_PACE = "update ratio of attention over that of features, deeper half of the layers"
_UNKNOWN = "no initial norm of a feature weight was recorded"


def too_large(facts: Facts) -> Finding | str | None:
    """Initial weights far above Glorot's, and a first loss far above that of a constant prediction."""
    gains = facts.gains
    if not gains:
        return _UNKNOWN
    layer, mean = max(gains, key=gains.__getitem__), geometric_mean(gains.values())
    is_lost = facts.is_broken and not math.isfinite(facts.first_loss)
    is_hot = is_lost or facts.first_loss > limit("chance") * facts.base
    is_lonely = gains[layer] > limit("gain-one") and min(gains.values()) > 0.2 and facts.state != "trained"
    if not is_hot or not (mean > limit("gain-large") or is_lonely):
        return None
    return facts.found(
        "init-too-large",
        f"The weights start {number(mean)} times as large as Glorot's (geometric mean over layers; "
        f"{number(gains[layer])} times in layer {short(layer)}), so that the first loss is {number(facts.first_loss)} "
        f"where a constant prediction has {number(facts.base)}.",
        Evidence("initial norm over Glorot's, geometric mean over layers", mean),
        Evidence("first loss over that of a constant prediction", facts.first_loss / facts.base),
        threshold=f"Flagged above {said('gain-large')} and {said('chance')}.",
        layers=tuple(name for name in gains if gains[name] > limit("gain-large")),
        steps=(0,),
    )


def too_small(facts: Facts) -> Finding | str | None:
    """Initial weights far below Glorot's."""
    gains = facts.gains
    if not gains:
        return _UNKNOWN
    if layers_of_rank_one(facts):
        return None
    layer, mean = min(gains, key=gains.__getitem__), geometric_mean(gains.values())
    is_lonely = gains[layer] < limit("gain-small") / 3 and max(gains.values()) < 5 and facts.state != "trained"
    if not (mean < limit("gain-small") or is_lonely):
        return None
    return facts.found(
        "init-too-small",
        f"The weights start at {number(mean)} of the size of Glorot's (geometric mean over layers; "
        f"{number(gains[layer])} in layer {short(layer)}): outputs and gradients shrink by that factor at each layer.",
        Evidence("initial norm over Glorot's, geometric mean over layers", mean),
        threshold=f"Flagged below {said('gain-small')}.",
        layers=tuple(name for name in gains if gains[name] < limit("gain-small")),
        steps=(0,),
    )


def unbalanced(facts: Facts) -> Finding | str | None:
    """Norms that go up and down from layer to layer, or a deep attention network that cannot move."""
    gains = list(facts.gains.values())
    if len(gains) < 2:
        return "fewer than two layers have feature weights whose initial norm was recorded"
    if layers_of_rank_one(facts):
        return None
    return _alternating(facts, gains) or _neurons(facts) or _stuck(facts)


def _alternating(facts: Facts, gains: list[float]) -> Finding | None:
    jumps = np.diff(np.log(gains))
    factor, turn = float(np.exp(np.abs(jumps).max())), math.log(4)
    turns = len(jumps) == 1 or bool(jumps.max() > turn and jumps.min() < -turn)
    if factor <= limit("gain-jump") or not turns or not 0.1 < geometric_mean(gains) < 10:
        return None
    place = int(np.abs(jumps).argmax())
    names = list(facts.gains)[place : place + 2]
    return _finding(
        facts,
        f"The initial norms of the neighbors {short(names[0])} and {short(names[1])} are a factor of "
        f"{number(factor)} apart although their "
        "product is usual: the smaller weights would have to move that much faster, and the larger ones cannot.",
        Evidence("initial norm of a layer over its neighbor's, both relative to Glorot's", factor),
        "gain-jump",
        tuple(names),
    )


def _neurons(facts: Facts) -> Finding | None:
    """Neurons of a layer that have nearly all of their norm going in, beside others that have it going out."""
    if not facts.has_laws or not len(facts.run.neurons) or saturated_at_start(facts):
        return None
    apart = {layer: least for layer, least in _least_of_both_signs(facts).items() if least > limit("gain-jump")}
    if not apart:
        return None
    worst = max(apart, key=apart.__getitem__)
    return _finding(
        facts,
        f"In layer {short(worst)} the norms of the weights that lead into a neuron and of those that lead out of it "
        "are far apart, one way in some neurons and the other way in others: the smaller would have to move that much "
        "faster, and the larger ones cannot.",
        Evidence(
            f"|c| in layer {short(worst)}, median of those above and of those below zero, the lower", apart[worst]
        ),
        "gain-jump",
        tuple(apart),
    )


def _least_of_both_signs(facts: Facts) -> dict[str, float]:
    """Layer -> median |c| before the first step, of positive or of negative c, whichever is less.

    A neuron's squared norms are usually about 1: of one whose incoming weights are larger by a factor, and whose
    outgoing weights are smaller, c is about the factor that is between the two. Where all have one sign, it is layers
    that differ.
    """
    rows = facts.run.neurons
    rows = rows[(rows["step"] == rows["step"].min()) & rows["neuron"].notna()]
    family = (rows["neuron"].astype(float).diff() <= 0).cumsum()  # of laws: queries beside values, say
    found: dict[str, float] = {}
    for (name, _), c in rows["c"].groupby([rows["layer"].astype(str), family]):
        layer, values = str(name), c.to_numpy(float)
        signs = (median(values[values > 0]), median(-values[values < 0]))
        if np.isfinite(signs).all():
            found[layer] = max(found.get(layer, 0.0), min(signs) / max(1.0, facts.gains.get(layer, 1.0)))
    return found


def _stuck(facts: Facts) -> Finding | None:
    """Nothing moves though weights, depth and rate are usual: attention and features hold each other (paper 1)."""
    norms = list(facts.profile("output_norm").values())
    is_judged = has_role(facts.run, ATTENTION) and facts.has_laws and facts.state in ("failing", "partly", "untrained")
    if not is_judged or len(norms) < 5 or facts.learns:
        return None
    imbalance = _imbalance(facts)
    if facts.is_adam or is_smoothed(facts) or saturated_at_start(facts) or imbalance < limit("imbalance"):
        return None  # Adam does not conserve c, and its steps stay long
    ratio = min(norms[-3:]) / norms[0] if norms[0] else math.nan
    moves, over, attention = median(facts.step_ratio), median(facts.overshoot), _attention_pace(facts)
    shrinks = len(norms) >= 8 and ratio < limit("shrink")
    is_stuck = facts.count >= limit("steps") and moves < limit("stuck")
    is_stiff = is_stuck and over > limit("stiff")
    if facts.is_rehearsal:  # which has too few steps to get stuck
        # at whatever rate: the longest step that does not diverge moves next to nothing
        is_stiff = over > limit("linear") and moves * limit("overshoot") / over < limit("bound")
        # outputs that shrink a little less tell where attention stands still beside the features
        is_stuck = len(norms) >= 8 and ratio < limit("norm-stays")
    is_still = is_stuck and attention < limit("attention-still")
    shown = {
        "attention-still": (is_still, _ATTENTION_PACE, attention),
        "shrink": (shrinks, "smallest norm of the last outputs over that of the first", ratio),
        "bound": (
            is_stiff and facts.is_rehearsal,
            "share of the weights that a step of overshoot 2 would move",
            moves * limit("overshoot") / over if over else math.nan,
        ),
        "stiff": (is_stiff, "overshoot, median", over),
    }
    threshold = next((name for name, (holds, _, _) in shown.items() if holds), None)
    if threshold is None:
        return None
    moving = f", and a step moves the weights by {number(moves)} of theirs" if math.isfinite(moves) else ""
    return _finding(
        facts,
        f"In these {len(norms)} attention layers the weights that lead into each neuron and those that lead out of it "
        f"are out of balance: outputs shrink to {percent(ratio)} of their size{moving}. Gradient descent "
        "conserves that imbalance (c), so that no training repairs it.",
        Evidence(*shown[threshold][1:]),
        threshold,
        tuple(facts.profile("output_norm")),
        Evidence("|c| over the squared norms that make it up, median over layers", imbalance),
    )


def _imbalance(facts: Facts) -> float:
    """|c| over the squared norms that make it up, before the first step; the median over layers, NaN if unknown."""
    rows = facts.run.neurons
    first = rows[rows["step"] == rows["step"].min()]
    return median([*relative_to_weights(facts.run, first, first["c"], first=True).values()])


def _attention_pace(facts: Facts) -> float:
    """Update ratio of attention vectors over that of their layer's features, median over the deeper half."""
    pace = {name: median(column) for name, column in zip(facts.table_names, facts.ratios.T, strict=True)}
    found = []
    for layer in facts.layers[len(facts.layers) // 2 :]:
        by_role = [
            [pace.get(p["name"], math.nan) for p in layer["parameters"] if p["role"] == role]
            for role in (ATTENTION, FEATURE)
        ]
        attention, features = map(median, by_role)
        found.append(attention / features if features > 0 else math.nan)
    return median(found)


def _finding(
    facts: Facts, text: str, evidence: Evidence, threshold: str, layers: tuple[str, ...], *more: Evidence
) -> Finding:
    return facts.found(
        "init-unbalanced",
        text,
        evidence,
        *more,
        Evidence("share of the weights that a step moves, median", median(facts.step_ratio)),
        threshold=f"Threshold {said(threshold)}.",
        layers=layers,
        steps=(0,),
        figure="balance" if facts.has_laws else "overview",
        remedy=_balance(facts),
    )


def _balance(facts: Facts) -> Remedy:
    """Fresh weights, and Adam for them in place of gradient descent in deep stacks of attention layers."""
    fresh = remedy.balanced(facts)
    is_deep = len(facts.gains) >= limit("adam") and has_role(facts.run, ATTENTION)
    if not facts.groups or facts.is_adam or not is_deep:
        return fresh
    return Remedy(f"{fresh.code}\n{remedy.adam(facts)}  # in place of yours, before schedulers are made", fresh.actions)
