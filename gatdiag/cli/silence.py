"""A word on standard error where a command has printed nothing for a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

SECONDS: Final = 2.0
"""Silence after which the word is said."""

_INTERVAL: Final = 0.2  # seconds between two looks
_SLOW_IMPORTS: Final = ("torch_geometric", "torch", "pandas", "matplotlib")  # the outer before what it imports


class _Noticing:
    """A stream that keeps the time of the last text that was written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.last = time.monotonic()

    def write(self, text: str) -> int:
        if text:
            self.last = time.monotonic()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def break_silence(command: str) -> Iterator[None]:
    """Run a command; after two seconds in which it printed nothing, say once what it is doing.

    Long imports are named, each once. Standard output stays what the command prints.
    """
    streams = sys.stdout, sys.stderr
    if None in streams:  # closed from the start
        yield
        return
    out, err = map(_Noticing, streams)
    sys.stdout, sys.stderr = out, err
    has_ended = threading.Event()

    def watch() -> None:
        said = set[str]()
        while not has_ended.wait(_INTERVAL):
            is_silent = time.monotonic() - max(out.last, err.last) >= SECONDS
            if is_silent and (word := _activity(command)) not in said:
                said.add(word)
                err.write(f"gatdiag: {word} ...\n")
                err.flush()

    thread = threading.Thread(target=watch, name="gatdiag-silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        sys.stdout, sys.stderr = streams


def _activity(command: str) -> str:
    """What the command is doing now."""
    for name in _SLOW_IMPORTS:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            return f"importing {name}"
    return f"{command} is still working"
