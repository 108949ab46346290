"""Steps of the wrong size: learning rate, gradient clipping, weight decay."""

import math
from typing import Any, Final

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.depth import over_hops
from gatdiag.diagnosis.facts import Facts, largest, median
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.fixes import USUAL_EPS
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.training import STILL_FALLS, Floats
from gatdiag.diagnosis.units import check_dead_units
from gatdiag.diagnosis.wording import number, percent

declare_limits(
    {
        "sure": Limit(50, "steps before a verdict that depends on the loss is an error"),
        "slow": Limit(1e-3, "of the first loss per step: at this pace it takes 1,000 steps"),
        "uneven": Limit(30, "the fastest layer's step over the median layer's: then the rate is not the cause"),
        "adam-eps": Limit(1e3, "times eps: above it, Adam divides the bound out again"),
    }
)

_EARLY: Final = 20  # steps
_SHRINKING: Final = 3.0  # times a usual step: root of the first step of RMSprop or Adagrad over later ones
_MOST: Final = 1.0  # largest learning rate that is proposed in place of a smaller one
_USUAL_MOMENTUM: Final = 0.9
_GUESS: Final = 0.01  # learning rate that is proposed where nothing bounds it
_LEAST: Final = 1e-3  # the same, lower bound for a learning rate proposed in place of a larger one
_NO_OVERSHOOT: Final = "overshoot was not recorded, which needs recorded steps in a row on the same batch"
_NOT_RECORDED = "no update ratio was recorded"


@cause(
    "lr-too-large",
    "The learning rate is too large",
    rank=220,
    why="a step that replaces the weights kills units and saturates softmaxes",
    figure="training_curves",
    column="parameters.update_ratio",
    limits={
        "step-large": Limit(
            0.5, "norm of a step over norm of the weights; of some healthy networks 0.53, faulty runs 2.1 to 9e6"
        ),
        "step-replaces": Limit(1, "norm of an early step over norm of the weights: it replaces them"),
        "jump-trained": Limit(
            100,
            "times the loss of the best constant prediction, if it came back and the network trains, or trains partly "
            "and no early step replaced the weights",
        ),
        "overshoot": Limit(2, "gradient descent diverges if learning rate x curvature exceeds 2"),
        "momentum": Limit(0.995, "of SGD: 200 gradients are added up; usual is 0.9, at times 0.99"),
        "driven": Limit(
            5, "times the norm of the weights at the start is the largest; at the end, healthy runs 0.36 to 3.6"
        ),
        "long": Limit(
            0.1, "norm of a step over norm of the weights, largest: weights that grow by themselves take many"
        ),
        "grown": Limit(10, "times the first step is the longest one; at 0.9 healthy runs up to 20, at 0.999 faulty 22"),
        "sum": Limit(4, "times the gradient of a mean over rows and micro-batches"),
    },
    borrowed=("jump",),
)
def check_too_large(facts: Facts) -> Finding | str | None:
    """Steps that overshoot the minimum along them, or replace the weights, and a loss that jumps or units that die."""
    if facts.is_of_checkpoints or not len(facts.step_ratios):
        return _NOT_RECORDED
    if facts.is_preflight and not facts.groups:
        return "no optimizer was given"
    early = largest(facts.step_ratios[: 1 if facts.is_preflight else _EARLY])
    over = facts.overshoot[:_EARLY]
    hits = over[over > limit("overshoot")]
    factor = median(hits)
    if facts.is_preflight:
        has_jump = _has_early_jump(facts, early, len(hits))
        return _rate_too_large(facts, early, factor, facts.severity) if has_jump else None
    if found := _lasting_harm(facts, early, factor):
        return found
    came_back = facts.state == "trained" or (facts.state == "partly" and not early > limit("step-replaces"))
    jump = limit("jump-trained" if came_back else "jump")
    if (facts.is_non_finite or facts.loss_jump > jump) and (len(hits) or early > limit("step-large")):
        is_unsure = facts.step_count < limit("sure") and not facts.is_non_finite
        return _rate_too_large(facts, early, factor, "warning" if is_unsure else facts.severity)
    if facts.state == "failing" and largest(facts.step_ratios[:5]) > limit("step-replaces"):
        return _rate_too_large(facts, early, factor, "error")
    swings = median(over) > limit("overshoot") or (early > limit("step-large") and median(over) > 1.2)
    if swings and facts.state == "failing" and facts.step_count >= limit("sure"):
        return _rate_too_large(facts, early, median(over), "warning")
    return None if len(over) or facts.state == "trained" else f"{_NO_OVERSHOOT}, so only jumps were looked for"


