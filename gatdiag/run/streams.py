"""The append-only files of a run while it is recorded. Rows are written immediately."""

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
_MAX_PENDING = 64 * 2**20  # bytes
_POSITION = {"layers": "layer", "parameters": "parameter", "neurons": "law"}
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class _Appender:
    """A file that is only appended to.

    Bytes that cannot be written (disk full) are pending until the next call, and are then written at their own offset.
    The offset and the pending bytes change in a single assignment, so that an interrupt at any instant neither loses
    nor duplicates a row.

    Attributes:
        lost: Number of batches that were dropped because too many bytes were pending.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        with atomic_write(path) as part:
            part.write_bytes(header)
        self.lost = 0
        self._path = path
        self._file = os.open(path, os.O_WRONLY)
        self._state = (len(header), b"")  # offset in the file, bytes pending to be written there

    def write(self, data: bytes = b"") -> None:
        """Write the pending bytes, then the data.

        Raises:
            OSError: Writing failed, or the file was deleted; what was not written is pending.
        """
        offset, pending = self._state
        if data and len(pending) > _MAX_PENDING:
            self.lost, data = self.lost + 1, b""
        self._state = (offset, pending := pending + data)
        if pending and os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "The file was deleted while it was written", str(self._path))
        while pending:
            os.lseek(self._file, offset, os.SEEK_SET)
            written = os.write(self._file, pending)
            offset, pending = offset + written, pending[written:]
            self._state = (offset, pending)

    def close(self) -> None:
        """Close the file; pending bytes are dropped."""
        os.close(self._file)


class JsonLines(_Appender):
    """The file of the table `steps`: one line of JSON per row, with NaN, Infinity and -Infinity."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, b"")
        self._logged: set[str] = set()

    def encode(self, rows: Any) -> bytes:
        """Encode a row, or a list of rows."""
        rows = [rows] if isinstance(rows, Mapping) else rows
        for name in {name for row in rows for name in row} - self._logged:
            if not isinstance(name, str) or not tables.is_valid_unicode(name):
                raise InputError(f"The name of a logged scalar should be text in valid Unicode, got {name!a}")
            if len(self._logged) >= MAX_LOGGED_SCALARS:
                raise InputError(f"A run can hold {MAX_LOGGED_SCALARS} columns of scalars; {name!a} is one too many")
            self._logged.add(name)
        lines = (
            {name: int(value) if name == "step" else float(value) for name, value in row.items() if value is not None}
            for row in rows
        )
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode()

    def encode_table(self, rows: pa.Table) -> bytes:
        """Encode rows that were read from a file."""
        return self.encode(rows.to_pylist())


class ArrowStream(_Appender):
    """The file of any other table: an Arrow IPC stream.

    Args:
        path: The file.
        table: Name of the table.
        keys: Key columns of all layers, parameters or laws; see `tables.key_columns`.
    """

    def __init__(self, path: Path, table: TableName, keys: pa.RecordBatch) -> None:
        self.keys, self._table = keys, table
        self._schema = tables.schema(table)
        self._measured = self._schema.names[1 + keys.num_columns :]
        self._memory = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._memory, self._schema, options=_OPTIONS)
        # Arrow writes the schema with the first batch only.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], self._schema))
        super().__init__(path, self._memory.getvalue())

    def encode(self, columns: Any) -> bytes:
        """Encode rows that are given as columns, as `Store.append` describes."""
        position = _POSITION[self._table]
        if unknown := columns.keys() - {"step", position, *self._measured}:
            raise LookupError(f"no such column: {', '.join(map(ascii, unknown))}")
        positions = np.asarray(columns[position])
        if positions.size and not 0 <= positions.min() <= positions.max() < self.keys.num_rows:
            raise LookupError(f"positions should be from 0 to {self.keys.num_rows - 1}, got {positions}")
        steps = pa.array(np.broadcast_to(columns["step"], positions.shape), pa.int64())
        keys = self.keys.take(pa.array(positions, pa.int32()))
        measured = [_column(columns.get(name), len(positions)) for name in self._measured]
        return self.encode_table(pa.Table.from_arrays([steps, *keys.columns, *measured], schema=self._schema))

    def encode_table(self, rows: pa.Table) -> bytes:
        """Encode rows that were read from a file."""
        self._memory.seek(0)
        self._memory.truncate()
        self._writer.write_table(rows)
        return self._memory.getvalue()


def _column(values: Any, rows: int) -> pa.Array:
    """A column from one number per row or one for all rows. Masked numbers are null, and so are all for None."""
    if values is None:
        return pa.nulls(rows, pa.float64())
    mask = np.broadcast_to(np.ma.getmaskarray(values), rows) if isinstance(values, np.ma.MaskedArray) else None
    numbers = np.broadcast_to(np.asarray(values, dtype=np.float64), rows)
    return pa.array(numbers, pa.float64(), mask=mask, from_pandas=False)
