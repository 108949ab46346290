"""How a training went, from its losses, its scores, and how far the weights moved."""

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit
from gatdiag.diagnosis.wording import number, percent

declare_limits(
    {
        "trained": Limit(0.6, "share of the loss of the best constant prediction that is gone: what remains is a note"),
        "failing": Limit(0.35, "less of it gone: not training; healthy runs 0.17 to 1, median 0.99; between: warnings"),
        "frozen": Limit(0.01, "sum of all steps over the weights' norm: what moved less did not learn"),
        "good-score": Limit(0.5, "of the way from chance to a perfect score; below 0.35 it is bad"),
        "begun": Limit(0.1, "share of the loss of the best constant prediction that is gone: it has begun to learn"),
        "offset": Limit(0.01, "share of the first losses that is gone: with less, the loss may have an offset"),
        "losses": Limit(8, "logged losses: with fewer, their noise is not known"),
        "sigmas": Limit(5, "standard errors of the fall of a loss whose lowest value is not known"),
        "hint": Limit(3.5, "standard errors: a fall that may be noise; flat losses have fewer in 999 of 1,000 runs"),
        "noise": Limit(0.3, "noise of a loss over its size: policy gradients 10, tasks 0.4, usual batches 0.2"),
    }
)

_FIRST: Final = 3  # losses

STILL_FALLS: Final = "it still falls, and far enough if it goes on for as many steps again: train longer"
"""End of the reason for a training that would fail if it ended here."""
LEARNS: Final = "the network learns from its inputs, and how much more they can tell is not known"
"""End of the reason for a training of which little of the loss is gone, which noise in the data may explain."""
TELLS_NOTHING: Final = (
    "mostly noise: log a score", "can get is not known: log a score", "do not compare: log a score",
    "play against each other",
)  # fmt: skip
"""Ends of the reasons for a training of which losses were logged, and show nothing."""

Floats: TypeAlias = NDArray[np.float64]
State: TypeAlias = Literal["trained", "partly", "failing", "unknown", "untrained"]


class Course(NamedTuple):
    """How a training went, and what shows it; for "unknown", what is missing."""

    state: State
    reason: str


def judge_course(
    losses: Floats,
    steps: int,
    *,
    chance: float = math.nan,
    path: float = math.nan,
    scores: Sequence[float] = (),
    is_open: bool = False,
    has_opponent: bool = False,
    of_tokens: bool = False,
    is_policy: bool = False,
    tells_apart: bool = False,
    changes: str = "",
) -> Course:
    """Judge a training whose losses are finite.

    1. Below 20 steps, or without a loss, it is unknown.
    2. Where the loss of the best constant prediction is known, zero is the lowest loss, and what counts is the share of
       the lower of that and the first loss that is gone at the end: 60% is trained, less than 35% is failing, between
       is partly, as is less where the loss still falls fast enough, or is clearly 10% lower. What is left of one that
       fell partly, and falls no more, may be noise in the data. If the weights moved by less than 1% in total, the
       first loss is the median of the first losses.
    3. Of another loss that was never negative zero is taken as the lowest, too, and the share of the first losses
       counts; unless less than 35% is gone although the weights moved by 30% or more, as of a loss with an offset, or
       of random negatives. Then, or with a negative loss, neither sign nor level counts, as the lowest value is not
       known, but the fall from the first to the last fifth (medians) over its standard error by the noise between
       neighboring steps: below 5 of them it is failing, or unknown if the noise is as large as the loss itself, which
       then measures no error (as in policy gradients). A loss that fell further is unknown. With weights that moved by
       less than 1% in total, every such training is failing. Of a loss that compares outputs with each other
       (contrastive) less than 35% may be all that can go: it is failing below 5%, and between unknown. Of one that
       another network works against nothing is known, nor of that of a policy, nor of one of tokens that is 5% below
       that of a constant, or will be after as many steps at this pace. It first falls to that of a constant, and may
       stay there for a while: what still falls, or was logged too rarely to show that, has not failed.
    4. Whatever the loss says, a network with good scores on all splits (halfway from chance to perfect) is at least
       partly trained; with bad ones on all (below 35%), it fails where the loss leaves it unknown.

    Args:
        losses: The logged losses, in order.
        steps: Number of steps of the training, of which not all need a loss.
        chance: Loss of the best constant prediction, where it is known and the loss is of that kind; else NaN.
        path: Sum over all steps of ‖ΔW‖/‖W‖; NaN if it was not recorded.
        scores: Where logged scores are on the way from chance (0) to perfect (1), one for each split of the data.
        is_open: The lowest loss is not zero, nor known.
        of_tokens: Targets are tokens of a text, whose entropy is the lowest loss, and not known.
        has_opponent: Another network is trained against this one, and the loss is about both.
        is_policy: The loss weighs likelihoods by rewards, and measures no error.
        tells_apart: Outputs tell a rare class apart, whose entropy is hardly more than the lowest loss.
        changes: Why losses of different steps do not compare; "" if they do. Then a clear change says nothing.

    Example:
        >>> judge_course(np.linspace(-3.0, -900.0, 200), 200).state, judge_course(np.linspace(2.0, 0.1, 200), 200).state
        ('unknown', 'trained')
    """
    if not len(losses):
        missing = Course("unknown", "no loss was logged: call recorder.log(loss=...) in the loop")
        return judge_by_scores(missing, losses, scores)
    if steps < limit("steps"):
        were = "steps were" if steps > 1 else "step was"
        return Course("unknown", f"only {steps} {were} recorded, and {limit('steps'):g} are needed")
    if len(losses) == 1:
        return judge_by_scores(Course("unknown", "the loss was logged only once"), losses, scores)
    course = _against_chance(losses, chance, path, of_tokens=of_tokens) if chance > 0 else _against_noise(losses, path)
    if course.state == "failing" and not path < limit("frozen"):
        course = _not_failing(course, tells_apart or _has_learned(losses, chance, scores), losses, changes)
    if has_opponent and not path < limit("frozen"):
        course = Course("unknown", f"{_moved(losses)}, which says nothing where networks play against each other")
    elif is_policy and not path < limit("frozen"):
        course = Course("unknown", f"{_moved(losses)}, which says nothing where likelihoods are weighed by rewards")
    elif is_open and course.state == "failing" and _share_gone(losses) >= limit("fall") and _has_fallen(losses):
        course = _unknown_lowest(losses)
    return judge_by_scores(_at_end(course, losses), losses, scores)