def _lasting_harm(facts: Facts, early: float, factor: float) -> Finding | None:
    """A network that does not train with a momentum near one, or after steps that killed its units."""
    if facts.state not in ("failing", "partly"):
        return None
    does_harm = _kills_units(facts) or _drives_weights_away(facts)
    return _momentum_near_one(facts) or (_rate_too_large(facts, early, factor, facts.severity) if does_harm else None)


def _drives_weights_away(facts: Facts) -> bool:
    """The loss jumped, and the weights have become many times as large, each step being part of what they were."""
    is_long = largest(facts.step_ratios) > limit("long")
    known = facts.total_norm[np.isfinite(facts.total_norm)]
    is_driven = largest(known) > limit("driven") * known[0] > 0 if len(known) else False
    return bool(facts.loss_jump > limit("jump") and is_driven and is_long)


def _kills_units(facts: Facts) -> bool:
    """Units died in training, after a step that replaced the weights or went past the minimum along it."""
    dead = check_dead_units(facts)
    if not isinstance(dead, Finding):
        return False
    until = facts.run.steps["step"] <= dead.steps[0]  # as a row has the overshoot of the step before
    overshoot = largest(facts.run.steps["overshoot"][until].to_numpy(float))
    ratio = largest(facts.step_ratios[facts.parameter_steps < dead.steps[0]])
    return ratio > limit("step-large") or overshoot > limit("overshoot")


def _has_early_jump(facts: Facts, early: float, hits: int) -> bool:
    """Before training: the loss rises after a first step that replaces the weights, jumps for good, or explodes."""
    explodes = facts.is_non_finite or facts.loss_jump > limit("jump-trained")
    replaces = early > limit("step-replaces") and facts.loss_jump > 1
    jumps = largest(facts.step_ratios) > limit("step-replaces") and facts.loss_jump > limit("jump")
    return replaces or (jumps and facts.progress < 0) or (explodes and (hits > 0 or early > limit("step-large")))


def _momentum_near_one(facts: Facts) -> Finding | None:
    """Momentum that makes steps many times longer than the rate, and keeps their direction for longer than is good."""
    momentum = facts.setting("momentum")
    if not momentum >= limit("momentum") or facts.is_preflight:
        return None
    moved = facts.step_ratios * facts.total_norm  # as weights that run away grow with the steps
    moved = moved[np.isfinite(moved) & (moved > 0)]
    grown = largest(moved) / moved[0] if len(moved) else math.nan
    if not (grown > limit("grown") or facts.is_non_finite):
        return None
    lr, times = remedy.initial_learning_rate(facts), 1 / (1 - momentum) if momentum < 1 else math.inf
    first = remedy.first_step_by_gradient(facts, lr)
    bound = lr * remedy.USUAL_STEP * (1 - _USUAL_MOMENTUM) / first if first > 0 else lr
    better = remedy.round_to_one_digit(bound) if bound < lr else lr
    smaller = remedy.change_learning_rate(facts, better).fixes if better < lr else ()
    return facts.finding(
        "lr-too-large",
        f"A momentum of {momentum:g} adds up the gradients of about {times:,.0f} steps: the learning rate of "
        f"{number(lr)} acts like {number(lr * times)}, and the direction of a step is that of gradients long ago. "
        f"Steps grew to {number(grown)} times the first one.",
        Evidence("momentum", momentum),
        Evidence("norm of the longest step over that of the first", grown),
        title="The momentum is too close to one",
        threshold=f"Flagged from {threshold_text('momentum')}, and growth above {threshold_text('grown')}.",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(remedy.set_in_optimizer(facts, "momentum", _USUAL_MOMENTUM), *smaller),
        falsified_by=f"With a momentum of {_USUAL_MOMENTUM:g} the loss falls no further.",
    )


