"""Many trainings at once, one thread in each: in processes, or on a Dask or Ray cluster that is there already."""

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
from multiprocessing import get_context, parent_process
from textwrap import shorten
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import torch

from gatdiag.errors import InputError

_C = TypeVar("_C")
_T = TypeVar("_T")
Submit: TypeAlias = Callable[..., "Future[Any]"]

_PATIENCE: Final = 10  # seconds, until a cluster that does not answer is not there
_LONGEST: Final = 500  # characters of what a cluster says of itself
_alone = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """On graphs like these more threads gain little, lose much where other programs run, and change the rounding."""
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
        workers: Number of processes; None: one for each core. With 1 it is this process. A cluster has its own.
        backend: A key of `BACKENDS`. A cluster has to be running, with gatdiag installed for its workers.
        address: Of the cluster; None: the one on this machine.

    Raises:
        InputError: There is no such backend, or it takes no address.
    """

    workers: int | None = 1
    backend: str = "processes"
    address: str | None = None

    def __post_init__(self) -> None:
        """Refuses a backend and an address that do not fit each other."""
        if self.backend not in BACKENDS:
            raise InputError(f"Expected backend to be one of {', '.join(BACKENDS)}, got {self.backend!r}")
        if self.backend == "processes" and self.address is not None:
            raise InputError(
                f"An address is that of a dask or ray cluster; got {self.address!r} with backend processes"
            )

    @contextmanager
    def map(self, work: Callable[[_C], _T], chosen: Sequence[_C]) -> Iterator[Iterable[tuple[_C, _T]]]:
        """Work on each of these, with one thread: each with its result, in the order in which they are done.

        Args:
            work: Of the top level of a module, for another process has to find it.
            chosen: What to work on.

        Raises:
            InputError: There is no such cluster, or a worker was killed.
        """
        if not chosen:
            yield ()
        elif self.backend == "processes" and self._processes(chosen) == 1:
            with one_thread():
                yield ((one, work(one)) for one in chosen)
        else:
            try:
                with BACKENDS[self.backend](self.address, self._processes(chosen)) as submit:
                    yield self._results(partial(submit, work), chosen)
            except ImportError as error:
                name = self.backend
                raise InputError(f"{name} is not installed: pip install 'gatdiag[{name}]' ({error})") from None

    def _results(self, submit: Submit, chosen: Sequence[_C]) -> Iterator[tuple[_C, Any]]:
        """Each with its result, until there is one that cannot be had."""
        try:
            futures = {submit(one): one for one in chosen}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise InputError(
                f"One of {self._processes(chosen)} workers was killed, as where memory is short: run it again, perhaps "
                "with fewer; what is done is kept"
            ) from None
        except Exception as error:
            if self.backend == "processes":
                raise
            reason = shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" ...")
            raise InputError(
                f"The {self.backend} cluster lost a worker, or had none that could do the work: run it again; what is "
                f"done is kept ({reason})"
            ) from error

    def _processes(self, chosen: Sequence[Any]) -> int:
        return min(self.workers or os.cpu_count() or 1, len(chosen))


# --- what futures come from -------------------------------------------------------------------------------------------


@contextmanager
def _processes(_address: None, workers: int) -> Iterator[Submit]:
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool.submit
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


def _work_alone(work: Callable[[_C], _T], one: _C) -> _T:
    """A worker of a cluster may have several threads, but torch's random state belongs to the process."""
    with _alone, one_thread():
        return work(one)


@contextmanager
def _dask(address: str | None, _workers: int) -> Iterator[Submit]:
    import dask
    from distributed import Client

    place = address or dask.config.get("scheduler-address", None) or "tcp://127.0.0.1:8786"
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is wrong is told in one line
    with dask.config.set({"distributed.comm.timeouts.connect": _PATIENCE}):
        try:
            client = Client(place, timeout=_PATIENCE, set_as_default=False)
            client.wait_for_workers(1, _PATIENCE)
        except (OSError, ValueError) as error:
            raise InputError(
                f"No Dask cluster answers at {place}: `dask scheduler` and, on each machine, `dask worker ADDRESS "
                f"--nworkers -1 --nthreads 1` start one ({error})"
            ) from None
        with client:
            yield partial(client.get_executor(pure=False).submit, _work_alone)


@contextmanager
def _ray(address: str | None, _workers: int) -> Iterator[Submit]:
    import ray

    was_connected = ray.is_initialized()
    try:
        if not was_connected:
            host, _, port = (address or "").removeprefix("ray://").rpartition(":")
            if host:
                socket.create_connection((host, int(port)), _PATIENCE).close()  # Ray would try for minutes
            ray.init(address or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"No Ray cluster answers at {address or 'this machine'}: `ray start --head` starts one; where one asks for "
            f"a token, set RAY_AUTH_MODE=token ({error})"
        ) from None
    remote, tasks = ray.remote(max_retries=0)(_work_alone), list[Any]()

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


BACKENDS: Final[Mapping[str, Callable[..., AbstractContextManager[Submit]]]] = MappingProxyType(
    {"processes": _processes, "dask": _dask, "ray": _ray}
)
"""Name -> (address, workers) -> what submits work, and gives a future of its result."""

THIS_PROCESS: Final = Pool()
"""Trainings run one after the other, where they are asked for."""
