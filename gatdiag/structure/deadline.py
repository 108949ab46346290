"""A limit on the time an analysis may take, which interrupts it wherever it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.nn.modules.module import register_module_forward_pre_hook

from gatdiag.errors import TimeLimitError

_SLOW = 2.0  # seconds after which whoever waits is told what for


class _Deadline:
    def __init__(self, seconds: float | None, when_slow: Callable[[float], None]) -> None:
        self._start = time.monotonic()
        self._seconds = seconds
        self._when_slow: Callable[[float], None] | None = when_slow

    def check(self) -> None:
        elapsed = time.monotonic() - self._start
        if self._seconds is not None and elapsed > self._seconds:
            raise TimeLimitError(f"stopped after {self._seconds:g} s")
        if self._when_slow is not None and elapsed > _SLOW:
            announce, self._when_slow = self._when_slow, None
            announce(elapsed)


_CURRENT: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float | None, when_slow: Callable[[float], None] = lambda elapsed: None) -> Iterator[None]:
    """Inside, `check_time` raises once the time is over; it is also called whenever a module is.

    None is no limit; `when_slow` is called once with the seconds that have passed, if they are more than two.
    """
    token = _CURRENT.set(_Deadline(seconds, when_slow))
    try:
        with register_module_forward_pre_hook(lambda module, args: check_time()):
            yield
    finally:
        _CURRENT.reset(token)


def check_time() -> None:
    """Raise `TimeLimitError` if the limit is reached: for each loop that may take long, and each operation."""
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.check()
