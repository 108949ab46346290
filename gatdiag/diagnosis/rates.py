"""Steps of the wrong size: the learning rate, clipping, weight decay."""

import math
from typing import Final

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.facts import Facts, largest, median
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number, percent

_EARLY: Final = 20  # steps
_USUAL: Final = 0.04  # share of the weights that a step of a usual learning rate moves at first
_LEAST: Final = 1e-3  # of it, that a rate which was found too large is never brought below
_NO_OVERSHOOT: Final = "overshoot was not recorded, which takes recorded steps in a row on the same batch"
_UNSEEN = "no update ratio was recorded"


def too_large(facts: Facts) -> Finding | str | None:
    """Steps that overshoot twice the distance to the minimum, or replace the weights, and a loss that jumps."""
    if facts.is_of_checkpoints or not len(facts.step_ratio):
        return _UNSEEN
    if facts.is_rehearsal and not facts.groups:
        return "no optimizer was given"
    early = largest(facts.step_ratio[: 1 if facts.is_rehearsal else _EARLY])
    over = facts.overshoot[:_EARLY]
    hits = over[over > limit("overshoot")]
    factor = median(hits)
    if facts.is_rehearsal:
        return _too_large(facts, early, factor, facts.severity) if _jumps_at_once(facts, early, len(hits)) else None
    diverged = facts.is_broken or facts.worst > limit(
        "jump" if facts.state in ("failing", "unknown") else "jump-trained"
    )
    if diverged and (len(hits) or early > limit("step-large")):
        calm = facts.count < limit("sure") and not facts.is_broken
        return _too_large(facts, early, factor, "warning" if calm else facts.severity)
    if facts.state == "failing" and largest(facts.step_ratio[:5]) > limit("step-replaces"):
        return _too_large(facts, early, factor, "error")
    swings = median(over) > limit("overshoot") or (early > limit("step-large") and median(over) > 1.2)
    if swings and facts.state == "failing" and facts.count >= limit("sure"):
        return _too_large(facts, early, median(over), "warning")
    return None if len(over) or facts.state == "trained" else f"{_NO_OVERSHOOT}, so that only jumps were looked for"


def _jumps_at_once(facts: Facts, early: float, hits: int) -> bool:
    """Before training: the first step replaces the weights and the loss rises, or the loss explodes."""
    explodes = facts.is_broken or facts.jump > limit("jump-trained")
    replaces = early > limit("step-replaces") and facts.jump > 1
    return replaces or (explodes and (hits > 0 or early > limit("step-large")))


def _too_large(facts: Facts, early: float, factor: float, severity: Severity) -> Finding:
    lr = remedy.learning_rate(facts)
    better = _smaller(facts, lr)
    jump = f"the loss rose to {number(facts.worst)} times that of a constant prediction"
    jump = "the loss became NaN or infinite" if facts.is_broken else jump
    jump = jump if facts.is_broken or facts.worst > 1.05 else "the loss does not settle"
    limits = ("step-replaces", "jump-trained") if facts.is_rehearsal else ("step-large", "jump")
    return facts.found(
        "lr-too-large",
        f"At a learning rate of {number(lr)} an early step moves the weights by "
        f"{percent(early) if early < 1 else number(early) + ' times'}"
        f"{'' if early < 1 else ' their own size'}, and {jump}.",
        Evidence("largest share of the weights that one of the first steps moves", early),
        Evidence("overshoot of these steps, median", factor),
        Evidence("largest loss over that of a constant prediction", facts.worst),
        threshold=f"Flagged above {said(*limits)}, or an overshoot above {said('overshoot')}.",
        severity=severity,
        steps=(0, min(_EARLY, facts.count) - 1),
        remedy=remedy.scaled_rate(facts, better),
        falsified_by=f"At a learning rate of {better:g} the loss jumps as before.",
    )


def _smaller(facts: Facts, lr: float) -> float:
    """The rate at which the first steps go to the minimum along them at most, and are of a usual size.

    Only of the first: once the weights are thrown away, steps and overshoots are of any size. Momentum makes steps
    longer later, by 1 / (1 - momentum).
    """
    first = next((ratio for ratio in facts.step_ratio.tolist() if math.isfinite(ratio) and ratio > 0), math.nan)
    longer = 1 - facts.setting("momentum")
    share = _USUAL * longer / first if first > _USUAL * longer else math.nan
    over = next((value for value in facts.overshoot[:_EARLY].tolist() if value > limit("overshoot")), math.nan)
    known = [one for one in (share, 1 / over) if math.isfinite(one)]
    return remedy.rounded(lr * max(min(known, default=0.1), _LEAST * longer / max(first, _LEAST)))


