"""Initial weights: too large, too small, or out of balance with those before and after.

Outputs scale with the product of the norms, so large layers may make up for small ones: geometric means over layers are
compared with the thresholds.
"""

import math
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.depth import is_smoothed, layers_of_rank_one
from gatdiag.diagnosis.facts import Facts, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.fixes import GLOROT
from gatdiag.diagnosis.laws import STOPPED, reason_without_laws, relative_to_weights
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.units import saturated_at_start, zero_layers
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.roles import ATTENTION
from gatdiag.summary import has_role, matrices, series_of, typical_values

declare_limits(
    {
        "norm-stays": Limit(0.03, "of the first layer's output norm: below, outputs vanish rather than become alike"),
        "stuck": Limit(1e-3, "norm of a step over norm of the weights; 1,000 such steps would replace the weights"),
        "adam": Limit(
            16,
            "layers: from here on, balanced weights train in thousands of steps of gradient descent, and "
            "in hundreds of Adam",
        ),
        "linear": Limit(0.02, "overshoot: the slope is the same along the whole step"),
    }
)

NEEDS_STEPS = "checkpoints do not show how far a step moves the weights: record the training"
_ATTENTION_PACE = "update ratio of attention over that of features, deeper half of the layers"
_NOT_RECORDED = "no initial norm of a feature weight was recorded"


@cause(
    "init-too-large",
    "Initial weights are too large",
    rank=130,
    why="outputs grow with the product of the norms",
    figure="overview",
    column="parameters.gain",
    falsified_by="With Glorot initialization the first loss is just as high.",
    remedy=GLOROT,
    limits={
        "gain-large": Limit(4, "times Glorot's norm, geometric mean over layers"),
        "gain-one": Limit(12, "times Glorot's norm in one layer, without a small layer to make up for it"),
        "chance": Limit(3, "times the loss of the best constant prediction at the first step"),
    },
)
def check_too_large(facts: Facts) -> Finding | str | None:
    """Initial weights far above Glorot's, and a first loss far above that of a constant prediction."""
    gains = facts.gains
    if not gains:
        return _NOT_RECORDED
    layer, mean = max(gains, key=gains.__getitem__), geometric_mean(gains.values())
    is_nan = facts.is_non_finite and not math.isfinite(facts.first_loss)
    is_high = is_nan or facts.first_loss > limit("chance") * facts.baseline_loss
    is_single = gains[layer] > limit("gain-one") and min(gains.values()) > 0.2 and facts.state != "trained"
    if not is_high or not (mean > limit("gain-large") or is_single):
        return None
    threshold = "gain-large" if mean > limit("gain-large") else "gain-one"
    own = Evidence(f"initial norm over Glorot's, layer {short(layer)}", gains[layer])
    return facts.finding(
        "init-too-large",
        f"The initial weights are {number(mean)} times as large as Glorot's (geometric mean over layers; "
        f"{number(gains[layer])} times in layer {short(layer)}): the first loss is {number(facts.first_loss)}, that of "
        f"a constant prediction {number(facts.baseline_loss)}.",
        *([own] if threshold == "gain-one" else []),
        Evidence("initial norm over Glorot's, geometric mean over layers", mean),
        Evidence("first loss over that of a constant prediction", facts.first_loss / facts.baseline_loss),
        threshold=f"Flagged above {threshold_text(threshold)} and {threshold_text('chance')}.",
        line=limit(threshold),
        layers=tuple(name for name in gains if gains[name] > limit(threshold)),
        steps=(0,),
    )


@cause(
    "init-too-small",
    "Initial weights are too small",
    rank=150,
    why="outputs and gradients shrink with the product of the norms",
    figure="overview",
    column="parameters.gain",
    falsified_by="With Glorot initialization the gradients of the first layer are just as small.",
    remedy=GLOROT,
    limits={
        "gain-small": Limit(
            0.05,
            "times Glorot's norm, geometric mean over layers; faulty runs 6e-4 to 0.02, small transformers from 0.06",
        )
    },
)
def check_too_small(facts: Facts) -> Finding | str | None:
    """Initial weights far below Glorot's, or zero."""
    if zeros := zero_layers(facts):
        return _zeros(facts, zeros)
    gains = facts.gains
    if not gains:
        return _NOT_RECORDED
    if len(gains) < 2 or layers_of_rank_one(facts) or _is_normalized(facts):
        return None  # behind a single layer nothing shrinks
    layer, mean = min(gains, key=gains.__getitem__), geometric_mean(gains.values())
    has_no_large = max(gains.values()) < 5 and facts.state != "trained"
    is_single = gains[layer] < limit("gain-small") / 3 and has_no_large and _is_read(facts, layer)
    if not (mean < limit("gain-small") or is_single):
        return None
    is_mean = mean < limit("gain-small")
    line = limit("gain-small") / (1 if is_mean else 3)
    own = Evidence(f"initial norm over Glorot's, layer {short(layer)}", gains[layer])
    return facts.finding(
        "init-too-small",
        f"The initial weights are {number(mean)} times as large as Glorot's (geometric mean over layers; "
        f"{number(gains[layer])} times in layer {short(layer)}): outputs and gradients shrink by that factor in each "
        "layer.",
        *([] if is_mean else [own]),
        Evidence("initial norm over Glorot's, geometric mean over layers", mean),
        threshold=f"Flagged below {threshold_text('gain-small')}{'' if is_mean else ', of one layer a third of it'}.",
        line=line,
        beyond="below",
        layers=tuple(name for name in gains if gains[name] < line),
        severity=facts.severity_of_start,
        steps=(0,),
    )


