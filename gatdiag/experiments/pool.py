"""Many trainings at once: a process for each core, one thread in each."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import TypeVar

import torch

from gatdiag.errors import InputError

_C = TypeVar("_C")
_T = TypeVar("_T")


@contextmanager
def one_thread() -> Iterator[None]:
    """On graphs like these more threads gain little, lose much where other programs run, and change the rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def mapped(work: Callable[[_C], _T], chosen: Sequence[_C], jobs: int | None) -> Iterator[Iterable[_T]]:
    """Work on each of these, with one thread: results in the order in which they are done.

    Args:
        work: Of the top level of a module, for another process has to find it.
        chosen: What to work on.
        jobs: Number of processes; None: one for each core. With 1 it is this process.

    Raises:
        InputError: A process was killed.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(chosen))
    if jobs <= 1:
        with one_thread():
            yield map(work, chosen)
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin_worker)
    try:
        yield (future.result() for future in as_completed([pool.submit(work, one) for one in chosen]))
    except BrokenProcessPool:
        raise InputError(
            f"One of {jobs} workers was killed, as where memory is short: run it again, perhaps with fewer; "
            "what is done is kept"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    """One thread each; Ctrl-C ends a worker at once, and so does the end of the process that it works for."""
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