def too_small(facts: Facts) -> Finding | str | None:
    """Steps so short that the slope does not change along them, all together moving next to nothing."""
    if facts.is_of_checkpoints or not np.isfinite(facts.step_ratio).any():
        return _UNSEEN
    if facts.state in ("trained", "unknown"):
        return None if facts.state == "trained" else "it takes a loss over 20 steps"
    if (faded := _faded(facts)) is not None:
        return faded
    ratio = median(facts.step_ratio)
    over = median(facts.overshoot)  # NaN where it was not recorded, which no limit is compared with
    linear = abs(over) < limit("linear")
    creeps = facts.path < limit("pace") * facts.count or (not len(facts.overshoot) and facts.path < 0.02)
    if not ratio > 0 or not ((linear and facts.path < limit("path")) or creeps) or _is_leaving_plateau(facts):
        return None if len(facts.overshoot) else f"{_NO_OVERSHOOT}, so that only steps next to nothing were looked for"
    if _is_uneven(facts) or abs(over) > limit("stiff"):
        return None
    lr = remedy.learning_rate(facts)
    # where the slope is flat, weights move little at any rate
    room = 0.3 / over if over > 0 and not facts.is_adam else math.inf
    better = remedy.rounded(lr * max(10.0, min(_USUAL / ratio, room)))
    cure, outweighed = remedy.scaled_rate(facts, better), ""
    eps = facts.setting("eps") if facts.is_adam else 0.0
    if eps > remedy.USUAL_EPS and eps > (size := _of_a_weight(facts)):
        outweighed = f" Adam's eps of {number(eps)} outweighs the gradient of a weight, {number(size)}."
        cure = Remedy(f"{cure.code}\n# or, at your learning rate, eps={remedy.USUAL_EPS:g}", cure.actions)
    return facts.found(
        "lr-too-small",
        f"At a learning rate of {number(lr)} a step moves the weights by {number(ratio)} of their size, and all "
        f"{facts.count:,} steps together by {number(facts.path)}: the loss falls in a straight line, far too slowly."
        f"{outweighed}",
        Evidence("sum of the relative steps", facts.path),
        Evidence("overshoot, median", over),
        threshold=f"Flagged below {said('path', 'pace')}.",
        severity=facts.severity if facts.count >= limit("sure") else "warning",
        steps=(0, facts.count - 1),
        remedy=cure,
        falsified_by=f"At a learning rate of {better:g} the loss does not fall faster.",
    )


def _of_a_weight(facts: Facts) -> float:
    """Root mean square of the gradient over all weights, median over the steps."""
    count = sum(math.prod(facts.parameters[name]["shape"]) for name in facts.table_names if name in facts.parameters)
    return median(facts.steps_column("gradient_norm")) / math.sqrt(max(1, count))


