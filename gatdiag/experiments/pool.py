"""Many trainings at once, one thread in each: in processes, or on a Dask or Ray cluster that is there already."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from textwrap import shorten
from types import MappingProxyType
from typing import Any, Final, TypeVar

import torch

from gatdiag.errors import InputError

_C = TypeVar("_C")
_T = TypeVar("_T")

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


@contextmanager
def mapped(
    work: Callable[[_C], _T],
    chosen: Sequence[_C],
    jobs: int | None,
    backend: str = "processes",
    address: str | None = None,
) -> Iterator[Iterable[tuple[_C, _T]]]:
    """Work on each of these, with one thread: each with its result, in the order in which they are done.

    Args:
        work: Of the top level of a module, for another process has to find it.
        chosen: What to work on.
        jobs: Number of processes; None: one for each core. With 1 it is this process. A cluster has workers of its own.
        backend: A key of `BACKENDS`. A cluster has to be running, with gatdiag installed for its workers.
        address: Of the cluster; None: the one on this machine.

    Raises:
        InputError: There is no such backend or cluster, or a worker was killed.
    """
    if backend not in BACKENDS:
        raise InputError(f"Expected backend to be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "processes" and address is not None:
        raise InputError(f"An address is that of a dask or ray cluster; got {address!r} with backend processes")
    paired = partial(_paired, work)
    if not chosen:
        yield ()
    elif backend == "processes":
        with _in_processes(paired, chosen, min(jobs or os.cpu_count() or 1, len(chosen))) as done:
            yield done
    else:
        with _on_cluster(paired, chosen, backend, address) as done:
            yield done


def _paired(work: Callable[[_C], _T], one: _C) -> tuple[_C, _T]:
    return one, work(one)


@contextmanager
def _in_processes(work: Callable[[_C], _T], chosen: Sequence[_C], jobs: int) -> Iterator[Iterable[_T]]:
    if jobs == 1:
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


# --- clusters ---------------------------------------------------------------------------------------------------------


@contextmanager
def _on_cluster(
    work: Callable[[_C], _T], chosen: Sequence[_C], backend: str, address: str | None
) -> Iterator[Iterable[_T]]:
    try:
        with _CLUSTERS[backend](work, chosen, address) as done:
            yield _ended(done, backend)
    except ImportError as error:
        raise InputError(f"{backend} is not installed: pip install 'gatdiag[{backend}]' ({error})") from None


def _ended(done: Iterator[_T], backend: str) -> Iterator[_T]:
    """Results until there is one that the cluster could not give."""
    try:
        yield from done
    except Exception as error:
        reason = shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" ...")
        raise InputError(
            f"The {backend} cluster lost a worker, or had none that could do the work: run it again; what is done is "
            f"kept ({reason})"
        ) from error


def _work_alone(work: Callable[[_C], _T], one: _C) -> _T:
    """A worker of a cluster may have several threads, but torch's random state belongs to the process."""
    with _alone, one_thread():
        return work(one)


@contextmanager
def _dask(work: Callable[[_C], _T], chosen: Sequence[_C], address: str | None) -> Iterator[Iterator[_T]]:
    import dask
    from distributed import Client, as_completed

    place = address or dask.config.get("scheduler-address", None) or "tcp://127.0.0.1:8786"
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is wrong is told in one line
    with dask.config.set({"distributed.comm.timeouts.connect": _PATIENCE}):
        try:
            client = Client(place, timeout=_PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"No Dask cluster answers at {place}: `dask scheduler` and, on each machine, `dask worker ADDRESS "
                f"--nworkers -1 --nthreads 1` start one ({error})"
            ) from None
        with client:

            def results() -> Iterator[_T]:
                client.wait_for_workers(1, _PATIENCE)
                futures = client.map(partial(_work_alone, work), chosen, pure=False)
                for future in as_completed(futures, loop=client.loop):
                    yield future.result()

            yield results()


@contextmanager
def _ray(work: Callable[[_C], _T], chosen: Sequence[_C], address: str | None) -> Iterator[Iterator[_T]]:
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
    waiting: list[Any] = []
    try:

        def results() -> Iterator[_T]:
            remote = ray.remote(max_retries=0)(_work_alone)
            waiting.extend(remote.remote(work, one) for one in chosen)
            while waiting:
                [done], waiting[:] = ray.wait(waiting)
                yield ray.get(done)

        yield results()
    finally:
        if was_connected:
            for task in waiting:
                ray.cancel(task, force=True)
        else:
            ray.shutdown()


_CLUSTERS: Final[Mapping[str, Callable[..., AbstractContextManager[Iterator[Any]]]]] = MappingProxyType(
    {"dask": _dask, "ray": _ray}
)
"""Name -> (work, chosen, address) -> results, as they come."""

BACKENDS: Final = ("processes", *_CLUSTERS)
"""What trainings can run on."""
