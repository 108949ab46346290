"""A process beside that of a script: it concludes when the script was killed, and so could not do that itself."""

import json
import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Final

from gatdiag.script.launch import RUNS, outer_environment

_FIRST: Final = 1  # process of a container: all others end with it, and it would be the parent of the watcher
_ERROR_OUTPUT: Final = 2  # file descriptor


def conclude_if_killed(out: str, command: Sequence[str]) -> Callable[[], None]:
    """Run a command when this process has ended and left a run unfinished, as after SIGKILL or `os._exit`.

    What waits for that is no child of this process, so that a script that waits for all of its children does not meet
    it, and it is in a session of its own, which no signal of the terminal reaches. Where processes have no file
    descriptors (before Linux 5.3, and on other systems) nothing is started.

    Args:
        out: Folder of the runs.
        command: The command line.

    Returns:
        To be called when the script comes to its end: nothing is concluded then, even if a run is unfinished because
        the disk is full.
    """
    has_ended = mmap(-1, 1)  # memory that processes share, because a file could not be written

    def note_end() -> None:
        has_ended[0] = 1

    if os.getpid() == _FIRST or not hasattr(os, "pidfd_open"):
        return note_end
    try:
        script = os.pidfd_open(os.getpid())
    except OSError:  # the system has none
        return note_end
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(script)
        return note_end
    try:
        os.setsid()
        if not os.fork():
            _release_files(script)
            select.select([script], [], [])
            if not has_ended[0] and any(map(_is_unfinished, Path(out).glob(RUNS))):
                os.execve(command[0], [*command], outer_environment())
    finally:
        os._exit(0)


def _release_files(kept: int) -> None:
    """Leave all files but standard error to the script, so that those who wait for its output notice its end."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(_ERROR_OUTPUT, 1)
    os.closerange(_ERROR_OUTPUT + 1, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _is_unfinished(meta: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        return bool(json.loads(meta.read_bytes()).get("status") == "recording")
    return False