def _at_end(course: Course, losses: Floats) -> Course:
    """A loss that fell partly, and is no longer below that in the middle by several standard errors, may be all."""
    middle, end = _later_parts(losses)
    is_known = course.state != "partly" or course.reason.endswith((STILL_FALLS, LEARNS))
    if is_known or _is_below(end, middle, noise(losses)):
        return course
    return Course("partly", f"{course.reason}; {LEARNS}")


def _not_failing(course: Course, has_learned: bool, losses: Floats, changes: str) -> Course:
    """What a failing course is where there is nothing more to learn, or losses do not compare."""
    if has_learned:
        return Course("partly", f"{course.reason}; {LEARNS}")
    if changes and (_has_fallen(losses) or _has_fallen(-losses)):
        return Course("unknown", f"{_moved(losses)}, but {changes}, and losses do not compare: log a score")
    return course


def judge_by_scores(course: Course, losses: Floats, scores: Sequence[float]) -> Course:
    """What logged scores add to how a training went by its losses; see point 4 of `judge_course`."""
    moved = f"; {_moved(losses)}" if len(losses) else ""
    is_open = course.state in ("failing", "unknown") or course.reason.endswith((STILL_FALLS, LEARNS))
    if scores and min(scores) >= limit("good-score") and is_open:
        return Course("partly", f"the logged scores are good{moved}")
    if scores and max(scores) < limit("failing") and course.state == "unknown":
        return Course("failing", f"the logged scores are near those of a constant prediction{moved}")
    return course


def _against_chance(losses: Floats, chance: float, path: float, *, of_tokens: bool) -> Course:
    first = float(np.median(_part(losses))) if path < limit("frozen") else float(losses[0])
    base, last = min(value for value in (first, chance) if value > 0), last_level(losses)
    gone = 1 - last / base
    state: State = "trained" if gone >= limit("trained") else "failing" if gone < limit("failing") else "partly"
    reason = f"{_moved(losses)}; that of the best constant prediction is {number(chance)}"
    if state == "failing" and of_tokens and _falls_below(losses, chance):
        return _unknown_lowest(losses)
    if state == "failing" and of_tokens and first - last > limit("fall") * first and not _stays(losses):
        return Course("unknown", f"{reason}, to which a loss of tokens falls first: train longer, or log each loss")
    is_early = state == "failing" and _still_falls(losses, base, begun=limit("begun"), goal=limit("failing"))
    return Course("partly", f"{reason}; {STILL_FALLS}") if is_early else Course(state, reason)


