"""Calls something every so often, so that rows are written although nothing comes after them."""

import threading
import weakref
from collections.abc import Callable


class Ticker:
    """A thread that calls a method again and again until it is stopped, or its object is gone.

    Args:
        seconds: Between two calls.
        method: A bound method. It is not kept alive, and must not raise.
    """

    def __init__(self, seconds: float, method: Callable[[], None]) -> None:
        """The thread is not started yet."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._arguments = (seconds, weakref.WeakMethod(method), self._stopped)

    def start(self) -> None:
        """Start calling; does nothing if that was done."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=self._arguments, name="gatdiag", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Call no more."""
        self._stopped.set()


def _run(seconds: float, method: "weakref.WeakMethod[Callable[[], None]]", stopped: threading.Event) -> None:
    while not stopped.wait(seconds):
        call = method()
        if call is None:
            return
        call()
        del call
