"""At which steps to record."""

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from gatdiag.errors import InputError

Every: TypeAlias = int | Literal["log"] | Callable[[int], bool]

_DENSE = 64  # steps that "log" records one by one


def schedule(every: Every) -> Callable[[int], bool]:
    """Step -> whether it is recorded, always the same for the same step.

    Args:
        every: A number k: steps 0, k, 2k, ... "log": each of the first 64, every second up to 128, every fourth up to
            256, and so on: about 32 for each doubling. A function of the step.

    Raises:
        InputError: It is none of these.

    Example:
        >>> due = schedule("log")
        >>> [step for step in range(60, 150) if due(step)][:8]
        [60, 61, 62, 63, 64, 66, 68, 70]
    """
    if callable(every):
        return lambda step: bool(every(step))
    if every == "log":
        return lambda step: step < _DENSE or step % (1 << ((step // _DENSE).bit_length())) == 0
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return lambda step: step % every == 0
    raise InputError(f'every= expects a positive number, "log" or a function of the step, got {every!r}')


class Budget:
    """Keeps recording within a share of training time, measured as it runs.

    A step is recorded if the time spent on recording so far, and what one more record is expected to take, fit in that
    share of the time since the start. The first step is always recorded.

    Args:
        share: Of training time, in (0, 1); None: no limit, and nothing is measured.

    Raises:
        InputError: The share is not in (0, 1).
    """

    def __init__(self, share: float | None) -> None:
        """The clock starts at the first question."""
        if share is not None and not 0 < share < 1:
            raise InputError(f"budget= expects a share of training time between 0 and 1, such as 0.03, got {share!r}")
        self._share = share
        self._start: float | None = None
        self._spent = 0.0
        self._records = 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._share is not None

    def allows(self) -> bool:
        """Whether one more record fits."""
        if self._share is None:
            return True
        now = time.perf_counter()
        if self._start is None:
            self._start = now
        if self._records == 0:
            return True
        expected = self._spent / self._records
        return self._spent + expected <= self._share * (now - self._start - self._spent)

    def spend(self, seconds: float, records: int = 0) -> None:
        """Count time that recording took, and records that were finished."""
        self._spent += seconds
        self._records += records