def _rate_too_large(facts: Facts, early: float, factor: float, severity: Severity) -> Finding:
    lr = remedy.initial_learning_rate(facts)
    better, guess = _smaller_rate(facts, lr)
    effect = "the loss does not settle"
    if facts.is_non_finite:
        effect = "the loss became NaN or infinite"
    elif facts.loss_jump > 1.05:
        effect = f"the loss rose to {number(facts.loss_jump)} times that of a constant prediction or of the first step"
    limits = ("step-replaces", "jump-trained") if facts.is_preflight else ("step-large", "jump")
    why, instead = _multiple_of_mean(facts, better)
    return facts.finding(
        "lr-too-large",
        f"At a learning rate of {number(lr)} an early step changes the weights by "
        f"{f'{percent(early)} of' if early < 1 else f'{number(early)} times'} their norm, and {effect}.{why}",
        Evidence("norm of an early step over norm of the weights, largest", early),
        Evidence("overshoot of these steps, median", factor),
        Evidence("largest loss over that of a constant prediction or of the first step", facts.loss_jump),
        threshold=f"Flagged above {threshold_text(*limits)}, or an overshoot above {threshold_text('overshoot')}.",
        severity=severity,
        steps=(0, min(_EARLY, facts.step_count) - 1),
        **_shown(early, limits[0], factor),
        remedy=Remedy(*remedy.change_learning_rate(facts, better, guess).fixes, instead),
        falsified_by=f"With a learning rate of {better:g} the loss still jumps.",
    )


def _shown(early: float, name: str, factor: float) -> dict[str, Any]:
    """The quantity that shows too large a rate, and its threshold."""
    if early > limit(name):
        return {"column": "parameters.update_ratio", "line": limit(name)}
    return {"column": "steps.overshoot", "line": limit("overshoot")} if factor > limit("overshoot") else {"column": ""}


def _multiple_of_mean(facts: Facts, better: float) -> tuple[str, str]:
    """Why the gradient is many times that of a mean, and the line that makes it one; "" if it is not.

    The steps of Adam do not depend on it.
    """
    rows, passes = facts.summed_rows, facts.undivided_passes
    if facts.is_adam or rows * passes < limit("sum"):
        return "", ""
    rate = f"lr={remedy.round_to_one_digit(better * rows * passes):g}"
    if rows > passes:
        return (
            f" The loss is a sum, not a mean: its gradient is {number(rows)} times as long, and so is a step.",
            f"# or: loss = loss / {rows:.3g}  # or reduction='mean', with {rate}",
        )
    return (
        f" The gradients of {passes:.3g} backward passes are added up for each step, and not divided by their number.",
        f"# or: loss = loss / {passes:.3g}  # before each loss.backward(), with {rate}",
    )


def suits_standardized_inputs(facts: Facts, size: float) -> bool:
    """The learning rate is too large, but not for a curvature that is less by the square of the size of the inputs."""
    lr = remedy.initial_learning_rate(facts)
    return isinstance(check_too_large(facts), Finding) and _smaller_rate(facts, lr)[0] * size**2 >= lr


def _smaller_rate(facts: Facts, lr: float) -> tuple[float, str]:
    """The largest learning rate at which the first step is stable, as far as it was measured, and a remark if not.

    The first step must not pass the minimum along it, and must have a usual norm. Later steps are not telling once the
    weights have been replaced. Momentum makes steps longer later, by 1 / (1 - momentum).
    """
    first_step = _first_step(facts, lr)
    damping = 1 - facts.setting("momentum")
    shrinks = any(group["class"] in ("RMSprop", "Adagrad") for group in facts.groups)
    usual = remedy.USUAL_STEP * damping * (_SHRINKING if shrinks else 1.0)
    by_norm = usual / first_step if first_step > usual else math.nan
    over = next((value for value in facts.overshoot[:_EARLY].tolist() if value > limit("overshoot")), math.nan)
    if first_step > limit("step-replaces"):
        over = math.nan  # the slope so far away says nothing about shorter steps
    known = [one for one in (by_norm, 1 / over) if math.isfinite(one)]
    if not known:
        return min(0.1 * lr, _GUESS), "# a first guess, as no step was recorded that bounds it"
    return remedy.round_to_one_digit(lr * max(min(known), _LEAST * damping / max(first_step, _LEAST))), ""


