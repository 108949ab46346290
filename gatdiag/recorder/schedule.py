"""Which steps are recorded: those that `every=` selects, as often as the time budget allows."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard

Every: TypeAlias = int | Literal["auto", "log"] | Callable[[int], bool]

DEFAULT_BUDGET = 0.05  # share of the training time
_DENSE = 64  # steps that "log" records one by one
_FREE = 3.0  # seconds that recording may cost before it is paced
_FIRST = 8  # records that are not paced
_STARTUP = 2.5  # seconds: the most that the first step counts as
_REPAYING = 1 / 8  # of the budget is used until the free seconds are within it
_MARGIN = 0.9  # of the budget may be used before recording slows down
_CHECK_SHARE, _MAX_CHECK_INTERVAL = 0.1, 8  # of the budget, for checks of steps that are not recorded
_WINDOW = 50  # of moving averages, about
_OUTLIER = 10.0
# Factors on the time of the stopwatch, which misses the way from torch to the hooks and colder caches (measured).
UNSEEN = 1.25  # of a recorded step
UNSEEN_IDLE = 1.5  # of a step that is not recorded


def schedule(every: Every) -> Callable[[int], bool]:
    """A function of the step: whether it may be recorded.

    Args:
        every: A number k: steps 0, k, 2k, ... "log": each of the first 64 steps, every second up to 128, every fourth
            up to 256, and so on, about 32 for each doubling. "auto": all. Or a function of the step.

    Raises:
        InputError: It is none of these.

    Example:
        >>> due = schedule("log")
        >>> [step for step in range(60, 150) if due(step)][:8]
        [60, 61, 62, 63, 64, 66, 68, 70]
    """
    if callable(every):
        return lambda step: bool(every(step))
    if every == "auto":
        return lambda step: True
    if every == "log":
        return lambda step: step < _DENSE or step % (1 << ((step // _DENSE).bit_length())) == 0
    if isinstance(every, int | np.integer) and not isinstance(every, bool) and every > 0:
        return lambda step: step % every == 0
    raise InputError(f'every= expects "auto", "log", a positive integer or a function of the step, got {every!r}')


class Stopwatch:
    """A reentrant context manager that measures the time spent on recording, in one thread at a time.

    Attributes:
        clock: Returns the time in seconds.
        seconds: Time spent so far. Where no context is open, it may be added to directly, which is quicker.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = self._start = 0.0
        self._depth = 0
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Start."""
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._start = self.clock()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += self.clock() - self._start
        self._lock.release()


@dataclass
class _Average:
    """A moving average that clips new values at ten times the average."""

    value: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        """Add `count` values by their sum."""
        value = total / count
        self.count += count
        value = min(value, _OUTLIER * self.value) if self.value > 0 else value
        self.value += (value - self.value) * min(1.0, count / min(self.count, _WINDOW))


class Pace:
    """Computes the interval between records that keeps recording within its budget.

    Every step is recorded until recording has cost 3 s, and at least the first eight. The interval then follows from
    the average costs of a record (with its share of expensive groups) and of the steps between, and from the average
    time of a step. Only an eighth of the budget is used until those 3 s are within the budget (after a minute of
    training at 5 %), then all of it. Averages span about fifty values, and outliers are clipped, so that one slow step
    does not stop recording. The first step, which searches for laws, counts as at most 2.5 s because it comes only
    once. Costs are the time of the stopwatch plus 25 %, or plus 50 % for steps that are not recorded.

    Args:
        budget: Share of training time that recording may take; None: no limit.
        stopwatch: Measures the time spent on recording.
    """

    def __init__(self, budget: float | None, stopwatch: Stopwatch) -> None:
        if budget is not None and not (isinstance(budget, int | float | np.floating) and 0 < budget < 1):
            raise InputError(f"budget= expects a share of training time between 0 and 1, such as 0.03, got {budget!r}")
        self._budget, self._stopwatch = budget, stopwatch
        self._last: tuple[float, float] | None = None  # time and stopwatch at the end of the last step
        self._spent = self._trained = 0.0  # seconds
        self._record, self._idle, self._step, self._measuring = _Average(), _Average(), _Average(), _Average()
        self._measured_together = 0.0  # seconds of this step that were spent on samples of several steps

    def add_measuring(self, seconds: float, records: int) -> None:
        """Spread the time for measuring several records together over all of them."""
        if records:
            self._measured_together += seconds
            for _ in range(records):
                self._measuring.add(UNSEEN * seconds / records)

    def end_steps(self, *, recorded: bool, count: int = 1) -> None:
        """Account for a recorded step, or for `count` steps since the last call that were not recorded."""
        if self._budget is None:
            return
        now, seen = self._stopwatch.clock(), self._stopwatch.seconds
        if self._last is None:
            self._spent = min(seen * UNSEEN, _STARTUP)
        else:
            own = (seen - self._last[1] - self._measured_together) * (UNSEEN if recorded else UNSEEN_IDLE)
            spent = own + self._measured_together * UNSEEN
            training = max(0.0, now - self._last[0] - spent)
            self._spent += spent
            self._trained += training
            self._step.add(training, count)
            if recorded:
                self._record.add(own)
            elif own <= self._record.value * count:  # more than that is not the cost of idle steps
                self._idle.add(own, count)
        self._last, self._measured_together = (now, seen), 0.0

    def check_interval(self, seconds: float) -> int:
        """Steps from one check of the gradients to the next, if each takes so long."""
        if self._budget is None or not self._step.value:
            return 1
        share = seconds * UNSEEN_IDLE / (self._budget * self._step.value)
        return min(_MAX_CHECK_INTERVAL, math.ceil(share / _CHECK_SHARE))

    def interval(self) -> int:
        """Steps from a record to the next one."""
        if self._budget is None or self._spent <= _FREE or self._record.count < _FIRST:
            return 1
        used = self._spent / (self._budget * self._trained) if self._trained > 0 else math.inf
        speed = (1.0 - used) / (1.0 - _MARGIN)  # at least 1 within the margin, 0 if the budget is used up
        allowed = self._budget * self._step.value * min(1.0, max(0.0, speed) * (1.0 - _REPAYING) + _REPAYING)
        available = max(allowed - self._idle.value, allowed / 4)  # seconds per step
        cost = self._record.value + self._measuring.value
        return max(1, math.ceil(cost / available)) if available > 0 else _WINDOW


class StepCounter:
    """Counts steps, and decides which are recorded.

    Attributes:
        step: Number of the coming step.
        record: Number of the record that it will be; None if it is not recorded.
        steps: How many steps were made.
        records: How many of them were recorded.
    """

    def __init__(self, every: Every, pace: Pace, guard: Guard) -> None:
        self._schedule, self._pace, self._guard = schedule(every), pace, guard
        self._first = self.step = 0
        self.record: int | None = None
        self.steps = self.records = 0
        self._wait = 0  # steps until the pace allows a record
        self._skipped = 0  # steps since the last record
        self._answer: tuple[int, bool] | None = None  # the last step asked about, and whether it is due

    @property
    def last_step(self) -> int:
        """The last step; the first one if none was made yet."""
        return max(self._first, self.step - 1)

    @property
    def next_record(self) -> int | None:
        """Number of the record that the step after the coming one will be; None if it is not due, as known so far."""
        wait = self._wait if self.record is None else self._pace.interval()
        return self.records + (self.record is not None) if wait <= 1 and self._is_due(self.step + 1) else None

    def start(self, step: int) -> None:
        """Start counting at a step."""
        self._first = self.step = step
        self._decide()

    def advance(self) -> None:
        """Count a step."""
        if self.record is None:
            self._skipped += 1
        else:
            self._pace.end_steps(recorded=True)
            self.records += 1
            self._wait, self._skipped = self._pace.interval(), 0
        self.steps += 1
        self.step += 1
        self._wait -= 1
        self._decide()
        if self._skipped and self.record is not None:
            self._pace.end_steps(recorded=False, count=self._skipped)

    def skip_to(self, step: int) -> None:
        """Give the coming step a later number, without deciding again whether it is recorded."""
        if isinstance(step, bool) or not isinstance(step, int) or step < self.step:
            raise InputError(f"step() expects the number of the coming step, an integer from {self.step}, got {step!r}")
        self.step = step

    def _decide(self) -> None:
        self.record = self.records if self._wait <= 0 and self._is_due(self.step) else None

    def _is_due(self, step: int) -> Any:
        if self._answer is None or self._answer[0] != step:
            self._answer = step, bool(self._guard("the steps that every= selects", self._schedule, step))
        return self._answer[1]
