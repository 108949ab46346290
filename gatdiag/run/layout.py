"""The files of a run folder: their names, and writing one so that it is there whole or not at all."""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from gatdiag.run.schema import TABLES

META = "meta.json"
LOCK = ".lock"
SNAPSHOTS = ("initial", "best", "final")
_STREAM = re.compile(rf"({'|'.join(TABLES)})\.(\d{{1,9}})\.arrows")
_WHOLE = {META, *(f"{table}.parquet" for table in TABLES), *(f"{name}.safetensors" for name in SNAPSHOTS)}
_DAMAGED = ".damaged"
_PART = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")


def parquet(folder: Path, table: str) -> Path:
    """Where a sealed table is."""
    return folder / f"{table}.parquet"


def damaged(path: Path) -> Path:
    """Where a file that cannot be read is moved to when another takes its place."""
    return path.with_name(path.name + _DAMAGED)


def snapshot(folder: Path, name: str) -> Path:
    """Where a snapshot of the parameters is."""
    return folder / f"{name}.safetensors"


def stream(folder: Path, table: str, segment: int) -> Path:
    """Where one segment of a table is while it is recorded."""
    return folder / f"{table}.{segment}.arrows"


def streams(folder: Path, table: str) -> dict[int, Path]:
    """Segment number -> file of every stream of a table, in order."""
    matches = [(_STREAM.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(m[2]), path) for m, path in matches if m and m[1] == table))


def abandoned(folder: Path) -> list[Path]:
    """What a killed process left of files of a run that it had not written whole. To be asked under the run's lock."""
    parts = ((_PART.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for part, path in parts if part is not None and part[1] in _WHOLE]


def belongs_to_a_run(name: str) -> bool:
    """Whether a file of this name is one that gatdiag writes."""
    part = _PART.fullmatch(name)
    whole = name.removesuffix(_DAMAGED) if part is None else part[1]
    return name == LOCK or whole in _WHOLE or _STREAM.fullmatch(name) is not None


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path to write to; what is written there takes the place of `path` at the end, all of it or nothing.

    Args:
        path: The file to replace.
        durable: Wait until it is on the disk, so that it also outlives a power cut.

    Raises:
        OSError: There is something else than a file, such as a device, whose place a file would take.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is there already, and no regular file", str(path))
    part = _new_part(path)
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


def _new_part(path: Path) -> Path:
    """An empty file beside it that was not there before: what stands under any name is the user's."""
    while True:
        part = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}.part")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return part


def _synchronize(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
