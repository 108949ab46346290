"""The files of a run while it is recorded: rows wait in memory until they are written, and are only ever appended."""

import contextlib
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

MOST_LOGGED = 1000  # columns of `steps`
_MOST_ROWS = 2**20  # bytes of rows that wait to be encoded
_MOST_WAITING = 64 * 2**20  # bytes that wait for room on the disk
_POSITION = {"layers": "layer", "parameters": "parameter", "neurons": "law"}
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class _Appender:
    """A file that is only appended to, of rows that wait in memory.

    Bytes that cannot be written (disk full) wait for the next call, and each is written at its own place in the file.
    What was written, what waits and how many rows both are changes in one assignment. So an interrupt at any instant
    neither loses nor doubles a row.

    Attributes:
        lost: How many batches had to be given up because too much was waiting.
    """

    def __init__(self, path: Path, beginning: bytes) -> None:
        with atomic_write(path) as part:
            part.write_bytes(beginning)
        self.lost = 0
        self._path = path
        self._file = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        self._state = (len(beginning), b"", 0)  # where in the file what waits belongs, what waits, rows up to its end

    def _append(self, data: bytes, rows: int) -> None:
        """Write rows, after those that wait; OSError: they wait."""
        at, waiting, before = self._state
        if data and len(waiting) > _MOST_WAITING:
            self.lost, data = self.lost + 1, b""
        self._state = (at, waiting + data, before + rows)
        self._write()

    def _write(self) -> None:
        """Write what waits.

        Raises:
            OSError: That failed, or the file was deleted.
        """
        at, waiting, rows = self._state
        if waiting and os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "The file was deleted while it was written", str(self._path))
        while waiting:
            os.lseek(self._file, at, os.SEEK_SET)
            written = os.write(self._file, waiting)
            at, waiting = at + written, waiting[written:]
            self._state = (at, waiting, rows)

    def close(self) -> None:
        """Give up what waits."""
        os.close(self._file)


class Lines(_Appender):
    """The table `steps`: a line of JSON a row, with NaN and infinity as Python and JavaScript write them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, b"")
        self._logged: set[str] = set()
        self._rows: tuple[int, list[dict[str, Any]]] = (0, [])  # after how many rows, and which

    def add(self, columns: Mapping[str, Any]) -> None:
        """A row a step that is to be written."""
        for name in columns.keys() - self._logged:
            if not isinstance(name, str) or not tables.is_encodable(name):
                raise InputError(f"The name of a logged scalar should be text in valid Unicode, got {name!a}")
            if len(self._logged) >= MOST_LOGGED:
                raise InputError(f"A run holds at most {MOST_LOGGED} columns of scalars; {name!a} is one more")
            self._logged.add(name)
        steps: list[int] = np.atleast_1d(columns["step"]).tolist()
        rows: list[dict[str, Any]] = [{} for _ in steps]
        for name, values in columns.items():
            if name != "step" and values is not None:
                is_array = isinstance(values, np.ndarray) and values.ndim
                for row, value in zip(rows, values.tolist() if is_array else [float(values)] * len(rows), strict=True):
                    row |= {} if value is None else {name: float(value)}
        self._rows[1].extend({**row, "step": step} for row, step in zip(rows, steps, strict=True))

    def flush(self) -> None:
        """Write all rows; OSError: they wait."""
        before, rows = self._rows
        new = rows[self._state[2] - before :]
        try:
            self._append("".join(f"{json.dumps(row)}\n" for row in new).encode(), len(new))
        finally:
            if self._state[2] == before + len(rows):
                self._rows = (before + len(rows), [])

    def take_over(self, rows: pa.RecordBatch) -> None:
        """Write the rows of another file."""
        for row in rows.to_pylist():
            self.add(row)
        self.flush()


class Stream(_Appender):
    """Any other table: an Arrow IPC stream. A value is copied once into its column, and from there into the file.

    Args:
        path: Of the file.
        table: Which table.
        keys: What its rows are about; see `tables.named`.
    """

    def __init__(self, path: Path, table: TableName, keys: pa.RecordBatch) -> None:
        self.keys, self._table = keys, table
        self._schema = tables.schema(table)
        self._at = {name: at for at, name in enumerate(self._schema.names[1 + keys.num_columns :])}
        self._rows = (0, 0)  # after how many rows, and how many
        self._make_room(max(keys.num_rows, _MOST_ROWS // (9 * len(self._at))))
        self._memory = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._memory, self._schema, options=_OPTIONS)
        super().__init__(path, self._encoded(self._batch(slice(0, 0))))

    def _make_room(self, rows: int) -> None:
        self._steps, self._positions = np.empty(rows, np.int64), np.empty(rows, np.int32)
        self._values, self._measured = np.empty((len(self._at), rows)), np.empty((len(self._at), rows), bool)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Rows that are to be written."""
        positions = np.asarray(columns[_POSITION[self._table]])
        if positions.size and not 0 <= positions.min() <= positions.max() < self.keys.num_rows:
            raise LookupError(f"positions should be from 0 to {self.keys.num_rows - 1}, got {positions}")
        if self._rows[1] + len(positions) > len(self._steps):
            with contextlib.suppress(OSError):  # they wait for the next call
                self.flush()
            self._make_room(max(len(positions), len(self._steps)))
        before, count = self._rows
        here = slice(count, count + len(positions))
        self._steps[here], self._positions[here], self._measured[:, here] = columns["step"], positions, False
        for name, values in columns.items():
            if values is not None and name not in ("step", _POSITION[self._table]):
                at = self._at[name]
                self._values[at, here] = values
                self._measured[at, here] = ~values.mask if isinstance(values, np.ma.MaskedArray) else True
        self._rows = (before, here.stop)

    def flush(self) -> None:
        """Write all rows; OSError: they wait."""
        before, count = self._rows
        new = slice(self._state[2] - before, count)
        try:
            self._append(self._encoded(self._batch(new)) if new.start < count else b"", count - new.start)
        finally:
            if self._state[2] == before + count:
                self._rows = (before + count, 0)

    def take_over(self, rows: pa.RecordBatch) -> None:
        """Write the rows of another file."""
        self._append(self._encoded(rows), 0)

    def _batch(self, rows: slice) -> pa.RecordBatch:
        steps = pa.array(self._steps[rows], pa.int64())
        keys = self.keys.take(pa.array(self._positions[rows], pa.int32()))
        columns = zip(self._values[:, rows], self._measured[:, rows], strict=True)
        measured = [_column(values, there) for values, there in columns]
        return pa.RecordBatch.from_arrays([steps, *keys.columns, *measured], schema=self._schema)

    def _encoded(self, rows: pa.RecordBatch) -> bytes:
        self._memory.seek(0)
        self._memory.truncate()
        self._writer.write_batch(rows)
        return self._memory.getvalue()


def _column(values: np.ndarray[Any, Any], there: np.ndarray[Any, Any]) -> pa.Array:
    if not there.any():
        return pa.nulls(len(values), pa.float64())
    return pa.array(values, pa.float64(), mask=None if there.all() else ~there, from_pandas=False)
