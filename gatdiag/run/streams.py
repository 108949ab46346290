"""The append-only files of a run while it is recorded. Rows are written immediately."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gatdiag.quantities import TableName
from gatdiag.run import tables
from gatdiag.run.files import atomic_write

_POSITION = {"layers": "layer", "parameters": "parameter", "neurons": "law"}
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class _Appender:
    """A file that is only appended to.

    Attributes:
        rows: How many were appended.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        with atomic_write(path) as part:
            part.write_bytes(header)
        self._file = path.open("ab", buffering=0)
        self.rows = 0

    def write(self, data: bytes, rows: int) -> None:
        """Append the data of some rows; after an error or an interrupt, nothing of them is in the file.

        Raises:
            OSError: They could not be written.
        """
        end = self._file.seek(0, io.SEEK_END)
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException as error:
            self._file.truncate(end)
            if isinstance(error, OSError):
                raise OSError(f"rows could not be written: {error}") from error
            raise
        self.rows += rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonLines(_Appender):
    """The file of the table `steps`: one line of JSON per row, with NaN, Infinity and -Infinity."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, b"")

    def encode(self, rows: Any) -> tuple[bytes, int]:
        """Encode a row, or a list of rows; returns their number, too."""
        lines = [
            {name: int(value) if name == "step" else float(value) for name, value in row.items() if value is not None}
            for row in ([rows] if isinstance(rows, Mapping) else rows)
        ]
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode(), len(lines)

    def encode_table(self, rows: pa.Table) -> tuple[bytes, int]:
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

    def encode(self, columns: Any) -> tuple[bytes, int]:
        """Encode rows that are given as columns, as `Store.append` describes; returns their number, too."""
        position = _POSITION[self._table]
        if unknown := columns.keys() - {"step", position, *self._measured}:
            raise LookupError(f"the table {self._table} has no column {', '.join(unknown)}")
        positions = np.asarray(columns[position])
        steps = pa.array(np.broadcast_to(columns["step"], positions.shape), pa.int64())
        keys = self.keys.take(pa.array(positions, pa.int32()))
        measured = [_column(columns.get(name), len(positions)) for name in self._measured]
        return self.encode_table(pa.Table.from_arrays([steps, *keys.columns, *measured], schema=self._schema))

    def encode_table(self, rows: pa.Table) -> tuple[bytes, int]:
        """Encode rows that were read from a file."""
        self._memory.seek(0)
        self._memory.truncate()
        self._writer.write_table(rows)
        return self._memory.getvalue(), rows.num_rows


def _column(values: Any, rows: int) -> pa.Array:
    """A column from one number per row or one for all rows. Masked numbers are null, and so are all for None."""
    if values is None:
        return pa.nulls(rows, pa.float64())
    mask = np.broadcast_to(np.ma.getmaskarray(values), rows) if isinstance(values, np.ma.MaskedArray) else None
    numbers = np.broadcast_to(np.asarray(values, dtype=np.float64), rows)
    return pa.array(numbers, pa.float64(), mask=mask, from_pandas=False)
