"""The files of a run while it is recorded: rows are written at once, and only ever appended."""

import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gatdiag.errors import InputError
from gatdiag.quantities import TableName
from gatdiag.run import tables
from gatdiag.run.files import atomic_write

MAX_LOGGED_SCALARS = 1000  # columns of `steps`
_MOST_WAITING = 64 * 2**20  # bytes that wait for room on the disk
_POSITION = {"layers": "layer", "parameters": "parameter", "neurons": "law"}
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class _Appender:
    """A file that is only appended to.

    Bytes that cannot be written (disk full) wait for the next call, and each is written at its own place in the file.
    What was written and what waits changes in one assignment, so that an interrupt at any instant neither loses nor
    doubles a row.

    Attributes:
        lost: How many batches had to be given up because too much was waiting.
    """

    def __init__(self, path: Path, beginning: bytes) -> None:
        with atomic_write(path) as part:
            part.write_bytes(beginning)
        self.lost = 0
        self._path = path
        self._file = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        self._state = (len(beginning), b"")  # where in the file what waits belongs, and what waits

    def write(self, data: bytes = b"") -> None:
        """Write what waits, then the data.

        Raises:
            OSError: That failed, or the file was deleted; the data wait.
        """
        at, waiting = self._state
        if data and len(waiting) > _MOST_WAITING:
            self.lost, data = self.lost + 1, b""
        self._state = (at, waiting := waiting + data)
        if waiting and os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "The file was deleted while it was written", str(self._path))
        while waiting:
            os.lseek(self._file, at, os.SEEK_SET)
            written = os.write(self._file, waiting)
            at, waiting = at + written, waiting[written:]
            self._state = (at, waiting)

    def close(self) -> None:
        """Give up what waits."""
        os.close(self._file)


class Lines(_Appender):
    """The table `steps`: a line of JSON a row, with NaN and infinity as Python and JavaScript write them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, b"")
        self._logged: set[str] = set()

    def encoded(self, rows: Any) -> bytes:
        """A row, or several, as they are written."""
        rows = [rows] if isinstance(rows, Mapping) else rows
        for name in {name for row in rows for name in row} - self._logged:
            if not isinstance(name, str) or not tables.is_valid_unicode(name):
                raise InputError(f"The name of a logged scalar should be text in valid Unicode, got {name!a}")
            if len(self._logged) >= MAX_LOGGED_SCALARS:
                raise InputError(f"A run holds at most {MAX_LOGGED_SCALARS} columns of scalars; {name!a} is one more")
            self._logged.add(name)
        lines = (
            {name: int(value) if name == "step" else float(value) for name, value in row.items() if value is not None}
            for row in rows
        )
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode()

    def copied(self, rows: pa.Table) -> bytes:
        """Rows of another file, as they are written here."""
        return self.encoded(rows.to_pylist())


class Stream(_Appender):
    """Any other table: an Arrow IPC stream.

    Args:
        path: Of the file.
        table: Which table.
        keys: What its rows are about; see `tables.named`.
    """

    def __init__(self, path: Path, table: TableName, keys: pa.RecordBatch) -> None:
        self.keys, self._table = keys, table
        self._schema = tables.schema(table)
        self._measured = self._schema.names[1 + keys.num_columns :]
        self._memory = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._memory, self._schema, options=_OPTIONS)
        # A table without rows would write nothing, not even the schema.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], self._schema))
        super().__init__(path, self._memory.getvalue())

    def encoded(self, columns: Any) -> bytes:
        """Rows as they are written."""
        position = _POSITION[self._table]
        if unknown := columns.keys() - {"step", position, *self._measured}:
            raise LookupError(f"no such column: {', '.join(map(ascii, unknown))}")
        positions = np.asarray(columns[position])
        if positions.size and not 0 <= positions.min() <= positions.max() < self.keys.num_rows:
            raise LookupError(f"positions should be from 0 to {self.keys.num_rows - 1}, got {positions}")
        steps = pa.array(np.broadcast_to(columns["step"], positions.shape), pa.int64())
        keys = self.keys.take(pa.array(positions, pa.int32()))
        measured = [_column(columns.get(name), len(positions)) for name in self._measured]
        return self.copied(pa.Table.from_arrays([steps, *keys.columns, *measured], schema=self._schema))

    def copied(self, rows: pa.Table) -> bytes:
        """Rows of another file, as they are written here."""
        self._memory.seek(0)
        self._memory.truncate()
        self._writer.write_table(rows)
        return self._memory.getvalue()


def _column(values: Any, rows: int) -> pa.Array:
    """Numbers, one a row or one for all; masked ones, and all where there are none, are null."""
    if values is None:
        return pa.nulls(rows, pa.float64())
    mask = np.broadcast_to(np.ma.getmaskarray(values), rows) if isinstance(values, np.ma.MaskedArray) else None
    numbers = np.broadcast_to(np.asarray(values, dtype=np.float64), rows)
    return pa.array(numbers, pa.float64(), mask=mask, from_pandas=False)
