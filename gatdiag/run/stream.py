"""One segment of a table while it is recorded: an Arrow IPC stream that is only ever appended to."""

import contextlib
import errno
import io
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_START = b"\xff\xff\xff\xff"  # of every message in an Arrow IPC stream
_END = _START + b"\0\0\0\0"
_BROKEN = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError)

Report = Callable[[str, bool], None]  # what could not be read, and whether that is more than a cut tail


class Segment:
    """Writes one stream. Each batch is handed to the operating system whole, so that a reader finds whole batches.

    Attributes:
        path: The file, which must be new.
        schema: Of its batches.
        last: What `write` was given with the batch that it began to write last.
        is_usable: Whether more can be written; not after an exception came out of `write`.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Makes the file."""
        self.path, self.schema = path, schema
        self.last: object = None
        self.is_usable = True
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._memory = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._memory, schema, options=_OPTIONS)
        self._size = 0
        self._holds_a_batch = False

    def write(self, batch: pa.RecordBatch, last: object) -> None:
        """Appends a batch.

        Args:
            batch: The rows.
            last: Kept as `self.last`, so that `is_whole` can be asked about this batch.

        Raises:
            OSError: It could not be written, or the file was deleted. What was written before is still readable.
        """
        self.is_usable = False
        self._writer.write_batch(batch)
        data = self._drain()
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "The file was deleted while it was written", str(self.path))
        # No call in between: an interrupt (Ctrl-C) comes before both or after both.
        self.last, self._size = last, self._size + len(data)
        _write_all(self._file, data)
        self.is_usable = self._holds_a_batch = True

    def is_whole(self) -> bool:
        """Whether the batch that came with `last` is in the file to its end, so that it must not be written again."""
        return os.fstat(self._file).st_size == self._size > 0

    def _drain(self) -> bytes:
        data = self._memory.getvalue()
        self._memory.seek(0)
        self._memory.truncate()
        return data

    def close(self) -> None:
        """Writes the mark that ends a stream, and closes the file.

        Raises:
            OSError: The mark could not be written; the file is closed, and readable without it.
        """
        try:
            if self.is_usable:
                self._writer.close()
                _write_all(self._file, self._drain())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file as it is; deletes it if it holds no batch."""
        if self._file < 0:
            return
        is_empty = not self._holds_a_batch and not self.is_whole()
        os.close(self._file)
        self._file = -1
        if is_empty:
            with contextlib.suppress(OSError):
                self.path.unlink()


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


class StreamReader:
    """Reads one stream as it is when it is opened, whether or not it is complete or still grows.

    Attributes:
        columns: Names of its columns; empty if not even its beginning can be read.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        """Maps the file and reads its schema."""
        self._path = path
        with path.open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            self._data: Any = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._reader = pa.BufferReader(self._data)
        self.columns: tuple[str, ...] = ()
        try:
            self._schema = pa.ipc.read_schema(pa.ipc.read_message(self._reader))
            self.columns = tuple(self._schema.names)
        except _BROKEN:
            self._schema = None

    def batches(self, report: Report, *, at_once: bool = False) -> Iterator[pa.RecordBatch]:
        """Every batch that can be read, once.

        Args:
            report: Called with what could not be read.
            at_once: Makes no difference to a stream.
        """
        size = len(self._data)
        if not size:
            return  # it was made this instant, or the process was killed in this one
        if self._schema is None:
            report(f"{self._path.name}: the beginning of the file cannot be read", _next(self._data, 0) < size)
            return
        while (start := self._reader.tell()) < size:
            if size - start == len(_END) and self._data[start:] == _END:  # a slice is a copy
                return
            try:
                message = pa.ipc.read_message(self._reader)
            except _BROKEN:
                message = None
            batch = None if message is None else _decoded(message, self._schema)
            if batch is not None:
                yield batch
                continue
            following = _next(self._data, start + 1)
            _tell(report, self._path, start, following, size, whole=message is not None)
            self._reader.seek(following)


def _tell(report: Report, path: Path, start: int, following: int, size: int, *, whole: bool) -> None:
    if whole or following < size:
        report(f"{path.name}: bytes {start} to {following} are damaged; the rows in them are lost", True)
    else:
        report(f"{path.name}: the last {size - start} bytes are an unfinished batch, left out", False)


def _decoded(message: Any, schema: pa.Schema) -> pa.RecordBatch | None:
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except _BROKEN:
        return None
    return batch


def _next(data: Any, start: int) -> int:
    """Where the next readable message begins; the end of the data if there is none."""
    found = data.find(_START, start)
    while found >= 0:
        if _is_message(data, found):
            return int(found)
        found = data.find(_START, found + 1)
    return len(data)


def _is_message(data: Any, start: int) -> bool:
    reader = pa.BufferReader(data)
    reader.seek(start)
    try:
        return bool(pa.ipc.read_message(reader).type == "record batch")
    except _BROKEN:
        return False
