"""One writer a run: a lock that dies with its process."""

import os
import time
from pathlib import Path
from typing import Any

from gatdiag.errors import InputError
from gatdiag.run.layout import LOCK

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_TRIES, _PAUSE = 10, 0.02  # someone who asks whether a run is live holds the lock for an instant


class Lock:
    """The right to write to a run folder, held until `release` or the end of the process.

    It is an advisory lock of the operating system (flock) on the file `.lock`, so that nothing is left behind by a
    process that was killed. A process forked from the holder keeps it alive until it ends too. Where there is no flock
    (Windows, some network file systems) nothing is locked, and it is left to the user to write from one process only.

    Raises:
        InputError: Another writer holds it.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the lock."""
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        if not self._acquire():
            self.release()
            raise InputError(
                f"{folder} is being recorded by another process, or elsewhere in this one, and a run has one writer. "
                "Wait until that recording ends, or record to another folder."
            )

    def _acquire(self) -> bool:
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            if _try(self._descriptor, shared=False):
                return True
        return False

    @property
    def is_released(self) -> bool:
        """Whether it is held no more."""
        return self._descriptor < 0

    def release(self) -> None:
        """Lets others write. Harmless if it was done before."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_held(folder: Path) -> bool:
    """Whether a live process is writing to the folder."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _try(descriptor: int, *, shared: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks
    return True