def _has_learned(losses: Floats, chance: float, scores: Sequence[float]) -> bool:
    """Some of the loss of a constant prediction is gone, by several standard errors, and no score is as bad as that."""
    if len(losses) < limit("losses") or min(scores, default=1.0) < limit("begun"):
        return False
    level = last_level(losses)
    error = 1.25 * noise(losses[len(losses) // 2 :]) / math.sqrt(max(3, len(losses) // 10))
    base = min(chance, float(losses[0]))
    return level < (1 - limit("begun")) * base and level + limit("hint") * error < base


def _stays(losses: Floats) -> bool:
    """Enough losses show that it no longer falls."""
    middle, end = _later_parts(losses)
    return len(end) >= limit("losses") and not _is_below(end, middle, noise(losses))


def _falls_below(losses: Floats, chance: float) -> bool:
    """It is below that of a constant prediction, or will be after as many steps again."""
    is_below = last_level(losses) <= (1 - limit("fall")) * chance
    return is_below or _still_falls(losses, chance, begun=-math.inf, goal=limit("fall"))


def _still_falls(losses: Floats, base: float, *, begun: float, goal: float) -> bool:
    """Some of the base is gone, and at the pace of the last half enough would be gone after as many steps again."""
    part = len(losses) // 5
    if len(losses) < limit("steps"):
        return False
    middle, end = _later_parts(losses)
    last, steps = float(np.median(end)), len(losses) - part / 2 - (len(losses) // 2 + part / 2)
    later = last - (float(np.median(middle)) - last) / steps * len(losses)
    return _is_below(end, middle, noise(losses)) and 1 - last / base > begun and 1 - later / base >= goal


def _against_noise(losses: Floats, path: float) -> Course:
    gone = _share_gone(losses)
    if path < limit("frozen") and not gone >= limit("trained"):
        return Course("failing", f"{_moved(losses)}; the weights moved by {percent(path)} in total")
    if gone >= limit("failing"):
        return Course("trained" if gone >= limit("trained") else "partly", _moved(losses))
    if not gone >= 0 and len(losses) < limit("losses"):
        return Course("unknown", f"{len(losses)} losses do not show whether it fell: log it at each step")
    if not _has_fallen(losses):
        is_noise = noise(losses) > limit("noise") * abs(float(np.median(losses))) or _has_fallen(losses, limit("hint"))
        return Course("unknown", f"{_moved(losses)}, mostly noise: log a score") if is_noise else _failing(losses)
    has_moved = path >= limit("path") or (math.isnan(path) and gone < limit("offset"))
    if gone >= 0 and not has_moved:
        return _failing(losses)
    return _unknown_lowest(losses)


def _unknown_lowest(losses: Floats) -> Course:
    return Course("unknown", f"{_moved(losses)}, and how low it can get is not known: log a score")


def _failing(losses: Floats) -> Course:
    return Course("failing", _moved(losses))


def _share_gone(losses: Floats) -> float:
    """Share of the first losses that is gone at the end; NaN if a loss was negative.

    Of losses that jump at once, by more than noise, and come back, it is that of the loss before the jump.
    """
    first, last = float(np.median(losses[: max(1, len(losses) // 20)])), last_level(losses)
    start = float(losses[0]) + limit("sigmas") * noise(losses)
    if last <= start:  # otherwise the first loss may weigh less, as in a warm-up, or be of an easy batch
        first = min(first, start)
    if 0 <= last < limit("offset") * losses[0]:
        first = max(first, float(losses[0]))  # it was gone at once
    return 1 - last / first if losses.min() >= 0 and first > 0 else math.nan


def _has_fallen(losses: Floats, sigmas: float = math.nan) -> bool:
    """The last fifth is below the first, or below the first losses, by several standard errors."""
    last, size = losses[-len(_part(losses)) :], noise(losses)
    return any(_is_below(last, first, size, sigmas) for first in (_part(losses), losses[:_FIRST]))


def _is_below(some: Floats, others: Floats, size: float, sigmas: float = math.nan) -> bool:
    """The median of some losses is below that of others by several standard errors; size is that of the noise."""
    error = 1.25 * size * math.sqrt(1 / len(some) + 1 / len(others))  # 1.25: of a median, not a mean
    sigmas = limit("sigmas") if math.isnan(sigmas) else sigmas
    return float(np.median(others) - np.median(some)) > sigmas * error


def last_level(losses: Floats) -> float:
    """Median of the losses of the last tenth of steps."""
    return float(np.median(losses[-max(3, len(losses) // 10) :])) if len(losses) else math.nan


def _part(losses: Floats) -> Floats:
    return losses[: max(1, len(losses) // 5)]


def _later_parts(losses: Floats) -> tuple[Floats, Floats]:
    """A fifth of the losses from the middle on, and the last fifth."""
    part = len(_part(losses))
    return losses[len(losses) // 2 :][:part], losses[-part:]


def noise(losses: Floats) -> float:
    """Standard deviation of the noise, by the median absolute deviation of differences of neighbors."""
    steps = np.diff(losses) if len(losses) > 1 else np.zeros(1)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)


def _moved(losses: Floats) -> str:
    return f"the loss went from {number(float(losses[0]), 4)} to {number(float(losses[-1]), 4)}"
