"""The four tables of a run: what their rows hold, and reading and writing them.

The measured columns are those of `gatdiag.quantities`, always float64: null where nothing was measured, NaN where the
result is undefined.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gatdiag import quantities
from gatdiag.quantities import TableName
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
    "parameters": {"layer": "name of its layer", "parameter": "its name", "role": "what it does in its layer"},
    "neurons": {
        "layer": "name of the layer it is counted under; null if that layer is not recorded",
        "neuron": "int32, index of the neuron; null where the law runs over the whole layer",
        "law": "int32, position in laws.found of meta.json",
    },
}
NAMES = pa.dictionary(pa.int32(), pa.string())
BROKEN = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError)

_STARTS = b"\xff\xff\xff\xff"  # every message in an Arrow stream
_ROWS_A_GROUP = 500_000
_BYTES_A_GROUP = 64 * 2**20


@cache
def schema(table: TableName, further: tuple[str, ...] = ()) -> pa.Schema:
    """The columns of a table and their types, and then those of `further` names that are not among them."""
    keys = {key: pa.int32() if key in ("neuron", "law") else NAMES for key in KEYS[table]}
    own = {"step": pa.int64()} | keys | {column.name: pa.float64() for column in quantities.columns(table)}
    return pa.schema([*own.items(), *((name, pa.float64()) for name in further if name not in own)])


def is_logged(column: str) -> bool:
    """True if a column of `steps` is a scalar that the user logged, and not one that gatdiag measured.

    Example:
        >>> [name for name in ("step", "loss", "learning_rate_1", "val_accuracy") if is_logged(name)]
        ['loss', 'val_accuracy']
    """
    return column not in schema("steps").names and not re.fullmatch(r"learning_rate_\d+", column)


def is_valid_unicode(text: str) -> bool:
    """True if a name can be written to a file: it holds no lone surrogates.

    Example:
        >>> is_valid_unicode("convs.0"), is_valid_unicode(chr(0xDC80))
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def describe() -> str:
    """All tables and columns as text, for the documentation."""
    lines: list[str] = []
    for table, rows in ROWS.items():
        lines += [f"{table}: one row for each step{rows}", "    step (int64): which optimizer step, from 0"]
        lines += [f"    {name}: {meaning}" for name, meaning in KEYS[table].items()]
        lines += [f"    {c.name}{f' [{c.unit}]' if c.unit else ''}: {c.meaning}" for c in quantities.columns(table)]
        lines += ["    any further column: a scalar that was logged under this name"] if table == "steps" else []
        lines += [""]
    return "\n".join(lines)


def named(table: TableName, meta: Mapping[str, Any]) -> pa.RecordBatch:
    """The key columns of a table: a row for each layer, parameter or law of the structure, in order."""
    layers = meta["structure"]["layers"]
    names = [layer["name"] for layer in layers]
    if table == "layers":
        found: list[Any] = [_dictionary(names, names)]
    elif table == "parameters":
        held = [(layer["name"], each["name"], each["role"]) for layer in layers for each in layer["parameters"]]
        of_layer, parameters, roles = zip(*held, strict=True) if held else ((), (), ())
        found = [_dictionary(of_layer, names), _dictionary(parameters, parameters)]
        found += [_dictionary(roles, dict.fromkeys([*ROLES, *roles]))]
    else:
        laws = [(entry, at) for entry in meta["laws"]["found"] for at in range(entry.get("count", 1))]
        neurons = [None if entry["neuron"] is None else entry["neuron"] + at for entry, at in laws]
        found = [_dictionary([entry["layer"] for entry, _ in laws], names), pa.array(neurons, pa.int32())]
        found += [pa.array(np.arange(len(laws), dtype=np.int32))]
    return pa.record_batch(found, names=list(KEYS[table]))


def _dictionary(values: Sequence[str | None], names: Iterable[str]) -> pa.Array:
    at: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    indices = pa.array([at.get(value) for value in values], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(at), pa.string()))


