"""The files of a run folder: their paths, atomic writes, and the lock of the process that writes."""

import contextlib
import errno
import json
import os
import secrets
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from gatdiag.errors import InputError, TakenError

if TYPE_CHECKING:
    from filelock import BaseFileLock

META = "meta.json"
LOCK = ".lock"
SNAPSHOTS = ("initial", "best", "final")
_STREAMS = {"steps": "steps.jsonl"} | {table: f"{table}.arrows" for table in ("layers", "parameters", "neurons")}
_OWN = {
    META,
    *_STREAMS.values(),
    *(f"{name}.parquet" for name in _STREAMS),
    *(f"{name}.safetensors" for name in SNAPSHOTS),
}
_LOCK_TIMEOUT = 0.2  # seconds; `is_locked` holds the lock for an instant


def parquet_path(folder: Path, table: str) -> Path:
    """The file of a table once the run is sealed."""
    return folder / f"{table}.parquet"


def has_tables(folder: Path) -> bool:
    """Whether a folder holds a table of a run."""
    return any(place(folder, table).exists() for table in _STREAMS for place in (parquet_path, stream_path))


def runs_inside(folder: Path) -> list[Path]:
    """Folders of runs in a folder, or one level deeper, where `gatdiag treat` leaves them."""
    return [path.parent for within in ("*", "*/*") for path in sorted(folder.glob(f"{within}/{META}"))]


def run_folder(folder: Path) -> Path:
    """The folder itself, or the only run inside if it is none, as `gatdiag run` leaves it for a script.

    Example:
        >>> run_folder(Path("no such folder"))
        PosixPath('no such folder')
    """
    if (folder / META).exists() or has_tables(folder):
        return folder
    first, *others = runs_inside(folder) or [folder]
    return folder if others else first


def stream_path(folder: Path, table: str) -> Path:
    """The file of a table while it is recorded."""
    return folder / _STREAMS[table]


def snapshot_path(folder: Path, name: str) -> Path:
    """The file of a snapshot of the parameters."""
    if name not in SNAPSHOTS:
        raise InputError(f"Expected the name of a snapshot ({', '.join(SNAPSHOTS)}), got {name!a}")
    return folder / f"{name}.safetensors"


def check_regular(path: Path) -> None:
    """Raise `InputError` if there is something else than a file, such as a FIFO, which would never end.

    Example:
        >>> check_regular(Path("no such file"))
        >>> check_regular(Path("."))
        Traceback (most recent call last):
        gatdiag.errors.InputError: . is damaged: it is no regular file; restore it from a copy
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is damaged: it is no regular file; restore it from a copy")


def partial_files(folder: Path) -> list[Path]:
    """Incomplete files that a killed process has left. Only to be called by the process that holds the lock."""
    return [*folder.glob(".gatdiag.*.part")]


def free_folders(folder: Path, made: str = META) -> Iterator[Path]:
    """Yield the folder unless it holds something that was made there before, then its numbered siblings that are free.

    Args:
        folder: The folder.
        made: A glob pattern of what shows that it was written before.

    Example:
        >>> next(free_folders(Path("no such folder")))
        PosixPath('no such folder')
    """
    if not any(folder.glob(made)):
        yield folder
    named = folder if folder.name.strip(".") else folder.resolve()
    for number in count(2):
        place = named.with_name(f"{named.name}-{number}")
        if not place.exists():
            yield place


def free_folder(folder: Path, made: str) -> Path:
    """The first of `free_folders`; one line on standard error names it if it is not the given folder."""
    place = next(free_folders(folder, made))
    name_folder(folder, place)
    return place


def name_folder(given: Path, place: Path) -> None:
    """Print a line on standard error if something is written to another folder than the given one."""
    if place != given:
        print(f"gatdiag: {from_here(given)} already holds a run: writing to {from_here(place)}", file=sys.stderr)  # noqa: T201


def from_here(path: Path) -> Path:
    """A path as seen from the working directory, if it is inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raise `InputError` unless the folder is missing or empty, or holds a run that may be overwritten.

    Raises:
        TakenError: It holds a run that may not be overwritten.
        InputError: It holds other files, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the run, but {folder} is a file")
    others = {*folder.iterdir()} - {folder / LOCK, *partial_files(folder)} if folder.exists() else set()
    if (folder / META) not in others:
        if others:
            raise InputError(
                f"Expected a new or empty folder or a run, but {folder} holds other files ({min(others).name!a}, ...)"
            )
    elif not overwrite:
        raise TakenError(f"{folder} already holds a run: overwrite or resume it, or choose another folder")
    elif not _is_run(folder):
        raise InputError(f"{folder / META} is not that of a run, so nothing is overwritten; choose another folder")


def _is_run(folder: Path) -> bool:
    """Whether gatdiag wrote the meta.json of a folder, in any schema."""
    try:
        check_regular(folder / META)
        return bool({"schema", "status", "structure"} <= json.loads((folder / META).read_bytes()).keys())
    except (InputError, OSError, ValueError, AttributeError):
        return False


def delete_run(folder: Path) -> None:
    """Delete the files of a run and no others. meta.json, which will be replaced, and the lock are kept."""
    for path in (*partial_files(folder), *(folder / name for name in _OWN - {META})):
        path.unlink(missing_ok=True)


def remove_run(folder: Path) -> None:
    """Delete a run, and its folder unless that holds other files.

    Raises:
        InputError: The folder holds no run, or it is being recorded.
    """
    check_free(folder, overwrite=True)
    lock = acquire_lock(folder)
    try:
        delete_run(folder)
        (folder / META).unlink()
    finally:
        lock.release()
    (folder / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` at the end. After an exception `path` is unchanged.

    Args:
        path: The file to replace.
        durable: Flush it to the disk, so that it survives a power cut.

    Raises:
        OSError: `path` exists and is no regular file, or the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "exists and is no regular file", str(path))
    part = path.with_name(f".gatdiag.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)  # an existing file is the user's
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path.parent)) from error
    try:
        yield part
        if durable:
            _fsync(part)
        part.replace(path)
        if durable:
            _fsync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(folder: Path, timeout: float = _LOCK_TIMEOUT) -> "BaseFileLock":
    """Acquire the lock of a run folder's only writer. It is held until it is released or the process ends.

    On a file system without locks nothing is locked, and the user has to write from one process only.

    Raises:
        TakenError: The lock is held elsewhere.
    """
    from filelock import FileLock, Timeout  # slow to import, and not needed to read a run that has ended

    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise TakenError(
            f"{folder} is being recorded by another process, or elsewhere in this one, and a run has one writer. "
            "Wait until that recording ends, or record to another folder."
        ) from None
    except (OSError, NotImplementedError):
        pass
    return lock


def check_unlocked(folder: Path) -> None:
    """Raise `TakenError` if a live process is writing to the folder; creates nothing."""
    if (folder / LOCK).exists():
        acquire_lock(folder).release()


def check_writable(folder: Path) -> None:
    """Raise `OSError` if the folder could not be created or written; creates nothing."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    code = errno.ENOTDIR if not nearest.is_dir() else 0 if os.access(nearest, os.W_OK | os.X_OK) else errno.EACCES
    if code:
        raise OSError(code, os.strerror(code), str(nearest))


def is_locked(folder: Path) -> bool:
    """Whether a live process is writing to the folder."""
    if (folder / LOCK).exists():
        try:
            acquire_lock(folder, timeout=0).release()
        except TakenError:
            return True
    return False