def _zeros(facts: Facts, layers: tuple[str, ...]) -> Finding:
    names = join_names([*map(short, layers)], 3)
    return facts.finding(
        "init-too-small",
        f"The weights of {names} start at zero: what they return is the same for every input, and no gradient passes "
        "through them.",
        Evidence("hidden layers whose initial weights are zero", len(layers), "layers"),
        title="Initial weights are zero",
        threshold="Exact: no threshold.",
        layers=layers,
        severity=facts.severity_of_start,
        steps=(0,),
        falsified_by="model.state_dict() has an entry that is not zero for these layers before the first step.",
    )


def _is_normalized(facts: Facts) -> bool:
    """Normalizations among the layers scale up again what small weights make, as in every transformer."""
    count = sum("Norm" in str(layer.get("kind")) for layer in facts.layers)
    return 3 * count >= len(facts.gains)


def _is_read(facts: Facts, name: str) -> bool:
    """The output of a layer is the input of one behind it: heads of policies, and of values, may begin near zero."""
    names = [layer["name"] for layer in facts.layers]
    behind = names[names.index(name) + 1 :] if name in names else []
    return any(_is_fed(facts, name, other) for other in behind)


def _is_fed(facts: Facts, name: str, behind: str) -> bool:
    """A layer has as many inputs as another has outputs, as far as they have matrices."""
    shapes = {layer["name"]: [*matrices(layer).values()] for layer in facts.layers}
    outputs, inputs = shapes.get(name, []), shapes.get(behind, [])
    return not (outputs and inputs) or not {rows for rows, _ in outputs}.isdisjoint(columns for _, columns in inputs)


@cause(
    "init-unbalanced",
    "Neurons are out of balance from the start",
    rank=140,
    why="stiff weights bound the learning rate, and the others cannot move at it",
    figure="balance",
    column="parameters.attention_pace",
    falsified_by="With a balanced initialization and everything else unchanged, the learning curve is the same.",
    limits={
        "gain-jump": Limit(
            20,
            "factor from layer to layer; healthy runs 1 to 3.5, faulty runs 104; relative gradients "
            "differ by its square",
        ),
        "imbalance": Limit(
            0.01, "|c| over the squared norms that make it up; random weights 0.3 and more, balanced ones 1e-7"
        ),
        "shrink": Limit(
            1e-2, "norm of the last hidden outputs over the first's, in attention layers with usual weights"
        ),
        "attention-still": Limit(
            0.01,
            "update ratio of attention over that of features, deeper half; balanced 50, usual 0.5, stuck below 1e-3",
        ),
        "bound": Limit(
            2.4e-3,
            "norm of a step with overshoot 2 over norm of the weights; deep attention networks that train 9e-3 and "
            "more, stuck ones 6e-4",
        ),
        "bound-norms": Limit(
            1.2e-3, "the same without laws; of GATs of 8 to 14 layers with ELU that train 1.8e-3 and more"
        ),
        "stiff": Limit(0.1, "overshoot: the learning rate cannot be raised ten times although nothing moves"),
    },
)
def check_balance(facts: Facts) -> Finding | str | None:
    """Norms that alternate from layer to layer or among neurons, or a deep attention network that cannot move."""
    gains = list(facts.gains.values())
    if len(gains) < 2:
        return "fewer than two layers have feature weights whose initial norm was recorded"
    if layers_of_rank_one(facts):
        return None
    missing = reason_without_laws(facts)
    unseen = missing if STOPPED in missing and facts.state != "trained" else None
    return _alternating(facts, gains) or _neurons(facts) or _stuck(facts) or unseen


