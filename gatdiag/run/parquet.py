"""A sealed table: one Parquet file that any tool reads, with names in place of positions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gatdiag.run.layout import replacing
from gatdiag.run.names import Names, Positions
from gatdiag.run.schema import SCHEMA_VERSION, Table
from gatdiag.run.stream import Report

_ROWS_A_GROUP = 500_000
_BYTES_A_GROUP = 64 * 2**20
_SEGMENTS = b"gatdiag.segments"
_SCHEMA = b"gatdiag.schema"


def named(batch: pa.RecordBatch, table: Table, names: Names) -> pa.RecordBatch:
    """The batch with names, as dictionary columns, in the place of positions."""
    if not table.position:
        return batch
    positions = batch.column(table.position).to_numpy()
    joined: dict[str, pa.Array] = {}
    if table.name == "layers":
        joined["layer"] = _dictionary(positions, names.layers)
    elif table.name == "parameters":
        joined["layer"] = _dictionary(names.layer_of_parameter[positions], names.layers)
        joined["parameter"] = _dictionary(positions, names.parameters)
        joined["role"] = _dictionary(names.role_of_parameter[positions], names.roles)
    else:
        neurons = names.neuron_of_law[positions]
        joined["layer"] = _dictionary(names.layer_of_law[positions], names.layers)
        joined["neuron"] = pa.array(neurons, mask=neurons < 0)
        joined["law"] = batch.column("law")
    measured = {name: batch.column(name) for name in batch.schema.names if name not in table.keys}
    return pa.record_batch({"step": batch.column("step"), **joined, **measured})


def named_schema(schema: pa.Schema, table: Table, names: Names) -> pa.Schema:
    """The schema that `named` makes of this one."""
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return named(empty, table, names).schema


def _dictionary(positions: Positions, names: tuple[str, ...]) -> pa.Array:
    indices = pa.array(positions, mask=positions < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


def write(
    path: Path, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch], names: Names, segments: int
) -> None:
    """Writes a table whole or not at all, holding one row group in memory.

    Args:
        path: Of the Parquet file.
        table: Which table.
        schema: Of the batches, which have positions.
        batches: The rows.
        names: What the positions stand for.
        segments: The file takes the place of the segments below this number.

    Raises:
        OSError: It could not be written.
    """
    out = named_schema(schema, table, names).with_metadata({_SCHEMA: str(SCHEMA_VERSION), _SEGMENTS: str(segments)})
    keys = [field.name for field in out if not pa.types.is_floating(field.type)]
    measured = {field.name: "BYTE_STREAM_SPLIT" for field in out if pa.types.is_floating(field.type)}
    with (
        replacing(path, durable=True) as part,
        pq.ParquetWriter(
            part, out, compression="zstd", use_dictionary=keys, column_encoding=measured, write_page_checksum=True
        ) as writer,
    ):
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(named(batch, table, names).cast(out))
            if sum(b.num_rows for b in waiting) >= _ROWS_A_GROUP or sum(b.nbytes for b in waiting) >= _BYTES_A_GROUP:
                writer.write_table(pa.Table.from_batches(waiting, out), row_group_size=_ROWS_A_GROUP)
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, out), row_group_size=_ROWS_A_GROUP)


class ParquetReader:
    """Reads a sealed table back into the form of the streams.

    Attributes:
        segments: It takes the place of the segments below this number.
        columns: Names of its columns.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no Parquet file, or its end is damaged.
    """

    def __init__(self, path: Path, table: Table, names: Names) -> None:
        """Opens the file and reads its footer."""
        self._path, self._table, self._names = path, table, names
        try:
            self._file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
            schema = self._file.schema_arrow
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path.name} is damaged and cannot be read ({error})") from error
        number = (schema.metadata or {}).get(_SEGMENTS, b"0")
        self.segments = int(number) if number.isdigit() and len(number) < 10 else 0
        self.columns: tuple[str, ...] = tuple(schema.names)

    def batches(self, report: Report, *, at_once: bool) -> Iterator[pa.RecordBatch]:
        """All rows that can be read.

        Args:
            report: Called with what could not be read.
            at_once: Read the whole file, which is quicker, and not one row group after the other.
        """
        groups = [*range(self._file.num_row_groups)]
        everything = self._rows(groups) if at_once else None
        if everything is not None:
            yield from everything
            return
        for group in groups:
            rows = self._rows([group])
            if rows is None:
                report(f"{self._path.name}: row group {group} is damaged; its rows are lost", True)
            else:
                yield from rows

    def _rows(self, groups: list[int]) -> list[pa.RecordBatch] | None:
        """The rows of these groups; None if any of it is damaged."""
        wanted = [*self._table.keys, *(column.name for column in self._table.columns)]
        columns = None if self._table.is_open else [name for name in wanted if name in self.columns]
        try:
            return [self._with_positions(batch) for batch in self._file.read_row_groups(groups, columns).to_batches()]
        except (pa.ArrowException, OSError, ValueError, KeyError):
            return None

    def _with_positions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        position = self._table.position
        if position in {"", "law"}:
            return batch
        names = self._names.layers if position == "layer" else self._names.parameters
        at = batch.schema.get_field_index(position)
        return batch.set_column(at, position, _positions(batch.column(position), names))


def _positions(column: Any, names: tuple[str, ...]) -> pa.Array:
    """Positions of a column of names; -1 for a name that is not there."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    known = pc.fill_null(pc.index_in(encoded.dictionary, value_set=pa.array(names, pa.string())), -1)
    if known.equals(pa.array(np.arange(len(known), dtype=np.int32))):
        return pc.fill_null(encoded.indices, -1)
    return pc.fill_null(pc.take(known, encoded.indices), -1)
