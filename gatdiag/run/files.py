"""The files of a run folder: which they are, replacing one whole, and who may write there."""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gatdiag.errors import InputError

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
_PART = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")
_PATIENCE = 0.2  # seconds; someone who asks whether a run is live holds its lock for an instant


def sealed(folder: Path, table: str) -> Path:
    """The Parquet file of a table."""
    return folder / f"{table}.parquet"


def stream(folder: Path, table: str) -> Path:
    """The file that a table is in while it is recorded."""
    return folder / _STREAMS[table]


def snapshot(folder: Path, name: str) -> Path:
    """Where a snapshot of the parameters is."""
    if name not in SNAPSHOTS:
        raise InputError(f"A snapshot is one of {', '.join(SNAPSHOTS)}, got {name!a}")
    return folder / f"{name}.safetensors"


def unfinished(folder: Path) -> list[Path]:
    """Files of a run that a killed process had not written whole. To be asked under the run's lock."""
    return [path for path in folder.iterdir() if _is_unfinished(path.name)]


def _is_unfinished(name: str) -> bool:
    part = _PART.fullmatch(name)
    return part is not None and part[1] in _OWN


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder in which no run can begin: it may be missing, empty, or hold a run that may be deleted."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the run, but {folder} is a file")
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    others = [name for name in there if name != LOCK and not _is_unfinished(name)]
    if META in there and not overwrite:
        raise InputError(
            f"{folder} already holds a run. Say overwrite=True to delete it, resume=True to continue it, or give "
            "another folder."
        )
    if META in there and not _is_a_run(folder):
        raise InputError(f"{folder / META} is not that of a run, so nothing is overwritten; give another folder")
    if META not in there and others:
        raise InputError(f"{folder} is not empty (it holds {others[0]!a}) and holds no run; give a new or empty folder")


def _is_a_run(folder: Path) -> bool:
    """True if gatdiag wrote the meta.json of a folder, in whatever schema."""
    try:
        meta = json.loads((folder / META).read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and isinstance(meta.get("schema"), int) and {"status", "structure"} <= meta.keys()


def delete_run(folder: Path) -> None:
    """Deletes the files of a run and no others; meta.json, which is to be replaced, and the lock stay."""
    own = (folder / f"{name}{ending}" for name in _OWN - {META} for ending in ("", ".damaged"))
    for path in (*unfinished(folder), *own):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path to write to; what is written there takes the place of `path` at the end, all of it or nothing.

    Args:
        path: The file to replace.
        durable: Wait until it is on the disk, so that it also outlives a power cut.

    Raises:
        OSError: There is something else than a file, such as a device, whose place a file would take.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is there already, and no regular file", str(path))
    part = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}.part")
    part.touch(exist_ok=False)  # what stands under any name is the user's
    try:
        yield part
        if durable:
            _synchronize(part)
        part.replace(path)
        if durable:
            _synchronize(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _synchronize(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(folder: Path, patience: float = _PATIENCE) -> "BaseFileLock":
    """The right to write to a run folder, until it is released or the process ends, however; InputError: it is taken.

    Where the file system has no locks nothing is locked, and it is left to the user to write from one process only.
    """
    from filelock import FileLock, Timeout  # slow to load, and reading a run that has ended does not need it

    taken = FileLock(folder / LOCK, thread_local=False)
    try:
        taken.acquire(timeout=patience)
    except Timeout:
        raise InputError(
            f"{folder} is being recorded by another process, or elsewhere in this one, and a run has one writer. "
            "Wait until that recording ends, or record to another folder."
        ) from None
    except (OSError, NotImplementedError):
        pass
    return taken


def is_locked(folder: Path) -> bool:
    """True if a live process is writing to the folder."""
    if (folder / LOCK).exists():
        try:
            lock(folder, patience=0).release()
        except InputError:
            return True
    return False
