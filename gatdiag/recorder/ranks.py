"""Which of the processes of a training records it."""

import atexit
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing import parent_process, util
from typing import Any, Final

# Set before the process group exists: by torchrun and most launchers; by Lightning, which starts the other processes of
# a node itself; by Slurm.
_RANKS: Final = (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",))


class Claim:
    """The right to record a training, which one process has: of those of a distributed training, the first.

    Processes that are forked from this one share the claim. One of them takes it if they train together, as a parent
    may leave the training to its children; whatever else a child does is its own affair.
    """

    def __init__(self) -> None:
        self._is_taken, self._process = mmap.mmap(-1, 1), os.getpid()

    @property
    def is_taken(self) -> bool:
        """True if a process records, this one or another."""
        return bool(self._is_taken[0])

    def take(self) -> bool:
        """Take the claim if this process may; returns whether it has. To be called as late as possible."""
        is_candidate = self._process == os.getpid() or _has_joined()
        if self.is_taken or not is_candidate or not is_first_process():
            return False
        self._is_taken[0] = 1
        return True


def is_first_process() -> bool:
    """True in the process of rank 0, and if the training is not distributed, as far as it is known now.

    Ask as late as possible: a process knows its rank for sure once it has joined the process group, which every
    distributed training has done before its first step.
    """
    if _has_joined():
        return bool(_distributed().get_rank() == 0)
    for names in _RANKS:
        ranks = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
        if ranks:
            return not any(map(int, ranks))
    return True


def _has_joined() -> bool:
    distributed = _distributed()
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _distributed() -> Any:
    """`torch.distributed`; None as long as nothing has imported it, as before a script runs."""
    return sys.modules.get("torch.distributed")


def end_at_exit(function: Callable[[], object]) -> None:
    """Call a function when this process ends, also if multiprocessing has forked it, which ends without `atexit`."""
    atexit.register(function)
    if parent_process() is not None:
        util.Finalize(None, function, exitpriority=0)