def _first_step(facts: Facts, lr: float) -> float:
    """Norm of the first step over that of the weights: as recorded, or else what the first gradient makes of it."""
    recorded = next((ratio for ratio in facts.step_ratios.tolist() if math.isfinite(ratio) and ratio > 0), math.nan)
    predicted = remedy.first_step_by_gradient(facts, lr)
    return max((value for value in (recorded, predicted) if math.isfinite(value)), default=math.nan)


@cause(
    "lr-too-small",
    "The learning rate is too small",
    rank=270,
    why="everything above makes steps short, too",
    figure="unchanged_fraction",
    column="parameters.update_ratio",
    needs_training=True,
    limits={
        "path": Limit(0.3, "sum of step norms over weight norms; healthy runs 0.086 to 5.3, faulty runs 7e-4 to 0.1"),
        "pace": Limit(2e-4, "norm of a step over norm of the weights, mean over the run"),
        "batch-path": Limit(0.05, "the same sum where batches change, so that nothing is known of the slope"),
        "eps": Limit(3, "times the root mean square of the gradient; a usual eps is far below it"),
    },
)
def check_too_small(facts: Facts) -> Finding | str | None:
    """Steps so short that the slope does not change along them, and that hardly change the weights in total."""
    if facts.is_of_checkpoints or not np.isfinite(facts.step_ratios).any():
        return _NOT_RECORDED
    if facts.state in ("trained", "unknown"):
        return None if facts.state == "trained" else "it needs a loss over at least 20 steps"
    if found := _zero_rate(facts) or _swamped_by_eps(facts):
        return found
    ratio = median(facts.step_ratios)
    over = facts.early_overshoot  # NaN if it was not recorded: then comparisons are False
    path = float(facts.step_ratios[np.isfinite(facts.step_ratios)].mean()) * facts.step_count
    longest = "batch-path" if not len(facts.overshoot) else "path" if abs(over) < limit("linear") else ""
    pace = max(limit("pace"), limit(longest) / facts.step_count if longest else 0.0)
    is_slow = path < pace * facts.step_count
    if not ratio > 0 or not is_slow or (_is_leaving_plateau(facts) and not path < limit("frozen")):
        return None if len(facts.overshoot) else f"{_NO_OVERSHOOT}, so only tiny steps were looked for"
    if _differ(_paces_of_layers(facts)) or abs(over) > limit("stiff"):
        return None
    lr = remedy.initial_learning_rate(facts)
    # on a plateau, weights hardly move at any learning rate
    room = 0.3 / over if over > 0 and not facts.is_adam else math.inf
    better = remedy.round_to_one_digit(lr * max(10.0, min(remedy.USUAL_STEP / ratio, room)))
    if facts.is_adam:  # whose steps are as long as the rate, unless most gradients are zero
        better = min(better, max(_GUESS, remedy.round_to_one_digit(10 * lr)))
    fix, instead, remark = remedy.change_learning_rate(facts, better), f"a learning rate of {better:g}", ""
    paces = np.array([median(ratios) for ratios in facts.update_ratios[:, facts.norms[0] > 0].T])
    if not facts.is_adam and (better > _MOST or _differ(paces)):
        fix, instead = Remedy(remedy.use_adam(facts)), "Adam"
        remark = (
            f" Steps of a usual size would need a learning rate of {better:g}, at which gradient descent diverges once "
            "the gradient grows; the steps of Adam do not depend on its size."
            if better > _MOST
            else f" A step changes one parameter by {number(_spread(paces))} times as much of its norm as the median "
            "one, so that no learning rate of gradient descent is right for all; the steps of Adam do not depend on "
            "the size of the gradient."
        )
    return facts.finding(
        "lr-too-small",
        f"At a learning rate of {number(lr)} a step changes the weights by {number(ratio)} of their norm, and all "
        f"{facts.step_count:,} steps together by about {number(path)}: the loss falls far too slowly.{remark}",
        Evidence("sum over all steps of norm of the step over norm of the weights", path),
        Evidence("overshoot of the first 30 steps, median", over),
        threshold=f"Flagged below {threshold_text('path', 'pace')}.",
        line=pace,
        beyond="below",
        severity=_severity_of_slow(facts),
        steps=(0, facts.step_count - 1),
        remedy=fix,
        falsified_by=f"With {instead} the loss does not fall faster.",
    )


