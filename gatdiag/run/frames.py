"""A table as a pandas DataFrame."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from gatdiag.run.names import Names, Positions
from gatdiag.run.schema import Table


def to_frame(batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: Table, names: Names) -> pd.DataFrame:
    """The rows with names in place of positions, as categoricals in structure order; null as NaN."""
    rows = pa.Table.from_batches(batches, schema)
    columns: dict[str, Any] = {"step": _values(rows.column("step"))}
    if table.position:
        columns |= _joined(table, _values(rows.column(table.position)), names)
    columns |= {name: _values(rows.column(name)) for name in schema.names if name not in table.keys}
    return pd.DataFrame(columns, copy=False)


def _values(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """The column as a writable array, without a copy where Arrow's own memory can be had."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if column.num_chunks != 1:
        return np.require(column.to_numpy(), kind, "W")
    chunk = column.chunk(0)
    values = np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * kind.itemsize)
    values = np.require(values, requirements="W")
    if chunk.null_count:
        values[chunk.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return values


def _joined(table: Table, positions: Positions, names: Names) -> dict[str, Any]:
    everything = np.arange(len(names.layers) if table.name == "layers" else len(names.parameters), dtype=np.int32)
    if table.name == "layers":
        return {"layer": _categorical(everything, positions, names.layers)}
    if table.name == "parameters":
        return {
            "layer": _categorical(names.layer_of_parameter, positions, names.layers),
            "parameter": _categorical(everything, positions, names.parameters),
            "role": _categorical(names.role_of_parameter, positions, names.roles),
        }
    return {
        "layer": _categorical(names.layer_of_law, positions, names.layers),
        "neuron": pd.arrays.IntegerArray(names.neuron_of_law[positions], (names.neuron_of_law < 0)[positions]),
        "law": positions,
    }


def _categorical(of: Positions, positions: Positions, names: tuple[str, ...]) -> "pd.Categorical[str]":
    """For each row the name that its position stands for; `of` says which of the names that is."""
    small = of if len(names) >= 2**15 else of.astype(np.int16)  # with many rows, memory is what takes the time
    codes = cast("Positions", small[positions])
    found: pd.Categorical[str] = pd.Categorical.from_codes(codes, pd.Index(list(names), dtype=str))
    return found
