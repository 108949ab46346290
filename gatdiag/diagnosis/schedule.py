"""Schedules that end a training: the learning rate vanishes, or never rises, while the loss could still fall."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts, largest, median
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.training import Floats, noise
from gatdiag.diagnosis.wording import number

_CALLS: Final = "# or adjust the schedule: step_size, T_max and warm-up count calls of scheduler.step()"


class _Schedule(NamedTuple):
    """The rates of a training.

    Attributes:
        steps: Their numbers.
        widths: How many steps each stands for.
        relative: The rate over the one that is meant, of the parameter group where this is largest.
        meant: The largest rate of each group, or what the schedule was to begin or end at if that is larger.
        is_rising: It never falls, and is at its largest at the end.
    """

    steps: Floats
    widths: Floats
    relative: Floats
    meant: list[float]
    is_rising: bool

    @property
    def full_steps(self) -> float:
        """Number of steps at the rate that is meant that would move the weights as far."""
        return float((self.widths * self.relative).sum())

    @property
    def faded(self) -> float:
        """Share of the training at a negligible rate."""
        return float(self.widths[self.relative < limit("faded")].sum() / self.widths.sum())


@cause(
    "lr-decays-too-fast",
    "The learning rate decays too early",
    rank=265,
    why="a rate that has vanished makes steps short, however large it was",
    figure="training_curves",
    falsified_by="With a constant learning rate the loss does not fall further.",
    needs_training=True,
    limits={
        "faded": Limit(1e-2, "of the largest learning rate: a negligible one"),
        "mostly": Limit(0.5, "share of the training at a negligible rate; cosine and one-cycle schedules 0.06"),
        "full-steps": Limit(20, "steps at the full rate, or as many shorter ones: too few to judge a loss by"),
        "cut-off": Limit(
            0.5, "of the last loss: it would be gone at the pace at which it fell while the rate was there"
        ),
        "raised": Limit(0.1, "of the last rate: where a warm-up begins; or of the rate that it leads to: where it is"),
    },
    borrowed=("path", "fall"),
)
def check_schedule(facts: Facts) -> Finding | str | None:
    """A rate that is negligible in most of the training, or a warm-up that has not ended, and a loss that still fell.

    Schedules that lower the rate as the training nears its end are none: most of it is over then.
    """
    if facts.is_of_checkpoints or (schedule := _schedule(facts)) is None:
        return "learning rates were not recorded over at least 20 steps"
    if facts.state == "unknown":
        return "it needs a loss over at least 20 steps"
    has_stopped = schedule.faded >= limit("mostly") and schedule.relative[-1] < limit("faded")
    if not (has_stopped or schedule.is_rising) or not _was_cut_off(facts, schedule):
        return None
    if facts.state == "trained" and (schedule.is_rising or schedule.relative[-1] > 0):
        return None
    return _too_slow_a_rise(facts, schedule) if schedule.is_rising else _too_early_a_fall(facts, schedule)


def _schedule(facts: Facts) -> _Schedule | None:
    frame = facts.run.steps
    names = [name for name in frame.columns if name.startswith("learning_rate")]
    rates = frame[names].ffill().bfill().to_numpy(float)
    rates = rates[:, np.isfinite(rates).all(axis=0)]
    if not rates.size or facts.step_count < limit("steps"):
        return None
    steps = frame["step"].to_numpy(float)
    groups = facts.groups if len(facts.groups) == rates.shape[1] else [{}] * rates.shape[1]
    top, kept = rates.max(axis=0), np.array([_kept(group) for group in groups])
    is_rising = all(_rises(each, known) for each, known in zip(rates.T, kept, strict=True))
    meant = np.where((top > 0) & (not is_rising), top, np.maximum(top, kept))
    if not (meant > 0).any():
        return None
    relative = (rates[:, meant > 0] / meant[meant > 0]).max(axis=1)
    return _Schedule(steps, np.diff(steps, append=steps[-1] + 1), relative, meant.tolist(), is_rising)


def _rises(rates: Floats, kept: float) -> bool:
    """It is at its largest at the end, never fell, and has risen from little or is still little."""
    is_last = rates[-1] > 0 and rates[-1] > rates[int(0.8 * len(rates))]
    is_little = rates[0] < limit("raised") * rates[-1] or rates[-1] < limit("raised") * kept
    return bool(is_last and is_little and (np.diff(rates) >= -1e-9 * rates[-1]).all())


def _kept(group: Mapping[str, Any]) -> float:
    """The rate that a scheduler of torch scales or rises to, which it keeps in the group; 0 without one."""
    return max(
        [float(group[name]) for name in ("initial_lr", "max_lr") if isinstance(group.get(name), int | float)] or [0]
    )


def _was_cut_off(facts: Facts, schedule: _Schedule) -> bool:
    """The steps that were made are too few to train with, or made the loss fall at a pace that promised more.

    A loss that has only begun to fall promises more than its pace says.
    """
    full = schedule.full_steps
    if full < limit("full-steps") or (schedule.is_rising and facts.path < limit("path")):
        return True
    done = np.interp(facts.loss.index.to_numpy(float), schedule.steps, np.cumsum(schedule.widths * schedule.relative))
    losses = facts.loss.to_numpy(float)
    before = losses[(done >= 0.3 * full) & (done <= 0.6 * full) & np.isfinite(losses)]
    fall = median(before) - facts.last_loss
    error = 1.25 * noise(facts.finite_loss) * math.sqrt(2 / max(1, len(before)))
    promised = fall / (0.55 * full) * (schedule.widths.sum() - full)
    is_steep, has_just_begun = promised > limit("cut-off") * abs(facts.last_loss), facts.progress < limit("fall")
    return bool(fall > limit("sigmas") * error and (is_steep or has_just_begun))


def _too_early_a_fall(facts: Facts, schedule: _Schedule) -> Finding:
    top, last = schedule.meant[0], float(facts.steps_column("learning_rate")[-1])
    since = int(schedule.steps[np.flatnonzero(schedule.relative >= limit("faded"))[-1:]].sum()) + 1
    if not largest(schedule.relative):
        text = f"The schedule holds the learning rate at zero: the {number(top)} of the optimizer is never used."
    else:
        text = (
            f"The schedule lowered the learning rate from {number(top)} to {number(last)} before the loss had fallen: "
            f"from step {since:,} of {facts.step_count:,} on it is negligible, and all steps together count like "
            f"{number(schedule.full_steps)} at the full rate."
        )
    return _finding(facts, schedule, text, "", schedule.meant)


def _too_slow_a_rise(facts: Facts, schedule: _Schedule) -> Finding:
    last = schedule.meant[0] * float(schedule.relative[-1])
    rates = [_usable(facts, schedule, meant) for meant in schedule.meant]
    of = f" of {number(schedule.meant[0])}" if schedule.relative[-1] < 0.99 else ""
    text = (
        f"The learning rate still rises at the last of {facts.step_count:,} steps, where it is {number(last)}{of}: all "
        f"steps together count like {number(schedule.full_steps)} at that rate."
    )
    return _finding(facts, schedule, text, "The warm-up of the learning rate does not end", rates)


def _usable(facts: Facts, schedule: _Schedule, meant: float) -> float:
    """The rate that is meant, as far as the last steps, scaled to it, are of a usual size and do not go too far."""
    last = meant * float(schedule.relative[-1])
    bound = last * remedy.room_for_larger_steps(facts, slice(-10, None))
    return remedy.round_to_one_digit(max(last, min(meant, bound) if schedule.relative[-1] < 0.99 else bound))


def _finding(facts: Facts, schedule: _Schedule, text: str, title: str, rates: list[float]) -> Finding:
    has_faded = schedule.relative[-1] < limit("faded")
    settings = {"value": rates[0]} | ({"rates": tuple(rates)} if len({*rates}) > 1 else {})
    return facts.finding(
        "lr-decays-too-fast",
        text,
        Evidence("share of the training at a negligible rate", schedule.faded),
        Evidence("steps at the full rate that would move the weights as far", schedule.full_steps),
        Evidence("last learning rate over the largest, or the one that is meant", float(schedule.relative[-1])),
        title=title,
        threshold=f"Flagged from {threshold_text('mostly', 'faded')}; with fewer than {threshold_text('full-steps')}, "
        f"or if more than {threshold_text('cut-off')}.",
        column="steps.learning_rate",
        line=limit("faded") * schedule.meant[0] if has_faded else None,
        beyond="below",
        steps=(0, facts.step_count - 1),
        remedy=Remedy(Action("constant_rate", settings), _CALLS),
    )
