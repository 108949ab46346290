"""Half precision: an eps that is zero in it, steps that rounding takes back, gradients that are too small for it."""

import math
from typing import Any, Final

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.depth import check_vanishing
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names

_SMALLEST: Final = 2.0**-24  # positive number of float16; half of it is rounded to zero
_STEP: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the most that rounding changes a number by, relative to it
_SCALE: Final = (
    "scaler = torch.amp.GradScaler()  # once; then, in each step, instead of loss.backward() and optimizer.step():\n"
    "scaler.scale(loss).backward()\n"
    "scaler.step(optimizer)\n"
    "scaler.update()\n"
    "# or autocast to torch.bfloat16, which has the range of float32"
)


@cause(
    "precision-underflow",
    "Half precision loses the steps",
    rank=45,
    why="what is rounded to zero trains nothing, whatever the model is",
    figure="training_curves",
    falsified_by="In float32 (model.float(), inputs in float32, no autocast) the learning curve is the same.",
    severity="certain",
    needs_training=True,
    is_independent=True,
    limits={
        "unmoved": Limit(0.5, "share of the weights with a gradient that a step leaves as they were, to the bit"),
        "too-small": Limit(0.9, "share of the gradients' entries but zeros, too small for float16 to hold in full"),
        "small-slope": Limit(1e-3, "largest entry of dL/dout: what is behind it is smaller"),
        "no-slope": Limit(1e-6, "the same, if all gradients are zero: float16 has few numbers below it"),
    },
    borrowed=("pace",),
)
def check_precision(facts: Facts) -> Finding | str | None:
    """Underflow in half precision: of Adam's eps, of steps beside the weights, or of gradients."""
    known: dict[str, Any] = facts.signals.get("precision") or {}
    if facts.is_of_checkpoints or not facts.signals:
        return "no steps were watched"
    if not known:
        return None
    return _vanished_eps(facts, known) or _lost_steps(facts, known) or _lost_gradients(facts, known)


def _vanished_eps(facts: Facts, known: dict[str, Any]) -> Finding | None:
    """The weights became NaN or infinite in a step of an optimizer whose eps is zero in float16."""
    first = facts.run.meta["first_non_finite"] or {}
    eps = facts.setting("eps")
    if "float16" not in known["parameters"] or not 0 < eps <= _SMALLEST / 2 or first.get("where") != "weight":
        return None
    kind = next(group["class"] for group in facts.groups if "eps" in group)
    return facts.finding(
        "precision-underflow",
        f"The parameters are float16, in which {kind}'s eps of {number(eps)} is zero, as are the squares of gradients "
        f"below {number(math.sqrt(_SMALLEST))}: it divides by zero, and before step {first['step']:,} weights became "
        f"{first['kind']} although the gradients were finite.",
        Evidence("eps", eps),
        threshold=f"Exact: float16 rounds numbers below {number(_SMALLEST / 2)} to zero.",
        title="Adam's eps is zero in half precision",
        steps=(int(first["step"]),),
        remedy=_in_single_precision(facts),
    )


def _lost_steps(facts: Facts, known: dict[str, Any]) -> Finding | None:
    """Steps of a usual size that leave weights as they were: each is less than half the distance to the next number."""
    pulled, unmoved = known.get("pulled", 0), known.get("unmoved", 0)
    share = unmoved / pulled if pulled else 0.0
    if not share >= limit("unmoved") or facts.state not in ("failing", "partly"):
        return None
    expected = _path_without_rounding(facts)
    if not expected >= limit("pace") * facts.step_count:
        return None  # in single precision it would not train either, see lr-too-small
    names = join_names(known["parameters"])
    step = max(_STEP[name] for name in known["parameters"])
    return facts.finding(
        "precision-underflow",
        f"The parameters are {names}, and a step leaves {percent(share)} of those that have a gradient as they were, "
        f"to the bit: rounding takes back what is less than about {number(step)} of a weight.",
        Evidence("share of the weights with a gradient that a step leaves as they were", share),
        Evidence("sum over all steps of norm of the step over norm of the weights, without rounding", expected),
        threshold=f"Flagged from {threshold_text('unmoved')}.",
        title="Steps vanish in half precision",
        steps=(0, facts.step_count - 1),
        remedy=_in_single_precision(facts),
    )


def _path_without_rounding(facts: Facts) -> float:
    """Sum over all steps of their norm over that of the weights, as the optimizer computed them."""
    rates = facts.steps_column("learning_rate")
    first = remedy.first_step_by_gradient(facts, remedy.initial_learning_rate(facts))
    share = float(rates.mean() / rates[0]) if len(rates) and rates[0] > 0 else 1.0
    return first * share * facts.step_count / (1 - min(facts.setting("momentum"), 0.99))


def _lost_gradients(facts: Facts, known: dict[str, Any]) -> Finding | None:
    """Gradients of a loss that is not scaled, most of them below the range of float16."""
    count, zero, tiny = (known.get(name, 0) for name in ("gradients", "zero_gradients", "tiny_gradients"))
    is_half = "float16" in (*known["activations"], *known["parameters"])
    if not is_half or facts.signals.get("has_scaled_loss") or not count or facts.state not in ("failing", "partly"):
        return None
    slope, are_all_zero = known["largest_output_gradient"], zero == count
    is_small = 0 < slope < limit("no-slope" if are_all_zero else "small-slope")
    if not is_small or tiny < limit("too-small") * (count - zero) or isinstance(check_vanishing(facts), Finding):
        return None
    return facts.finding(
        "precision-underflow",
        f"{percent(zero / count)} of the entries of the gradients are zero and {percent(tiny / count)} below the range "
        "of float16, in which they are computed without scaling the loss; the largest entry of dL/dout is "
        f"{number(slope)}.",
        Evidence("share of the entries of gradients below the range of float16", (zero + tiny) / count),
        Evidence("largest entry of dL/dout", slope),
        threshold=f"Flagged from {threshold_text('too-small')}, and below {threshold_text('small-slope', 'no-slope')}.",
        title="Gradients vanish in half precision",
        steps=(0, facts.step_count - 1),
        remedy=_in_single_precision(facts) if known["parameters"] else Remedy(_SCALE),
    )


def _in_single_precision(facts: Facts) -> Remedy:
    names = tuple(one["name"] for one in facts.inputs if one["name"].isidentifier() or one["name"].endswith("']")) or (
        "x",
    )
    fast = "# for speed, forward passes alone: with torch.autocast(device_type, dtype=torch.bfloat16)"
    return Remedy(Action("single_precision", {"inputs": names}), fast)
