"""Parallel trainings, one thread each, in processes or on a running Dask or Ray cluster."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from textwrap import shorten
from typing import Any, Final, TypeAlias, TypeVar

import torch

from gatdiag.errors import InputError

_C = TypeVar("_C")
_T = TypeVar("_T")
Submit: TypeAlias = Callable[..., "Future[Any]"]

_TIMEOUT: Final = 10  # seconds to connect to a cluster
_MAX_LENGTH: Final = 500  # characters of a cluster's error message
_PRELOADED: Final = ["gatdiag.experiments.sweep"]  # imported once, before the workers are forked
_process_lock = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: on small graphs more gain little, lose much beside other programs, and change the rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Pool:
    """Where trainings run.

    Attributes:
        workers: Number of processes; 1 is this process, None one per core. Ignored by clusters, which have their own.
        backend: A key of `BACKENDS`. A cluster must be running, with gatdiag installed for its workers.
        address: Address of the cluster; None: the one on this machine.

    Raises:
        InputError: There is no such backend, or it has no address.
    """

    workers: int | None = 1
    backend: str = "processes"
    address: str | None = None

    def __post_init__(self) -> None:
        """Check backend and address."""
        if self.backend not in BACKENDS:
            raise InputError(f"Expected backend to be one of {', '.join(BACKENDS)}, got {self.backend!r}")
        if self.backend == "processes" and self.address is not None:
            raise InputError(
                f"Expected no address with backend processes, only with a dask or ray cluster; got {self.address!r}"
            )

    @contextmanager
    def map(self, work: Callable[[_C], _T], items: Sequence[_C]) -> Iterator[Iterable[tuple[_C, _T]]]:
        """Call a function on each item, with one thread; yields items with their results as they complete.

        Args:
            work: A function at the top level of a module, so that other processes can import it.
            items: Its arguments.

        Raises:
            InputError: There is no such cluster, or a worker was killed.
        """
        if not items:
            yield ()
        elif self.backend == "processes" and self._worker_count(items) == 1:
            with one_thread():
                yield ((item, work(item)) for item in items)
        else:
            try:
                with BACKENDS[self.backend](self.address, self._worker_count(items)) as submit:
                    yield self._results(partial(submit, work), items)
            except ImportError as error:
                name = self.backend
                raise InputError(f"{name} is not installed: pip install 'gatdiag[{name}]' ({error})") from None

    def _results(self, submit: Submit, items: Sequence[_C]) -> Iterator[tuple[_C, Any]]:
        try:
            futures = {submit(item): item for item in items}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise InputError(
                f"One of {self._worker_count(items)} workers was killed, perhaps for lack of memory: run it again, or "
                "with fewer; what is done is kept"
            ) from None
        except Exception as error:
            if self.backend == "processes":
                raise
            reason = shorten(f"{type(error).__name__}: {error}", _MAX_LENGTH, placeholder=" ...")
            raise InputError(
                f"The {self.backend} cluster lost a worker, or had no suitable one: run it again; what is done is kept "
                f"({reason})"
            ) from error

    def _worker_count(self, items: Sequence[Any]) -> int:
        return min(self.workers or os.cpu_count() or 1, len(items))


# --- backends ---------------------------------------------------------------------------------------------------------


@contextmanager
def _processes(_address: None, workers: int) -> Iterator[Submit]:
    can_fork = get_all_start_methods()[0] != "spawn"  # the default where a fork is not safe, as on macOS
    context = get_context("forkserver" if can_fork else "spawn")
    context.set_forkserver_preload(_PRELOADED)
    ended, end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_init_worker, initargs=(ended,))
    try:
        yield pool.submit
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end.close()  # ends the workers: nobody waits for what they are at


def _init_worker(ended: Connection) -> None:
    """Use one thread; end the worker on Ctrl-C, and when its parent closes the pipe, as it does by ending."""
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored by background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def exit_with_parent() -> None:
        ended.poll(None)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _work_exclusively(work: Callable[[_C], _T], item: _C) -> _T:
    """Run one item at a time: a cluster's worker may have several threads, but torch's random state is global."""
    with _process_lock, one_thread():
        return work(item)


@contextmanager
def _dask(address: str | None, _workers: int) -> Iterator[Submit]:
    import dask
    from distributed import Client

    place = address or dask.config.get("scheduler-address", None) or "tcp://127.0.0.1:8786"
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are reported in one line
    with dask.config.set({"distributed.comm.timeouts.connect": _TIMEOUT}):
        try:
            client = Client(place, timeout=_TIMEOUT, set_as_default=False)
            client.wait_for_workers(1, _TIMEOUT)
        except (OSError, ValueError) as error:
            raise InputError(
                f"No Dask cluster answers at {place}: start one with `dask scheduler` and, on each machine, "
                f"`dask worker ADDRESS --nworkers -1 --nthreads 1` ({error})"
            ) from None
        with client:
            yield partial(client.get_executor(pure=False).submit, _work_exclusively)


@contextmanager
def _ray(address: str | None, _workers: int) -> Iterator[Submit]:
    import ray

    was_connected = ray.is_initialized()
    try:
        if not was_connected:
            host, _, port = (address or "").removeprefix("ray://").rpartition(":")
            if host:
                socket.create_connection((host, int(port)), _TIMEOUT).close()  # Ray would retry for minutes
            ray.init(address or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"No Ray cluster answers at {address or 'this machine'}: start one with `ray start --head`; if it asks for "
            f"a token, set RAY_AUTH_MODE=token ({error})"
        ) from None
    remote, tasks = ray.remote(max_retries=0)(_work_exclusively), list[Any]()

    def submit(*work: Any) -> Any:
        tasks.append(remote.remote(*work))
        return tasks[-1].future()

    try:
        yield submit
    finally:
        if not was_connected:
            ray.shutdown()
        else:
            for task in tasks:
                ray.cancel(task, force=True)


BACKENDS: Final[Mapping[str, Callable[..., AbstractContextManager[Submit]]]] = {
    "processes": _processes,
    "dask": _dask,
    "ray": _ray,
}
"""Backends by name: (address, workers) -> a function that submits work and returns a future."""

THIS_PROCESS: Final = Pool()
"""Runs trainings one after the other in this process."""