def _severity_of_slow(facts: Facts) -> Severity:
    """A note for a network that learns, though slowly."""
    if facts.state == "partly" or facts.course.reason.endswith(STILL_FALLS):
        return "note"
    return facts.severity if facts.step_count >= limit("sure") else "warning"


def _zero_rate(facts: Facts) -> Finding | None:
    """The learning rate itself is zero, not what a schedule makes of it."""
    rates = facts.steps_column("learning_rate")
    if not len(rates) or largest(rates) > 0:
        return None
    better = remedy.round_to_one_digit(remedy.USUAL_STEP / remedy.first_step_by_gradient(facts, 1.0))
    return facts.finding(
        "lr-too-small",
        "The learning rate is zero at every step, so that no step moves any weight.",
        Evidence("largest learning rate", 0.0),
        title="The learning rate is zero",
        threshold="Exact: no threshold.",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(remedy.set_in_optimizer(facts, "lr", better)),
        falsified_by="Some parameter changes in a step.",
    )


def _swamped_by_eps(facts: Facts) -> Finding | None:
    """Adam's eps is far above the gradients, so that each step is shorter by the factor between the two."""
    eps, size = facts.setting("eps") if facts.is_adam else 0.0, _gradient_rms(facts)
    if not eps > max(USUAL_EPS, limit("eps") * size) or not size > 0:
        return None
    if facts.step_count < limit("steps") or _goes_past(facts):
        return None
    lr = remedy.initial_learning_rate(facts)
    first = remedy.first_step_by_gradient(facts, lr)
    better = remedy.round_to_one_digit(lr * remedy.USUAL_STEP / first) if first > limit("step-large") else lr
    smaller = remedy.change_learning_rate(facts, better).fixes if better < lr else ()
    return facts.finding(
        "lr-too-small",
        f"Adam divides by the size of the gradient plus eps, and its eps of {number(eps)} is {number(eps / size)} "
        f"times the typical gradient of a weight, {number(size)}: each step is shorter by about that factor, and all "
        f"{facts.step_count:,} steps together move the weights by {number(facts.path)} of their norm.",
        Evidence("eps over the typical gradient of a weight", eps / size),
        Evidence("sum over all steps of norm of the step over norm of the weights", facts.path),
        Evidence("overshoot, median", median(facts.overshoot)),
        title="Adam's eps swamps the gradients",
        threshold=f"Flagged above {threshold_text('eps')}.",
        severity=facts.severity if facts.step_count >= limit("sure") else "warning",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(remedy.set_in_optimizer(facts, "eps", USUAL_EPS), *smaller),
        falsified_by=f"With eps={USUAL_EPS:g} the loss does not fall faster.",
    )


def _goes_past(facts: Facts) -> bool:
    """Steps come near the minimum along them, so that longer ones would not help."""
    return abs(median(facts.overshoot)) > limit("stiff")


def _gradient_rms(facts: Facts) -> float:
    """Root mean square of the gradient over all weights, median over the steps."""
    return median(facts.steps_column("gradient_norm")) / math.sqrt(max(1, facts.weight_count))