def _faded(facts: Facts) -> Finding | None:
    """A schedule that took the rate away while the loss still fell."""
    rates = facts.steps_column("learning_rate")
    top = largest(rates)  # the first one, or that which a warmup leads to
    if len(rates) < limit("steps") or not top > 0 or median(rates[len(rates) // 3 :]) >= limit("faded") * top:
        return None
    return facts.found(
        "lr-too-small",
        f"The schedule took the learning rate from {number(top)} to {number(float(rates[-1]))} while the "
        "loss had hardly fallen.",
        Evidence("last learning rate over the largest", float(rates[-1]) / top),
        title="The learning rate fades too early",
        threshold=f"Flagged below {said('faded')}.",
        steps=(0, facts.count - 1),
        figure="training_curves",
        remedy=Remedy(
            f"for group in optimizer.param_groups:\n    group['lr'] = {top:g}  # after scheduler.step(), or "
            "without a scheduler",
            (Action("constant_rate", {"value": top}),),
        ),
        falsified_by="With a constant learning rate the loss does not fall further.",
    )


def _is_leaving_plateau(facts: Facts) -> bool:
    """The gradient grows, or the loss falls at a fair pace: it will train."""
    grads = facts.steps_column("gradient_norm")
    part = max(2, len(grads) // 5)
    grows = len(grads) >= 10 and median(grads[-part:]) > 1.3 * median(grads[:part])
    fall = facts.first_loss - median(facts.finite_loss[-3:])
    return bool(grows or fall > limit("slow") * max(facts.base, facts.first_loss) * facts.count)


def _is_uneven(facts: Facts) -> bool:
    """One layer moves far more than most."""
    pace = np.array([median(column) for column in facts.ratios[:, facts.norms[0] > 0].T])
    pace = pace[np.isfinite(pace) & (pace > 0)]
    return bool(len(pace) > 3 and pace.max() > limit("uneven") * np.median(pace))


def clipping(facts: Facts) -> Finding | str | None:
    """Clipping that leaves next to nothing of the usual gradient."""
    before, after = facts.run.steps.get("gradient_norm_before_clipping"), facts.run.steps.get("gradient_norm")
    if facts.is_of_checkpoints or before is None or after is None or not before.notna().any():
        return "gradient norms before clipping were not recorded"
    left = _left(facts)
    if not left < limit("clip"):
        return None
    is_outweighed = _clips_below_decay(facts)
    divides = facts.is_adam and median(after.to_numpy(float)) > limit("adam-eps") * facts.setting("eps")
    if divides and not is_outweighed:
        return None  # Adam divides the bound out again
    usual = median(before.to_numpy(float))
    does = "the weight decay outweighs what is left" if is_outweighed else "each step is that much shorter"
    of_decay = Evidence("pull of the decay over that of the clipped gradient", _late_pull(facts))
    return facts.found(
        "clipping-too-tight",
        f"Clipping leaves {percent(left)} of the gradient, whose usual norm is {number(usual)}: {does}.",
        Evidence("gradient norm after over before clipping, median", left),
        *([of_decay] if is_outweighed else []),
        threshold=f"Flagged below {said('clip')}.",
        steps=(0, facts.count - 1),
        remedy=Remedy(
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={remedy.rounded(2 * usual):g})"
            "  # in place of your call, between loss.backward() and optimizer.step()"
        ),
    )


def _left(facts: Facts) -> float:
    """Gradient norm after over before clipping, median; NaN where nothing clipped."""
    before, after = (facts.run.steps.get(f"gradient_norm{when}") for when in ("_before_clipping", ""))
    if before is None or after is None:
        return math.nan
    with np.errstate(all="ignore"):
        return median(after.to_numpy(float) / before.to_numpy(float))


def weight_decay(facts: Facts) -> Finding | str | None:
    """Decay that pulls the weights towards zero about as hard as the gradient pulls them anywhere."""
    decay = facts.setting("weight_decay")
    if facts.is_of_checkpoints or not len(facts.size):
        return "norms of weights were not recorded at each step"
    if not decay or _clips_below_decay(facts):
        return None
    if isinstance(found := facts.first_and_last("parameters", "norm"), str):
        return found
    if facts.size[0] == 0:
        return None
    rate = remedy.learning_rate(facts)
    shrunk = float(facts.size[-1] / facts.size[0])
    predicted = math.exp(facts.count * math.log1p(-min(rate * decay, 0.99))) if math.isfinite(rate) else 1.0
    pull = _late_pull(facts)
    gone = predicted < limit("shrunk") and shrunk < 0.95 and facts.state in ("failing", "partly")
    if not pull > limit("decay") or not (shrunk < limit("shrunk") or gone):
        return None
    better = remedy.rounded(min(5e-4, decay / 100))
    return facts.found(
        "weight-decay-too-strong",
        f"A weight decay of {number(decay)} shrinks the weights to {percent(shrunk)} of their size; at the end it "
        f"pulls at them {number(pull)} times as hard as the gradient.",
        Evidence("pull of the decay over that of the gradient", pull),
        Evidence("size of the weights, end over start", shrunk),
        threshold=f"Flagged above {said('decay')} and below {said('shrunk')}.",
        steps=(0, facts.count - 1),
        remedy=Remedy(
            f"{remedy.optimizer(facts, weight_decay=better)}  # in place of yours",
            (Action("weight_decay", {"value": better}),),
        ),
        falsified_by=f"With a weight decay of {better:g} the loss falls no further.",
    )


def _clips_below_decay(facts: Facts) -> bool:
    """A decay that is a part of the gradient outweighs what clipping leaves of it, and would not outweigh all of it."""
    left, pull = _left(facts), _late_pull(facts)
    return not _is_decoupled(facts) and left < limit("clip") and pull * left < limit("decay") < pull


def _late_pull(facts: Facts) -> float:
    """Of the decay over that of the gradient, towards the end; AdamW's is compared with the whole step."""
    decay = facts.setting("weight_decay")
    with np.errstate(all="ignore"):
        if _is_decoupled(facts):
            pull = remedy.learning_rate(facts) * decay / facts.step_ratio
        else:
            pull = decay * facts.size / np.sqrt(np.nansum(facts.gradients**2, axis=1))
    return median(pull[-max(5, len(facts.size) // 4) :])


def _is_decoupled(facts: Facts) -> bool:
    return any(group["class"] == "AdamW" or group.get("decoupled_weight_decay") for group in facts.groups)