# --- reading and writing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What could not be read of a file.

    Attributes:
        path: The file.
        text: What is wrong with it, in words.
        is_loss: True if it is more than the unfinished end that a kill leaves.
    """

    path: Path
    text: str
    is_loss: bool


def read(folder: Path, table: TableName, damages: list[Damage], *, is_sealed: bool) -> Iterator[pa.Table]:
    """A table as far as it can be read, a piece at a time; `damages` takes what cannot be.

    Raises:
        FileNotFoundError: There is no file.
    """
    if is_sealed:
        path = files.sealed(folder, table)
        pieces = _parquet(path, table)
    else:
        path = files.stream(folder, table)
        pieces = _lines(path, damages) if table == "steps" else _stream(path, damages)
    try:
        for piece in pieces:
            yield _fitted(piece, table)
    except FileNotFoundError:
        raise
    except BROKEN as error:
        damages.append(Damage(path, f"{path.name} is damaged and cannot be read ({error})", is_loss=True))


def _fitted(piece: pa.Table, table: TableName) -> pa.Table:
    """A piece of a table with exactly the columns that it should have; those that nobody recorded are null."""
    piece.validate(full=True)
    there = piece.schema.names
    wanted = schema(table, tuple(there) if table == "steps" else ())
    for name in ("step", "law") if table == "neurons" else ("step",):
        if name not in there or piece.column(name).null_count:
            raise ValueError(f"it has rows without a {name}")
    if piece.schema.equals(wanted):
        return piece
    found = []
    for field in wanted:
        column = piece.column(field.name) if field.name in there else pa.nulls(piece.num_rows, field.type)
        try:
            found.append(column.cast(field.type))
        except pa.ArrowException:
            raise ValueError(f"its column {field.name} should be {field.type}, and is {column.type}") from None
    return pa.Table.from_arrays(found, schema=wanted)


def _parquet(path: Path, table: TableName) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        there = file.schema_arrow.names
        yield file.read(None if table == "steps" else [name for name in schema(table).names if name in there])


def _stream(path: Path, damages: list[Damage]) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_stream(file)
        yield reader.schema.empty_table()
        whole, size = file.tell(), file.size()
        try:
            for batch in reader:
                batch.validate(full=True)
                yield pa.Table.from_batches([batch])
                whole = file.tell()
        except BROKEN:
            pass  # told below: where a kill cuts a stream nothing whole comes after it
        if whole == size:
            return
        file.seek(whole + 1)  # not in the path: a live run may have grown since
        if is_loss := _holds_a_message(file.read()):
            text = f"{path.name}: damaged at byte {whole}; the rows behind it are lost"
        else:
            text = f"{path.name}: the last {size - whole} bytes are an unfinished batch, left out"
        damages.append(Damage(path, text, is_loss))


def _holds_a_message(data: bytes) -> bool:
    at = data.find(_STARTS)
    while at >= 0:
        try:
            return bool(pa.ipc.read_message(data[at:]).type == "record batch")
        except BROKEN:
            at = data.find(_STARTS, at + 1)
    return False


def _lines(path: Path, damages: list[Damage]) -> Iterator[pa.Table]:
    *lines, rest = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if type(row["step"]) is not int or not 0 <= row["step"] < 2**63:
                raise ValueError("no step")
            rows.append({name: value if name == "step" else float(value) for name, value in row.items()})
        except (*BROKEN, AttributeError, RecursionError):
            damages.append(Damage(path, f"{path.name}: line {number} is damaged; its row is lost", is_loss=True))
    if rest:
        text = f"{path.name}: the last {len(rest)} bytes are an unfinished line, left out"
        damages.append(Damage(path, text, is_loss=False))
    yield of_rows(rows)


def of_rows(rows: Sequence[Mapping[str, float]]) -> pa.Table:
    """Rows of `steps`, each with the columns that it has."""
    wanted = schema("steps", tuple(dict.fromkeys(name for row in rows for name in row)))
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)


def write_parquet(path: Path, table: TableName, pieces: Iterator[pa.Table]) -> None:
    """Writes a table whole or not at all, holding one row group in memory."""
    first = next(pieces, schema(table).empty_table())
    out = first.schema.with_metadata({"gatdiag.schema": str(SCHEMA_VERSION)})
    keys = [field.name for field in out if not pa.types.is_floating(field.type)]
    measured = {field.name: "BYTE_STREAM_SPLIT" for field in out if pa.types.is_floating(field.type)}
    with (
        files.atomic_write(path, durable=True) as part,
        pq.ParquetWriter(
            part, out, compression="zstd", use_dictionary=keys, column_encoding=measured, write_page_checksum=True
        ) as writer,
    ):
        for group in _groups(chain([first], pieces)):
            writer.write_table(pa.concat_tables(group).cast(out), row_group_size=_ROWS_A_GROUP)


def _groups(pieces: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    group, count, size = [], 0, 0
    for piece in pieces:
        group.append(piece)
        count, size = count + len(piece), size + piece.nbytes
        if count >= _ROWS_A_GROUP or size >= _BYTES_A_GROUP:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group
