"""Which steps are recorded: those that `every=` selects, as often as the account of recording time allows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard

Every: TypeAlias = int | Literal["auto", "log"] | Callable[[int], bool]

DEFAULT_BUDGET = 0.05  # share of the training time
_DENSE = 64  # steps that "log" records one by one
_FIRST = 30  # steps that "auto" records one by one: checks compare consecutive steps, and medians of some of them
_PARTS = 10  # of the run, in each of which "auto" records at least one step
_FREE = 60.0  # seconds of training whose share may be spent at once, so that short trainings are recorded well
_UNSEEN = (
    2.0  # times the stopwatch: it misses the way from torch to the hooks, and colder caches (measured: 1.5 to 2.6)
)
_MOST = 20.0  # averages: what a record with all ranks and energies costs, at most; more is an accident
_WINDOW = 100  # of averages, about: one in a hundred records measures everything


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
    """A reentrant context manager that measures the time spent on recording.

    Attributes:
        clock: Returns the time in seconds.
        seconds: Time spent so far. Where no context is open, it may be added to directly, which is quicker.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = self._start = 0.0
        self._depth = 0

    def __enter__(self) -> None:
        """Start."""
        self._depth += 1
        if self._depth == 1:
            self._start = self.clock()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += self.clock() - self._start


@dataclass
class _Average:
    """A moving average, which an accident such as a pause of the process hardly changes."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, _WINDOW)
        value = min(value, _MOST * self.value) if self.value > 0 else value
        self.value += (value - self.value) / self.count


class _Account:
    """A token bucket: training earns time for recording.

    After t seconds of training, recording may have taken `share * max(t, 60 + t / 2)`: 3 s are free with 5%, and within
    the share after two minutes. The account holds no more than these 3 s, or four times the most expensive record.
    Every step is affordable while it is more than half full. At a quarter, records are as far apart as training earns
    what they cost; closer if there is more, and farther if there is less. So recording thins out gradually, and evenly
    from then on, whatever the length of the run.

    A pause of the process neither fills the account beyond that nor leaves a long debt, because no step counts as more
    than a quarter of it. The first step, with the search for laws and the first calls of kernels, does not count.
    """

    def __init__(self, share: float, stopwatch: Stopwatch) -> None:
        if not (isinstance(share, int | float | np.floating) and 0 < share < 1):
            raise InputError(f"budget= expects a share of training time between 0 and 1, such as 0.03, got {share!r}")
        self._share, self._stopwatch = share, stopwatch
        self._last: tuple[float, float] | None = None  # time and stopwatch at the end of the last step
        self._trained = self._unassigned = 0.0  # seconds: of training, and spent since the last record
        self._balance = self._allowance(0.0)
        self._cost, self._income = _Average(), _Average()  # seconds per record, and per step

    def close_step(self, *, recorded: bool) -> None:
        """Book what the step earned and spent."""
        now, seen = self._stopwatch.clock(), self._stopwatch.seconds
        if self._last is not None:
            spent = _UNSEEN * (seen - self._last[1])
            trained = self._trained + max(0.0, now - self._last[0] - spent)
            earned = self._allowance(trained) - self._allowance(self._trained)
            self._trained = trained
            self._income.add(earned)
            self._unassigned += spent
            if recorded:
                self._cost.add(self._unassigned)
                self._unassigned = 0.0
            self._balance = min(self._balance + earned - min(spent, self._capacity / 4), self._capacity)
        self._last = now, seen

    def allows(self, distance: int) -> bool:
        """Whether a record so many steps after the last one is affordable.

        It is if what these steps earn covers its cost, times what is missing to half of the account over what is left.
        """
        earned, missing = distance * self._income.value, self._capacity / 2 - self._balance
        return earned * self._balance >= missing * self._cost.value

    def _allowance(self, trained: float) -> float:
        return self._share * max(trained, _FREE + trained / 2)

    @property
    def _capacity(self) -> float:
        return max(self._allowance(0.0), 4 * _MOST * self._cost.value)


class StepCounter:
    """Counts steps, and decides which are recorded.

    With `every="auto"`, the first thirty steps are, and then at least one in each tenth of the run, whatever its length
    and the time: checks need them. Others are if the account allows it.

    Args:
        every: As for `schedule`.
        share: The share of training time that recording may take; None: no limit.
        stopwatch: Measures the time spent on recording.
        guard: Calls `every` if it is a function.

    Attributes:
        step: Number of the coming step.
        record: Number of the record that it will be; None if it is not recorded.
        steps: How many steps were made.
        records: How many of them were recorded.

    Raises:
        InputError: `every` or `share` is wrong.
    """

    def __init__(self, every: Every, share: float | None, stopwatch: Stopwatch, guard: Guard) -> None:
        self._schedule, self._guard = schedule(every), guard
        self._account = None if share is None else _Account(share, stopwatch)
        self._is_auto = isinstance(every, str) and every == "auto"
        self._first = self.step = 0
        self.record: int | None = None
        self.steps = self.records = 0
        self._last = 0  # steps that were made before the last record
        self._answer: tuple[int, bool] | None = None  # the last step asked about, and whether it is recorded

    @property
    def last_step(self) -> int:
        """The last step; the first one if none was made yet."""
        return max(self._first, self.step - 1)

    @property
    def next_record(self) -> int | None:
        """Number of the record that the step after the coming one will be; None if it is not recorded."""
        after = self.records + (self.record is not None)
        return after if self._is_recorded(self.step + 1, self.steps + 1) else None

    def start(self, step: int) -> None:
        """Start counting at a step."""
        self._first = self.step = step
        self._decide()

    def advance(self) -> None:
        """Count a step."""
        if self._account is not None:
            self._account.close_step(recorded=self.record is not None)
        if self.record is not None:
            self.records, self._last, self.record = self.records + 1, self.steps, None
        self.steps += 1
        self.step += 1
        self._decide()

    def skip_to(self, step: int) -> None:
        """Give the coming step a later number, without deciding again whether it is recorded."""
        if isinstance(step, bool) or not isinstance(step, int) or step < self.step:
            raise InputError(f"step() expects the number of the coming step, an integer from {self.step}, got {step!r}")
        self.step = step

    def _decide(self) -> None:
        self.record = self.records if self._is_recorded(self.step, self.steps) else None

    def _is_recorded(self, step: int, steps: int) -> bool:
        """Whether a step is recorded, of which so many come before; an answer stands."""
        if self._answer is None or self._answer[0] != step:
            is_due = bool(self._guard("the steps that every= selects", self._schedule, step))
            self._answer = step, is_due and self._is_affordable(steps)
        return self._answer[1]

    def _is_affordable(self, steps: int) -> bool:
        last = self._last if self.record is None else self.steps
        is_needed = self._is_auto and (steps < _FIRST or steps - last >= last // _PARTS)
        return is_needed or self._account is None or self._account.allows(steps - last)