def _is_leaving_plateau(facts: Facts) -> bool:
    """The gradient grows, or the loss falls at a fair pace below that of the best constant: the network will train."""
    grads = facts.steps_column("gradient_norm")
    part = max(2, len(grads) // 5)
    grows = len(grads) >= 10 and median(grads[-part:]) > 1.3 * median(grads[:part])
    fall = facts.baseline_loss - median(facts.finite_loss[-3:])  # biases do the rest
    return bool(grows or fall > limit("slow") * max(facts.baseline_loss, facts.first_loss) * facts.step_count)


def _paces_of_layers(facts: Facts) -> Floats:
    """Norm of a step over norm of the weights, median over the steps, of each layer."""
    names = ([one["name"] for one in layer["parameters"]] for layer in facts.layers)
    return np.array([median(facts.step_ratios_of(own)) for own in names])


def _spread(paces: Floats) -> float:
    """The largest over the median one, of more than three that move; NaN of fewer."""
    moving = paces[np.isfinite(paces) & (paces > 0)]
    return float(moving.max() / np.median(moving)) if len(moving) > 3 else math.nan


def _differ(paces: Floats) -> bool:
    """One moves far more than most."""
    return _spread(paces) > limit("uneven")


@cause(
    "clipping-too-tight",
    "Gradient clipping is too tight",
    rank=260,
    why="the bound, not the learning rate, makes the steps short",
    figure="training_curves",
    column="steps.gradient_norm",
    falsified_by="Without clipping the loss falls no faster.",
    needs_training=True,
    is_independent=True,
    limits={
        "clip": Limit(0.1, "gradient norm after over before clipping, median; healthy runs 1, faulty runs 3e-9 to 2e-3")
    },
)
def check_clipping(facts: Facts) -> Finding | str | None:
    """Clipping that leaves almost nothing of the usual gradient."""
    after, before = facts.steps_column("gradient_norm"), facts.steps_column("gradient_norm_before_clipping")
    if facts.is_of_checkpoints or not len(before):
        return "gradient norms before clipping were not recorded"
    left = median(facts.clipped_shares)
    if not 0 < left < limit("clip"):  # at 0 the gradients were cleared, see check_signal
        return None
    is_outweighed = _clips_below_decay(facts)
    if facts.path > limit("path") and not is_outweighed:
        return None  # steps of the bounded length are long enough
    divides = facts.is_adam and median(after) > limit("adam-eps") * facts.setting("eps")
    if divides and not is_outweighed:
        return None  # Adam's steps do not depend on the scale of the gradient
    usual = median(before)
    effect = "weight decay outweighs what is left" if is_outweighed else "each step is shorter by that factor"
    fix = f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={remedy.round_to_one_digit(2 * usual):g})"
    if facts.signals.get("has_scaled_loss"):
        fix = f"scaler.unscale_(optimizer)  # once per step: else max_norm bounds gradients of the scaled loss\n{fix}"
    of_decay = Evidence("pull of the decay over that of the clipped gradient", _late_pull(facts))
    return facts.finding(
        "clipping-too-tight",
        f"Clipping leaves {percent(left)} of the gradient, whose usual norm is {number(usual)}: {effect}.",
        Evidence("gradient norm after over before clipping, median", left),
        *([of_decay] if is_outweighed else []),
        threshold=f"Flagged below {threshold_text('clip')}.",
        line=limit("clip") * usual,  # of what is left of the usual gradient
        beyond="below",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(f"{fix}  # instead of your call, between loss.backward() and optimizer.step()"),
    )


@cause(
    "weight-decay-too-strong",
    "Weight decay is too strong",
    rank=210,
    why="weights near zero shrink outputs and gradients",
    figure="training_curves",
    needs_training=True,
    limits={
        "decay": Limit(0.5, "pull of the decay over that of the gradient; they are in equilibrium at 1"),
        "nothing-left": Limit(0.05, "the same: what is left is noise, whatever pulls at it"),
        "shrunk": Limit(
            0.5, "norm of the weights at the end over the start; healthy runs 0.36 to 3.6, faulty runs 0.001 to 0.6"
        ),
    },
)
def check_weight_decay(facts: Facts) -> Finding | str | None:
    """Weight decay that pulls the weights towards zero about as hard as the gradient moves them."""
    if penalty := _penalty_too_strong(facts):
        return penalty
    decay = facts.setting("weight_decay")
    if facts.is_of_checkpoints or not len(facts.total_norm):
        return "norms of weights were not recorded at each step"
    if not decay or _clips_below_decay(facts):
        return None
    if isinstance(found := facts.first_and_last("parameters", "norm"), str):
        return found
    if facts.total_norm[0] == 0 or facts.step_count < limit("steps") or over_hops(facts):
        return None  # nodes that are alike before the first step leave no gradient that could withstand any decay
    shrunk = float(facts.total_norm[-1] / facts.total_norm[0])
    predicted = _predicted_shrinking(facts)
    pull = _late_pull(facts)
    gone = predicted < limit("shrunk") and shrunk < 0.95 and facts.state in ("failing", "partly")
    outweighs = pull > limit("decay") and (shrunk < limit("shrunk") or gone)
    if not outweighs and not (shrunk < limit("nothing-left") and predicted < limit("shrunk")):
        return None
    better = remedy.round_to_one_digit(min(5e-4, decay / 100))
    return facts.finding(
        "weight-decay-too-strong",
        f"A weight decay of {number(decay)} shrinks the weights to {percent(shrunk)} of their initial norm; at the "
        f"end its pull is {number(pull)} times that of the gradient.",
        Evidence("pull of the decay over that of the gradient", pull),
        Evidence("norm of the weights, end over start", shrunk),
        threshold=f"Flagged above {threshold_text('decay')} and below {threshold_text('shrunk')}.",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(remedy.change_optimizer(facts, "weight_decay", {"weight_decay": better}, value=better)),
        falsified_by=f"With a weight decay of {better:g} the loss falls no further.",
    )


