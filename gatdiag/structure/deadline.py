"""A limit of the computing time of an analysis, so that its result does not depend on what else the machine does."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.nn.modules.module import register_module_forward_pre_hook

from gatdiag.errors import TimeLimitError

_SLOW = 2.0  # seconds


class _Deadline:
    def __init__(self, seconds: float | None, when_slow: Callable[[float], None]) -> None:
        self._start, self._computing_start = time.monotonic(), time.thread_time()
        self._seconds = seconds
        self._when_slow: Callable[[float], None] | None = when_slow

    def check(self) -> None:
        if self._seconds is not None and time.thread_time() - self._computing_start > self._seconds:
            raise TimeLimitError(f"stopped after {self._seconds:g} s")
        elapsed = time.monotonic() - self._start
        if self._when_slow is not None and elapsed > _SLOW:
            when_slow, self._when_slow = self._when_slow, None
            when_slow(elapsed)


_CURRENT: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float | None, when_slow: Callable[[float], None] = lambda elapsed: None) -> Iterator[None]:
    """Limit the time that the block may compute. `check_time`, which every call of a module calls, enforces the limit.

    Args:
        seconds: The limit of the thread's own computing time; None for no limit.
        when_slow: Called once with the elapsed seconds, by the clock, when the block has taken more than two.
    """
    token = _CURRENT.set(_Deadline(seconds, when_slow))
    try:
        with register_module_forward_pre_hook(lambda module, args: check_time()):
            yield
    finally:
        _CURRENT.reset(token)


def check_time() -> None:
    """Raise `TimeLimitError` if the time limit is exceeded. To be called in every loop that may take long."""
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.check()
