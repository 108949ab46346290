"""Rows of one table that are not written yet."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gatdiag.errors import InputError
from gatdiag.run.meta import is_encodable
from gatdiag.run.schema import Table

MOST_FURTHER_COLUMNS = 1000
_INTEGER, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)
_OVERHEAD = 200  # bytes that an array takes beside its values


class Pending:
    """Copies of the rows appended to a table, until `batch` makes one record batch of them.

    Attributes:
        further: Columns beyond the schema's, in the order in which they were first seen.
        size: About how many bytes they take.
    """

    def __init__(self, table: Table) -> None:
        """Begins without rows."""
        self._table = table
        self._measured = {column.name for column in table.columns}
        self._entries: list[tuple[int, dict[str, Any]]] = []
        self.further: dict[str, None] = {}
        self.size = 0

    def add(self, columns: Mapping[str, Any], positions: int) -> None:
        """Copies rows in.

        Args:
            columns: Column -> values: arrays of one length (masked entries are null), or numbers, which stand for all
                rows; None is the same as leaving the column out.
            positions: How many positions there are; the rows name those below it.

        Raises:
            InputError: A column is unknown or missing, the lengths differ, or a position is out of range.
        """
        entry: dict[str, Any] = {}
        rows: int | None = None
        for name, value in columns.items():
            if value is None:
                continue
            array = entry[name] = self._array(name, value)
            if not array.ndim:
                continue
            rows = len(array) if rows is None else rows
            if array.shape != (rows,):
                raise InputError(
                    f"Columns of {self._table.name} should be numbers or arrays of one length, got shape {array.shape} "
                    f"for {name!a} beside {rows} rows"
                )
        self._check_keys(entry, positions)
        rows = 1 if rows is None else rows
        if rows:
            self._entries.append((rows, entry))
            self.size += (8 * rows + _OVERHEAD) * len(entry)

    @property
    def rows(self) -> int:
        """How many rows are waiting."""
        return sum(rows for rows, _ in self._entries)

    @property
    def last(self) -> object:
        """Stands for all rows up to now; for `drop_through`."""
        return self._entries[-1] if self._entries else None

    def drop_through(self, last: object) -> None:
        """Forgets the rows up to a former `last`, because they are written. Harmless if they are gone already."""
        for count, entry in enumerate(self._entries, 1):
            if entry is last:
                del self._entries[:count]
                self.size = sum((8 * rows + _OVERHEAD) * len(rest) for rows, rest in self._entries)
                return

    def _array(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        """A copy of the values in the column's type."""
        kind = _INTEGER if name in self._table.keys else _FLOAT
        if kind is _FLOAT and name not in self._measured:
            self._admit(name)
        given = value if isinstance(value, np.ndarray) else np.asarray(value)
        if given.size and given.dtype.kind not in ("iu" if kind is _INTEGER else "biuf"):
            numbers = "whole numbers" if kind is _INTEGER else "numbers"
            raise InputError(f"{name!a} should be {numbers}, got {type(value).__name__} of {given.dtype}")
        return given.astype(kind)

    def _admit(self, name: str) -> None:
        """Takes in a column that the schema does not have, if the table is open."""
        if not self._table.is_open:
            raise InputError(
                f"The table {self._table.name} has no column {name!a}; "
                f"it has {', '.join(self._table.stream_schema().names)}"
            )
        if name in self.further:
            return
        if not isinstance(name, str) or not is_encodable(name):
            raise InputError(f"The name of a logged scalar should be text in valid Unicode, got {name!a}")
        if len(self.further) >= MOST_FURTHER_COLUMNS:
            raise InputError(f"A run holds at most {MOST_FURTHER_COLUMNS} logged scalars; {name!a} is one more")
        self.further[name] = None

    def _check_keys(self, entry: Mapping[str, Any], positions: int) -> None:
        for key in self._table.keys:
            if key not in entry or np.ma.is_masked(entry[key]):
                raise InputError(f"Every row of {self._table.name} needs a {key}")
        if entry["step"].size and entry["step"].min() < 0:
            raise InputError(f"step should be a whole number from 0, got {entry['step'].min()}")
        position = self._table.position
        if position and entry[position].size and not 0 <= entry[position].min() <= entry[position].max() < positions:
            raise InputError(
                f"{position} should be positions from 0 to {positions - 1}, "
                f"got {entry[position].min()} to {entry[position].max()}"
            )

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """All rows as one record batch of this schema; columns that were not given are null."""
        rows = self.rows
        return pa.record_batch([self._column(field, rows) for field in schema], schema=schema)

    def _column(self, field: pa.Field, total: int) -> pa.Array:
        values = np.zeros(total, dtype=field.type.to_pandas_dtype())
        missing = np.ones(total, dtype=bool)
        start = 0
        for rows, entry in self._entries:
            given = entry.get(field.name)
            if given is not None:
                values[start : start + rows] = given
                missing[start : start + rows] = np.ma.getmaskarray(given) if np.ma.isMaskedArray(given) else False
            start += rows
        return pa.array(values, mask=missing if missing.any() else None, type=field.type, from_pandas=False)
