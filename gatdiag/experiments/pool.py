"""Many trainings at once, one thread in each: in processes, or on a Dask or Ray cluster that is there already."""

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
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
) -> Iterator[Iterable[_T]]:
    """Work on each of these, with one thread: results in the order in which they are done.

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
    if not chosen:
        yield ()
    elif backend == "processes":
        with _in_processes(work, chosen, min(jobs or os.cpu_count() or 1, len(chosen))) as done:
            yield done
    else:
        with _on_cluster(work, chosen, backend, address) as done:
            yield done


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


# --- clusters, through the backends of joblib -------------------------------------------------------------------------


@contextmanager
def _on_cluster(
    work: Callable[[_C], _T], chosen: Sequence[_C], backend: str, address: str | None
) -> Iterator[Iterable[_T]]:
    try:
        from joblib import Parallel, delayed

        with _CLUSTERS[backend](address) as its_backend:
            run = Parallel(-1, backend=its_backend, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
            tasks = (delayed(_work_alone)(work, one) for one in chosen)
            done = _ended(lambda: run(tasks), backend)
            try:
                yield done
            finally:
                with warnings.catch_warnings(action="ignore"):  # joblib counts what it cancels
                    done.close()
    except ImportError as error:
        raise InputError(f"{backend} is not installed: pip install 'gatdiag[{backend}]' ({error})") from None


def _ended(start: Callable[[], Iterator[_T]], backend: str) -> Generator[_T]:
    """Results until there is one that the cluster could not give."""
    try:
        yield from start()
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
def _dask(address: str | None) -> Iterator[Any]:
    import dask
    from distributed import Client
    from joblib._dask import DaskDistributedBackend

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        """joblib's own waits forever for what Dask gives up, as a task whose workers died."""

        def effective_n_jobs(self, n_jobs: int) -> Any:
            return max(2, super().effective_n_jobs(n_jobs))  # with one joblib would work here, not on the cluster

        def submit(self, func: Any, callback: Callable[[Any], None]) -> Any:
            def tell(ended: Future[Any]) -> None:
                if (error := ended.exception()) is not None:
                    callback(error)

            future = super().submit(func, callback)
            future.add_done_callback(tell)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            if isinstance(out, BaseException):
                raise out
            return super().retrieve_result_callback(out)

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
            yield Backend(client=client)


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    import ray
    from ray.util.joblib.ray_backend import RayBackend

    class Backend(RayBackend):  # type: ignore[misc]
        """It tells each result as it comes, though the pool of processes that it is made from does not."""

        supports_return_generator = True

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
    try:
        if (cpus := ray.cluster_resources().get("CPU", 0)) < 2:  # with one joblib would work here, not on the cluster
            raise InputError(f"Expected a Ray cluster of at least 2 CPUs, got {cpus:g}")
        yield Backend()
    finally:
        if not was_connected:
            ray.shutdown()


_CLUSTERS: Final[Mapping[str, Callable[[str | None], AbstractContextManager[Any]]]] = MappingProxyType(
    {"dask": _dask, "ray": _ray}
)
"""Name -> (address) -> joblib's backend, connected."""

BACKENDS: Final = ("processes", *_CLUSTERS)
"""What trainings can run on."""
