"""Which steps are recorded: those that `every=` chooses, as often as recording keeps within its share of the time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard

Every: TypeAlias = int | Literal["auto", "log"] | Callable[[int], bool]

SHARE = 0.05  # of training time, that recording may take by default
_DENSE = 64  # steps that "log" records one by one
_FREE = 3.0  # seconds that recording may cost before it is paced
_FIRST = 8  # records come one after another, whatever they cost
_STARTUP = 2.5  # of these, that the first step may use up
_REPAYING = 1 / 8  # of the share is used, until what was spent at first is within it
_MARGIN = 0.9  # of the share may be spent before recording slows down
_WINDOW = 50  # values that a moving average is of, about
_OUTLIER = 10.0
# Times what the stopwatch sees: torch's way to the hooks and colder caches are beside it (measured).
UNSEEN = 1.25  # of a record
UNSEEN_IDLE = 1.5  # of a step that is not recorded


def schedule(every: Every) -> Callable[[int], bool]:
    """Step -> whether it may be recorded, always the same for the same step.

    Args:
        every: A number k: steps 0, k, 2k, ... "log": each of the first 64, every second up to 128, every fourth up to
            256, and so on: about 32 for each doubling. "auto": any. A function of the step.

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
    raise InputError(f'every= expects "auto", a positive number, "log" or a function of the step, got {every!r}')


class Stopwatch:
    """A context whose time counts as recording; contexts inside of it count once."""

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

    def add_since(self, begin: float) -> None:
        """Count the time since then, in which no context was open: it takes half as long as one."""
        self.seconds += self.clock() - begin


@dataclass
class _Average:
    """A moving average, to which what is added counts as ten times the average at most."""

    value: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        """Add some values, of which the total is known."""
        value = total / count
        self.count += count
        value = min(value, _OUTLIER * self.value) if self.value > 0 else value
        self.value += (value - self.value) * min(1.0, count / min(self.count, _WINDOW))


class Pace:
    """How many steps apart records are, so that recording takes no more than a share of the training's time.

    Every step is recorded until recording has cost 3 s in all, and eight steps at least. From then on records are as
    far apart as the average cost of one (its share of expensive groups included), of the steps between, and the average
    time of a step ask for: at an eighth of the share until those 3 s are less than the share, too, which takes a minute
    of training at 5 %, and at the whole of it then. Averages are of the last fifty, so that one slow step does not
    silence recording. What the first step costs, the search for laws above all, counts as 2.5 s at most: it comes once.
    Costs are what the stopwatch sees and 25 % more; of steps that are not recorded, 50 % more.
    """

    def __init__(self, share: float | None, watch: Stopwatch) -> None:
        if share is not None and not (isinstance(share, int | float | np.floating) and 0 < share < 1):
            raise InputError(f"budget= expects a share of training time between 0 and 1, such as 0.03, got {share!r}")
        self._share, self._watch = share, watch
        self._last: tuple[float, float] | None = None  # time at the end of the last step, and what the stopwatch saw
        self._spent = self._trained = 0.0
        self._record, self._idle, self._step, self._measuring = _Average(), _Average(), _Average(), _Average()
        self._apart = 0.0  # seconds of this step in which samples of several were measured

    def add_measuring(self, seconds: float, records: int) -> None:
        """Samples of some records were measured together, which took part of what this step costs."""
        if records:
            self._apart += seconds
            for _ in range(records):
                self._measuring.add(UNSEEN * seconds / records)

    def end_steps(self, *, recorded: bool, count: int = 1) -> None:
        """A step has ended, and its recording; or some have that were not recorded, since the last call."""
        if self._share is None:
            return
        now, seen = self._watch.clock(), self._watch.seconds
        if self._last is None:
            self._spent = min(seen * UNSEEN, _STARTUP)
        else:
            own = (seen - self._last[1] - self._apart) * (UNSEEN if recorded else UNSEEN_IDLE)
            spent = own + self._apart * UNSEEN
            training = max(0.0, now - self._last[0] - spent)
            self._spent += spent
            self._trained += training
            self._step.add(training, count)
            if recorded:
                self._record.add(own)
            elif own <= self._record.value * count:  # else something else took the time
                self._idle.add(own, count)
        self._last, self._apart = (now, seen), 0.0

    def interval(self) -> int:
        """Steps from a record to the next."""
        if self._share is None or self._spent <= _FREE or self._record.count < _FIRST:
            return 1
        used = self._spent / (self._share * self._trained) if self._trained > 0 else math.inf
        slowed = (1.0 - used) / (1.0 - _MARGIN)  # 1 while there is a margin, 0 once all is used up
        allowed = self._share * self._step.value * min(1.0, max(0.0, slowed) * (1.0 - _REPAYING) + _REPAYING)
        room = max(allowed - self._idle.value, allowed / 4)
        record = self._record.value + self._measuring.value
        return max(1, math.ceil(record / room)) if room > 0 else _WINDOW


class StepCounter:
    """Where training is."""

    def __init__(self, every: Every, pace: Pace, guard: Guard) -> None:
        self._due, self._pace, self._guard = schedule(every), pace, guard
        self._first = self.step = 0
        self.record: int | None = None
        self.steps = self.records = 0
        self._wait = 0  # steps until the pace allows a record
        self._passed = 0  # steps since the last record
        self._answer: tuple[int, bool] | None = None  # the last step asked about, and whether it is due

    @property
    def last_step(self) -> int:
        """The last step made; the first one if there is none yet."""
        return max(self._first, self.step - 1)

    @property
    def next_record(self) -> int | None:
        """Number of the record that the step after this one will be; None if it is not due, as far as is known now."""
        wait = self._wait if self.record is None else self._pace.interval()
        return self.records + (self.record is not None) if wait <= 1 and self._is_due(self.step + 1) else None

    def start(self, step: int) -> None:
        """Begin at a step."""
        self._first = self.step = step
        self._decide()

    def advance(self) -> None:
        """A step was made."""
        if self.record is None:
            self._passed += 1
        else:
            self._pace.end_steps(recorded=True)
            self.records += 1
            self._wait, self._passed = self._pace.interval(), 0
        self.steps += 1
        self.step += 1
        self._wait -= 1
        self._decide()
        if self._passed and self.record is not None:
            self._pace.end_steps(recorded=False, count=self._passed)

    def skip_to(self, step: int) -> None:
        """Give the coming step a later number; whether it is recorded was decided before."""
        if isinstance(step, bool) or not isinstance(step, int) or step < self.step:
            raise InputError(f"The number of the coming step should be a whole number from {self.step}, got {step!r}")
        self.step = step

    def _decide(self) -> None:
        self.record = self.records if self._wait <= 0 and self._is_due(self.step) else None

    def _is_due(self, step: int) -> Any:
        if self._answer is None or self._answer[0] != step:
            self._answer = step, bool(self._guard("the steps that every= chooses", self._due, step))
        return self._answer[1]