def _alternating(facts: Facts, gains: list[float]) -> Finding | None:
    # a layer may not read what the one before it returns, as where a policy and a value have networks of their own
    joined = [_is_fed(facts, *pair) for pair in pairwise(facts.gains)]
    jumps = np.where(joined, np.diff(np.log(gains)), 0.0)
    factor, least = float(np.exp(np.abs(jumps).max())), math.log(4)
    is_alternating = len(jumps) == 1 or bool(jumps.max() > least and jumps.min() < -least)
    if factor <= limit("gain-jump") or not is_alternating or not 0.1 < geometric_mean(gains) < 10:
        return None
    place = int(np.abs(jumps).argmax())
    names = list(facts.gains)[place : place + 2]
    return _finding(
        facts,
        f"The initial norms of the neighboring layers {short(names[0])} and {short(names[1])} differ by a factor of "
        f"{number(factor)} although their product is usual: relative to their size, the smaller weights get much "
        "larger gradients, so no learning rate suits both.",
        Evidence("initial norm of a layer over its neighbor's, both relative to Glorot's", factor),
        "gain-jump",
        tuple(names),
        column="parameters.gain",
    )


def _neurons(facts: Facts) -> Finding | None:
    """Neurons of a layer with nearly all of their norm in incoming weights, others with it in outgoing weights."""
    if not facts.laws or not len(facts.run.neurons) or saturated_at_start(facts):
        return None
    opposed = {layer: c for layer, c in _opposed_imbalance(facts).items() if c > limit("gain-jump")}
    if not opposed:
        return None
    worst = max(opposed, key=opposed.__getitem__)
    return _finding(
        facts,
        f"In layer {short(worst)} some neurons have nearly all of their norm in the incoming weights, and others in "
        "the outgoing weights: relative to their size, the smaller weights get much larger gradients, so no learning "
        "rate suits both.",
        Evidence(f"|c| in layer {short(worst)}, the lower of its medians over c > 0 and c < 0", opposed[worst]),
        "gain-jump",
        tuple(opposed),
        column="parameters.relative_gradient_norm",
    )


def _opposed_imbalance(facts: Facts) -> dict[str, float]:
    """Layer -> the lower of the medians of |c| over positive and over negative c, before the first step.

    A neuron's squared norms are usually about 1. If its incoming weights are larger than usual and its outgoing weights
    smaller, |c| is about the ratio of their norms. If all c have one sign, it is layers that differ, not neurons.
    """
    rows = facts.run.neurons
    rows = rows[(rows["step"] == rows["step"].min()) & rows["neuron"].notna()]
    family = (rows["neuron"].astype(float).diff() <= 0).cumsum()  # of laws, such as those of queries and of values
    found: dict[str, float] = {}
    for (name, _), c in rows["c"].groupby([rows["layer"].astype(str), family]):
        layer, values = str(name), c.to_numpy(float)
        signs = (median(values[values > 0]), median(-values[values < 0]))
        if np.isfinite(signs).all():
            found[layer] = max(found.get(layer, 0.0), min(signs) / max(1.0, facts.gains.get(layer, 1.0)))
    return found


def _stuck(facts: Facts) -> Finding | str | None:
    """Nothing moves though weight norms and learning rate are usual, as in "Are GATs Out of Balance?"."""
    norms = list(facts.profile("output_norm").values())
    depth = len(facts.layers) if facts.is_of_checkpoints else len(norms)
    is_attention = has_role(facts.run, ATTENTION) and depth >= 5
    if not is_attention or facts.is_learning or facts.is_adam:
        return None  # Adam does not conserve c, and its steps do not shrink with the gradient
    if facts.is_of_checkpoints:
        return None if _imbalance(facts) < limit("imbalance") else NEEDS_STEPS
    if facts.state not in ("failing", "partly", "untrained") or is_smoothed(facts) or saturated_at_start(facts):
        return None
    if not facts.laws and not facts.is_preflight:
        return reason_without_laws(facts)
    imbalance = _imbalance(facts) if facts.laws else math.nan
    if imbalance < limit("imbalance"):
        return None
    ratio = min(norms[-3:]) / norms[0] if norms[0] else math.nan
    step, over, attention = median(facts.step_ratios), facts.early_overshoot, _pace_of_deeper_half(facts)
    shrinks = len(norms) >= 8 and ratio < limit("shrink")
    is_stuck = facts.step_count >= limit("steps") and step < limit("stuck")
    is_stiff = is_stuck and over > limit("stiff")
    if facts.is_preflight:  # too few steps to be stuck
        # at any learning rate: the longest step that does not diverge hardly changes the weights
        bound = limit("bound") if facts.laws else limit("bound-norms")
        is_stiff = over > limit("linear") and step * limit("overshoot") / over < bound
        # attention that stands still beside the features is telling with outputs that shrink less, too
        is_stuck = len(norms) >= 8 and ratio < limit("norm-stays")
    is_still = is_stuck and attention < limit("attention-still")
    shown = {
        "attention-still": (is_still, _ATTENTION_PACE, attention),
        "shrink": (shrinks, "smallest norm of the last outputs over that of the first", ratio),
        "bound": (
            is_stiff and facts.is_preflight,
            "norm of a step with overshoot 2 over norm of the weights",
            step * limit("overshoot") / over if over else math.nan,
        ),
        "stiff": (is_stiff, "overshoot of the first 30 steps, median", over),
    }
    threshold = next((name for name, (holds, _, _) in shown.items() if holds), None)
    if threshold is None:
        return None if facts.laws else reason_without_laws(facts)
    effects = _effects(ratio, step, attention if is_still else math.nan)
    of_laws = (
        f"out of balance: {effects}. Gradient descent conserves this imbalance (c), so training does not repair it."
    )
    of_norms = f"likely out of balance: {effects}. There are no laws (activations as ELU have none) to measure it by."
    return _finding(
        facts,
        f"In these {len(norms)} attention layers the incoming and outgoing weights of each neuron are "
        f"{of_laws if facts.laws else of_norms}",
        Evidence(*shown[threshold][1:]),
        "bound-norms" if threshold == "bound" and not facts.laws else threshold,
        severity=None if facts.laws else "warning",
        **_shown_of_stuck(facts, threshold),
        more=(Evidence("|c| over the squared norms that make it up, median over layers", imbalance),),
    )


