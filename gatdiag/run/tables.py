"""The four tables of a run: their columns, and reading and writing them.

The measured columns are those of `gatdiag.quantities`, all float64: null where nothing was measured, NaN where the
result is undefined.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gatdiag import quantities
from gatdiag.errors import InputError
from gatdiag.quantities import Quantity, TableName
from gatdiag.roles import ROLES
from gatdiag.run import files

SCHEMA_VERSION = 2
ROWS: Mapping[TableName, str] = {
    "steps": "",
    "layers": " and layer",
    "parameters": " and parameter",
    "neurons": " and conservation law",
}
KEYS: Mapping[TableName, Mapping[str, str]] = {
    "steps": {},
    "layers": {"layer": "name of the layer, in structure order"},
    "parameters": {"layer": "name of its layer", "parameter": "its name", "role": "its role in the layer"},
    "neurons": {
        "layer": "name of the layer the law belongs to; null if that layer is not recorded",
        "neuron": "int32, index of the neuron; null if the law is about the whole layer",
        "law": "int32, position in laws.found of meta.json",
    },
}
IDENTITY: Mapping[TableName, tuple[str, ...]] = {  # with the step, what a row is about
    "steps": (),
    "layers": ("layer",),
    "parameters": ("parameter",),
    "neurons": ("law",),
}
NAMES = pa.dictionary(pa.int32(), pa.string())
BROKEN = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError)

_MAX_GROUP_ROWS = 500_000
_MAX_GROUP_BYTES = 64 * 2**20


def measured_columns(table: TableName) -> list[Quantity]:
    """The measured columns of a table, in order."""
    return [*quantities.columns(table), *(each for each in quantities.STORED if each.table == table)]


@cache
def schema(table: TableName, more_columns: tuple[str, ...] = ()) -> pa.Schema:
    """The columns of a table and their types, followed by those of `more_columns` that are not among them."""
    keys = {key: pa.int32() if key in ("neuron", "law") else NAMES for key in KEYS[table]}
    own = {"step": pa.int64()} | keys | {column.name: pa.float64() for column in measured_columns(table)}
    return pa.schema([*own.items(), *((name, pa.float64()) for name in more_columns if name not in own)])


def is_logged(column: str) -> bool:
    """Whether a column of `steps` is a scalar that the user logged, rather than measured by gatdiag.

    Example:
        >>> [name for name in ("step", "loss", "learning_rate_1", "val_accuracy") if is_logged(name)]
        ['loss', 'val_accuracy']
    """
    return column not in schema("steps").names and not re.fullmatch(r"learning_rate_\d+", column)


def describe_tables() -> str:
    """All tables and columns as text, for the documentation."""
    lines: list[str] = []
    for table, rows in ROWS.items():
        lines += [f"{table}: one row per step{rows}", "    step (int64): number of the optimizer step, from 0"]
        lines += [f"    {name}: {meaning}" for name, meaning in KEYS[table].items()]
        lines += [f"    {c.name}{f' [{c.unit}]' if c.unit else ''}: {c.meaning}" for c in measured_columns(table)]
        lines += ["    any further column: a scalar that was logged under this name"] if table == "steps" else []
        lines += [""]
    return "\n".join(lines)


def key_columns(table: TableName, meta: Mapping[str, Any]) -> pa.RecordBatch:
    """The key columns of a table, with one row per layer, parameter or law of the run, in order."""
    layers = meta["structure"]["layers"]
    names = [layer["name"] for layer in layers]
    if table == "layers":
        columns: list[Any] = [_dictionary_array(names, names)]
    elif table == "parameters":
        rows = [(layer["name"], each["name"], each["role"]) for layer in layers for each in layer["parameters"]]
        owners, parameters, roles = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [_dictionary_array(owners, names), _dictionary_array(parameters, parameters)]
        columns += [_dictionary_array(roles, dict.fromkeys([*ROLES, *roles]))]
    else:
        laws = [(entry, number) for entry in meta["laws"]["found"] for number in range(entry.get("count", 1))]
        neurons = [None if entry["neuron"] is None else entry["neuron"] + number for entry, number in laws]
        columns = [_dictionary_array([entry["layer"] for entry, _ in laws], names), pa.array(neurons, pa.int32())]
        columns += [pa.array(np.arange(len(laws), dtype=np.int32))]
    return pa.record_batch(columns, names=list(KEYS[table]))


def _dictionary_array(values: Sequence[str | None], names: Iterable[str]) -> pa.Array:
    index: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    indices = pa.array([index.get(value) for value in values], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(index), pa.string()))


# --- reading and writing ----------------------------------------------------------------------------------------------


def read(folder: Path, table: TableName, *, is_sealed: bool) -> Iterator[pa.Table]:
    """Read a table piece by piece; a file that is only appended to, up to its first incomplete or damaged row.

    Raises:
        FileNotFoundError: There is no such file.
        InputError: It is damaged.
    """
    path = files.parquet_path(folder, table) if is_sealed else files.stream_path(folder, table)
    files.check_regular(path)
    read_pieces = _read_parquet if is_sealed else _read_lines if table == "steps" else _read_stream
    try:
        for piece in read_pieces(path):
            piece.validate(full=True)
            yield _conform(piece, table)
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise InputError(f"{path} is damaged and cannot be read ({error}); restore it from a copy") from error


def _conform(piece: pa.Table, table: TableName) -> pa.Table:
    """Convert a piece of a table to the table's schema; missing columns become null."""
    names = piece.schema.names
    expected = schema(table, tuple(names) if table == "steps" else ())
    if piece.schema.equals(expected):
        return piece
    columns = [piece.column(f.name).cast(f.type) if f.name in names else pa.nulls(len(piece), f.type) for f in expected]
    return pa.Table.from_arrays(columns, schema=expected)


