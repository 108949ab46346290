"""What the four tables of a run hold, and their Arrow types.

The columns are those of `gatdiag.quantities`: always float64, null where nothing was measured, NaN where it was and is
undefined.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from gatdiag.quantities import Quantity, TableName, columns

SCHEMA_VERSION = 2

ROLES = ("feature weight", "attention vector", "bias", "edge weight", "norm scale", "norm shift", "other")


@dataclass(frozen=True)
class Table:
    """One table of a run.

    Attributes:
        name: Its name, and that of its files.
        rows: What has one row at each step.
        position: Column of the streams that says which of them a row is about; "" if there is one row a step.
        columns: What is measured.
        joined: Columns that take the place of `position` when the table is read or sealed, with what they hold.
        is_open: Whether further columns may be added.
    """

    name: TableName
    rows: str
    position: str
    columns: tuple[Quantity, ...]
    joined: tuple[tuple[str, str], ...] = ()
    is_open: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that no row goes without."""
        return ("step", self.position) if self.position else ("step",)

    def type_of(self, column: str) -> pa.DataType:
        """The Arrow type of a column in the streams."""
        if column == "step":
            return pa.int64()
        return pa.int32() if column == self.position else pa.float64()

    def stream_schema(self, further: Sequence[str] = ()) -> pa.Schema:
        """The schema of the table while it is recorded: positions in place of names."""
        names = [*self.keys, *(column.name for column in self.columns), *further]
        return pa.schema([pa.field(name, self.type_of(name), nullable=name not in self.keys) for name in names])


TABLES: dict[TableName, Table] = {
    table.name: table
    for table in (
        Table("steps", "the whole network", "", columns("steps"), is_open=True),
        Table(
            "layers", "layer", "layer", columns("layers"), joined=(("layer", "name of the layer, in structure order"),)
        ),
        Table(
            "parameters",
            "parameter",
            "parameter",
            columns("parameters"),
            joined=(
                ("layer", "name of its layer"),
                ("parameter", "its name"),
                ("role", "what it does in its layer"),
            ),
        ),
        Table(
            "neurons",
            "conservation law",
            "law",
            columns("neurons"),
            joined=(
                ("layer", "name of the layer it is counted under; null if that layer is not recorded"),
                ("neuron", "int32, index of the neuron; null where the law runs over the whole layer"),
                ("law", "int32, position in laws.found of meta.json"),
            ),
        ),
    )
}


def is_logged(column: str) -> bool:
    """Whether a column of `steps` is a scalar that the user logged, and not one that gatdiag measured.

    Example:
        >>> [name for name in ("step", "loss", "learning_rate_1", "val_accuracy") if is_logged(name)]
        ['loss', 'val_accuracy']
    """
    own = {*TABLES["steps"].keys, *(known.name for known in TABLES["steps"].columns)}
    return column not in own and not re.fullmatch(r"learning_rate_\d+", column)


def describe() -> str:
    """All tables and columns as text, for the documentation."""
    lines: list[str] = []
    for table in TABLES.values():
        lines += [
            f"{table.name}: one row for each step and {table.rows}"
            if table.position
            else f"{table.name}: one row for each step"
        ]
        lines += ["    step (int64): which optimizer step, from 0"]
        lines += [f"    {name}: {meaning}" for name, meaning in table.joined]
        lines += [f"    {c.name}{f' [{c.unit}]' if c.unit else ''}: {c.meaning}" for c in table.columns]
        lines += ["    any further column: a scalar that was logged under this name"] if table.is_open else []
        lines += [""]
    return "\n".join(lines)