def _predicted_shrinking(facts: Facts) -> float:
    """What decay alone would leave of the norm of all weights."""
    rate = remedy.initial_learning_rate(facts)
    if not math.isfinite(rate):
        return 1.0
    left = (1 - np.minimum(rate * facts.decays, 0.99)) ** facts.step_count * facts.norms[0]
    return float(np.sqrt(np.nansum(left**2)) / facts.total_norm[0])


def _penalty_too_strong(facts: Facts) -> Finding | None:
    """A penalty on weights that is part of the loss, and weights that shrink until nothing but it is learned."""
    shrunk = facts.growth
    if not facts.learns_nothing_but_a_penalty or not shrunk < limit("shrunk"):
        return None
    last = float(facts.output["last_cross_entropy"])
    return facts.finding(
        "weight-decay-too-strong",
        f"The loss holds a penalty on weights, which shrink to {percent(shrunk)} of their initial norm, while its "
        f"cross-entropy stays that of a constant prediction, {number(last)}: the penalty is all that is learned.",
        Evidence("norm of the weights, end over start", shrunk),
        Evidence("cross-entropy at the end", last),
        title="The penalty on weights is too strong",
        threshold=f"Flagged below {threshold_text('shrunk')}.",
        steps=(0, facts.step_count - 1),
        remedy=Remedy("loss = error + 1e-4 * penalty  # the factor of the penalty: a hundredth of yours, or less"),
        falsified_by="With a hundredth of the penalty the loss but for it falls no further.",
    )


def _clips_below_decay(facts: Facts) -> bool:
    """Decay that is added to the gradient outweighs the clipped gradient, but would not outweigh all of it."""
    left, pull = median(facts.clipped_shares), _late_pull(facts)
    return not _is_decoupled(facts) and left < limit("clip") and pull * left < limit("decay") < pull


def _late_pull(facts: Facts) -> float:
    """Pull of the decay over that of the gradient, towards the end; for AdamW, over the whole step.

    Biases are left out: that of the output gets a gradient however small the weights are.
    """
    with np.errstate(all="ignore"):
        if _is_decoupled(facts):
            decayed = np.sqrt(np.nansum((facts.decays * facts.norms) ** 2, axis=1))
            pull = remedy.initial_learning_rate(facts) * decayed / (facts.step_ratios * facts.total_norm)
        else:
            is_bias = [len(facts.parameters.get(name, {}).get("shape", ())) == 1 for name in facts.parameter_names]
            kept = slice(None) if all(is_bias) else ~np.array(is_bias)
            decayed, gradients = (facts.decays * facts.norms)[:, kept], facts.gradient_norms[:, kept]
            pull = np.sqrt(np.nansum(decayed**2, axis=1) / np.nansum(gradients**2, axis=1))
    return median(pull[-max(5, len(facts.total_norm) // 4) :])


def _is_decoupled(facts: Facts) -> bool:
    return any(group["class"] == "AdamW" or group.get("decoupled_weight_decay") for group in facts.groups)