def _read_parquet(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield file.read()


def _read_stream(path: Path) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_stream(file)
        yield reader.schema.empty_table()
        with contextlib.suppress(*BROKEN):  # the end that a kill or a writer leaves
            for batch in reader:
                batch.validate(full=True)
                yield pa.Table.from_batches([batch])


def _read_lines(path: Path) -> Iterator[pa.Table]:
    lines, rows = path.read_bytes().split(b"\n")[:-1], []
    with contextlib.suppress(*BROKEN, AttributeError, RecursionError):
        for line in lines:
            row = json.loads(line)
            rows.append({"step": int(row.pop("step")), **{name: float(value) for name, value in row.items()}})
    yield table_from_rows(rows)


def table_from_rows(rows: Sequence[Mapping[str, float]]) -> pa.Table:
    """A table `steps` from rows, in which columns may be missing."""
    columns = schema("steps", tuple(dict.fromkeys(name for row in rows for name in row)))
    return pa.Table.from_pylist(rows, columns)


def write_parquet(path: Path, table: TableName, pieces: Iterator[pa.Table]) -> int:
    """Write a table atomically, with one row group in memory at a time; returns the number of its rows."""
    first = next(pieces, schema(table).empty_table())
    out = first.schema.with_metadata({"gatdiag.schema": str(SCHEMA_VERSION)})
    keys = [field.name for field in out if not pa.types.is_floating(field.type)]
    count = 0
    measured = {field.name: "BYTE_STREAM_SPLIT" for field in out if pa.types.is_floating(field.type)}
    with (
        files.atomic_write(path, durable=True) as part,
        pq.ParquetWriter(
            part, out, compression="zstd", use_dictionary=keys, column_encoding=measured, write_page_checksum=True
        ) as writer,
    ):
        for group in _row_groups(chain([first], pieces)):
            rows = pa.concat_tables(group).cast(out)
            writer.write_table(rows, row_group_size=_MAX_GROUP_ROWS)
            count += len(rows)
    return count


def _row_groups(pieces: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    group, count, size = [], 0, 0
    for piece in pieces:
        group.append(piece)
        count, size = count + len(piece), size + piece.nbytes
        if count >= _MAX_GROUP_ROWS or size >= _MAX_GROUP_BYTES:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group