def _effects(ratio: float, step: float, attention: float) -> str:
    """What becomes of outputs, weights and attention, as far as it is known."""
    known = [f"outputs shrink to {percent(ratio)} of their size"]
    if math.isfinite(step):
        known.append(f"a step changes the weights by {number(step)} of their norm")
    if math.isfinite(attention):
        known.append(f"attention moves {number(attention)} times as fast as features")
    *most, last = known
    return f"{', '.join(most)}, and {last}" if most else last


def _shown_of_stuck(facts: Facts, threshold: str) -> dict[str, Any]:
    """The layers of the finding, and the quantity by layer that shows them."""
    norms = facts.profile("output_norm")
    first = next(iter(norms))
    if threshold == "attention-still":
        paces = _attention_paces(facts)
        still = tuple(name for name in paces if paces[name] < limit(threshold))
        return {"layers": still, "column": "parameters.attention_pace", "line": limit(threshold), "steps": ()}
    if threshold == "shrink":
        low = tuple(name for name in norms if norms[name] < limit(threshold) * norms[first])
        return {"layers": low, "column": "layers.output_norm", "line": limit(threshold), "over": first}
    return {"layers": tuple(norms), "column": "parameters.update_ratio", "line": limit("stuck"), "steps": ()}


def _imbalance(facts: Facts) -> float:
    """|c| over the squared norms that make it up, before the first step: median over layers, NaN if unknown."""
    rows = facts.run.neurons
    first = rows[rows["step"] == rows["step"].min()]
    return median([*relative_to_weights(facts.run, first, first["c"], first=True).values()])


def _attention_paces(facts: Facts) -> dict[str, float]:
    """Layer -> update ratio of its attention vectors over that of its feature weights, median over the steps."""
    if facts.is_preflight and not facts.groups:
        return {}
    return typical_values(series_of(facts.run, "parameters.attention_pace"))


def _pace_of_deeper_half(facts: Facts) -> float:
    """The median over the deeper half of the layers."""
    paces = _attention_paces(facts)
    return median([paces.get(layer["name"], math.nan) for layer in facts.layers[len(facts.layers) // 2 :]])


def _finding(
    facts: Facts,
    text: str,
    evidence: Evidence,
    threshold: str,
    layers: tuple[str, ...],
    steps: tuple[int, ...] = (0,),
    more: tuple[Evidence, ...] = (),
    **shown: Any,
) -> Finding:
    side = "above" if threshold in ("gain-jump", "stiff") else "below"
    return facts.finding(
        "init-unbalanced",
        text,
        evidence,
        *more,
        Evidence("norm of a step over norm of the weights, median", median(facts.step_ratios)),
        threshold=f"Flagged {side} {threshold_text(threshold)}.",
        layers=layers,
        steps=steps,
        beyond="below",
        **shown,
        figure="balance" if facts.laws else "overview",
        remedy=_balanced_weights(facts),
    )


def _balanced_weights(facts: Facts) -> Remedy:
    """Balanced initialization, and for deep stacks of attention layers Adam instead of gradient descent."""
    fresh = remedy.balanced_initialization(facts)
    is_deep = len(facts.gains) >= limit("adam") and has_role(facts.run, ATTENTION)
    if not facts.groups or facts.is_adam or not is_deep:
        return Remedy(fresh)
    return Remedy(fresh, remedy.use_adam(facts))
