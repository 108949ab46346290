"""Counts steps and records, and decides which steps are recorded."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gatdiag.errors import InputError
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.schedule import Budget

_NOTHING: AbstractContextManager[None] = nullcontext()


class Clock:
    """Where training is.

    Args:
        due: Step -> whether it is to be recorded.
        budget: What recording may cost.
        guard: Contains failures of `due`, which may be the user's.

    Attributes:
        step: The step that is coming, or open.
        record: Number of the record it will be; None if it is not recorded.
        steps: How many steps were made since the start.
        records: How many of them were recorded.
    """

    def __init__(self, due: Callable[[int], bool], budget: Budget, guard: Guard) -> None:
        """Before the first step."""
        self._due, self._budget, self._guard = due, budget, guard
        self._first = self.step = 0
        self.record: int | None = None
        self.steps = self.records = 0
        self._answer: tuple[int, bool] | None = None  # the last step asked about, and whether it is due

    @property
    def last_step(self) -> int:
        """The last step made; the first one if there is none yet."""
        return max(self._first, self.step - 1)

    @property
    def next_record(self) -> int | None:
        """Number of the record that the step after this one will be; None if it is not due, as far as is known now."""
        return self.records + (self.record is not None) if self._is_due(self.step + 1) else None

    def start(self, step: int) -> None:
        """Begin at a step."""
        self._first = self.step = step
        self._decide()

    def advance(self) -> None:
        """A step was made."""
        self.steps += 1
        if self.record is not None:
            self.records += 1
            self._budget.spend(0.0, records=1)
        self.step += 1
        self._decide()

    def skip_to(self, step: int) -> None:
        """Give the coming step a later number; whether it is recorded was decided before.

        Raises:
            InputError: It is not a later one.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < self.step:
            raise InputError(f"The number of the coming step should be a whole number from {self.step}, got {step!r}")
        self.step = step

    def recording(self) -> AbstractContextManager[None]:
        """A context whose time counts as recording; it costs nothing where there is no budget."""
        return self._timed() if self._budget.limited else _NOTHING

    def _decide(self) -> None:
        self.record = self.records if self._is_due(self.step) and self._budget.allows() else None

    def _is_due(self, step: int) -> bool:
        if self._answer is None or self._answer[0] != step:
            self._answer = step, bool(self._guard("the steps that every= chooses", self._due, step))
        return self._answer[1]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._budget.spend(time.perf_counter() - start)
