"""What the four tables of a run hold: the columns, their units, and their Arrow types. Nothing else knows them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

SCHEMA_VERSION = 2

TableName: TypeAlias = Literal["steps", "layers", "parameters", "neurons"]

ROLES = ("feature weight", "attention vector", "bias", "edge weight", "norm scale", "norm shift", "other")


@dataclass(frozen=True)
class Column:
    """One measured column: always float64; null where it was not measured, NaN where it was and is undefined.

    Attributes:
        name: Its name in the table.
        unit: "" if it has none; "X" and "W" where it scales like a layer's output or a weight, "L" like the loss.
        meaning: What it is.
    """

    name: str
    unit: str
    meaning: str


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
    columns: tuple[Column, ...]
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


def _of_output_and_gradient(*columns: Column) -> tuple[Column, ...]:
    """The columns, then the same of dLoss/dX."""
    return (*columns, *(_of_gradient(column) for column in columns))


def _of_gradient(column: Column) -> Column:
    name = column.name.replace("relative_", "relative_gradient_") if "relative_" in column.name else ""
    name = name or ("output_gradient_norm" if column.name == "output_norm" else f"gradient_{column.name}")
    return Column(name, column.unit.replace("X", "(dL/dX)"), column.meaning.replace("X", "dL/dX"))


_SIGNIFICANT = "the entries with |w| >= 1e-4"
_VECTORS = "of attention vectors, share of all entries whose |w - w_0| does"
_QUANTILES = (0, 5, 25, 50, 75, 95, 100)

_STEPS = (
    Column("time", "s", "time since recording began"),
    Column("gradient_norm", "L/W", "norm of the gradients of all parameters together, as the optimiser used them"),
    Column("gradient_norm_before_clipping", "L/W", "the same before gradients were clipped"),
    Column(
        "learning_rate",
        "",
        "learning rate of the first parameter group; learning_rate_1, ... of the further ones, optimizers "
        "in the order in which they first made a step",
    ),
)
_LAYERS = (
    *_of_output_and_gradient(
        Column("output_norm", "X", "Frobenius norm of X"),
        Column("mu", "X", "distance of X from its mean over the nodes"),
        Column("relative_mu", "", "mu over the norm of X"),
        Column("dead_fraction", "", "share of the columns of X that are zero at every node"),
        Column("non_finite", "", "how many entries of X are NaN or infinite"),
    ),
    Column("attention_entropy", "nat", "mean entropy of the attention of a node; null where a note says why"),
    Column("relative_attention_entropy", "", "the same over its largest possible value"),
    *_of_output_and_gradient(
        Column("dirichlet_energy", "X^2", "Dirichlet energy of X"),
        Column("rayleigh_quotient", "", "Dirichlet energy over the squared norm of X"),
        Column("mad", "", "mean cosine distance between the rows of X"),
        Column("effective_rank", "", "exponential of the entropy of the singular values of X"),
        Column("numerical_rank", "", "squared Frobenius norm of X over its squared spectral norm"),
    ),
)
_PARAMETERS = (
    Column("norm", "W", "Frobenius norm of the parameter W"),
    Column("gradient_norm", "L/W", "Frobenius norm of its gradient"),
    Column("relative_gradient_norm", "", "gradient_norm over norm"),
    Column("update_ratio", "", "norm of the change of W by this optimiser step over norm"),
    Column("unchanged_fraction", "", "share of entries that equal their initial value"),
    Column("changed_fraction_005", "", f"share of {_SIGNIFICANT} whose |w - w_0| / |w| exceeds 0.05; {_VECTORS}"),
    Column("changed_fraction_050", "", f"share of {_SIGNIFICANT} whose |w - w_0| / |w| exceeds 0.5; {_VECTORS}"),
    Column("non_finite", "", "how many entries of W are NaN or infinite"),
    Column("gradient_non_finite", "", "how many entries of its gradient are NaN or infinite"),
    *(
        Column(f"relative_change_q{q}", "", f"{q} % quantile of |w - w_0| / |w| over {_SIGNIFICANT}")
        for q in _QUANTILES
    ),
    *(Column(f"absolute_change_q{q}", "W", f"{q} % quantile of |w - w_0| over all entries") for q in _QUANTILES),
    Column("spectral_norm", "W", "largest singular value of W, all its axes but the first flattened; null for vectors"),
)
_NEURONS = (
    Column("delta", "L", "sum_k e_k <w_k, dL/dw_k>, zero where the law holds"),
    Column("c", "W^2", "sum_k e_k |w_k|^2, constant under gradient flow"),
    Column("predicted_c", "W^2", "what the optimiser's previous step must have made of c if delta is zero"),
)

TABLES: dict[TableName, Table] = {
    table.name: table
    for table in (
        Table("steps", "the whole network", "", _STEPS, is_open=True),
        Table("layers", "layer", "layer", _LAYERS, joined=(("layer", "name of the layer, in structure order"),)),
        Table(
            "parameters",
            "parameter",
            "parameter",
            _PARAMETERS,
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
            _NEURONS,
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
        lines += ["    step (int64): which optimiser step, from 0"]
        lines += [f"    {name}: {meaning}" for name, meaning in table.joined]
        lines += [f"    {c.name}{f' [{c.unit}]' if c.unit else ''}: {c.meaning}" for c in table.columns]
        lines += ["    any further column: a scalar that was logged under this name"] if table.is_open else []
        lines += [""]
    return "\n".join(lines)
