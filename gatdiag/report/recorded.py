"""The tables of what was recorded: layers, parameters and laws, with their last values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.report.latest import last_values
from gatdiag.report.tables import NOT_MEASURED, Cell, Column, Table, called, value, whole, words
from gatdiag.report.wording import TIMES
from gatdiag.run import Run
from gatdiag.summary import FEATURES, measured, role_series, zero_norms

_LABELS = {"changed_fraction_005": "changed > 5 %", "changed_fraction_050": "changed > 50 %"}
_DASH = "A dash: not measured, or not defined for it."
_OF_OUTPUTS = (
    "output_norm", "mu", "relative_mu", "dead_fraction", "dirichlet_energy", "rayleigh_quotient", "mad",
    "effective_rank", "numerical_rank", "non_finite",
)  # fmt: skip
_OF_GRADIENTS = (
    "output_gradient_norm", "gradient_mu", "relative_gradient_mu", "gradient_dead_fraction", "gradient_non_finite",
    "attention_entropy", "relative_attention_entropy",
)  # fmt: skip
_OF_PARAMETERS = (
    "norm", "gradient_norm", "relative_gradient_norm", "update_ratio", "unchanged_fraction", "changed_fraction_005",
    "changed_fraction_050", "spectral_norm", "non_finite", "gradient_non_finite",
)  # fmt: skip


def layer_table(run: Run, anchor: str) -> Table:
    """One row a layer, in order."""
    last = _last_recorded(run, "layers", "layer", _OF_OUTPUTS)
    gradients = last_values(role_series(run, "relative_gradient_norm", FEATURES))
    executed = any(layer.get("executed") is not None for layer in run.meta["structure"]["layers"])
    columns = [Column("layer"), Column("#", True, "place of the layer"), Column("kind")]
    columns += [Column("executed")] * executed
    columns += [Column("rel. gradient norm", True, "of the feature weights")] * bool(gradients)
    rows = []
    for place, layer in enumerate(run.meta["structure"]["layers"], start=1):
        name = layer["name"]
        cells = [called(name), whole(layer.get("index", place)), called(layer.get("kind", ""))]
        cells += [words({True: "yes", False: "no"}.get(layer.get("executed"), "unknown"))] * executed
        cells += [value(gradients.get(name))] * bool(gradients)
        rows.append((*cells, *_values(last, name)))
    return Table(
        "Layers",
        anchor,
        (*columns, *_heads(run, last)),
        tuple(rows),
        f"Last recorded values of each layer's output. {_DASH}",
    )


def gradient_table(run: Run, anchor: str) -> Table:
    """One row a layer: the gradient that comes back to its output, and its attention. Without rows if not recorded."""
    last = _last_recorded(run, "layers", "layer", _OF_GRADIENTS)
    names = run.layer_names if last else ()
    return Table(
        "Gradients and attention of the layers",
        anchor,
        (Column("layer"), *_heads(run, last)),
        tuple((called(name), *_values(last, name)) for name in names),
        f"Last recorded values of the loss's gradient of each layer's output, and of its attention. {_DASH}",
    )


def parameter_table(run: Run, anchor: str) -> Table:
    """One row a parameter, in order."""
    last = _last_recorded(run, "parameters", "parameter", _OF_PARAMETERS)
    columns = (Column("parameter"), Column("layer"), Column("role"), Column("shape"), Column("entries", True))
    rows = []
    for layer in run.meta["structure"]["layers"]:
        for parameter in layer["parameters"]:
            shape = parameter["shape"]
            role = parameter["role"] if parameter.get("trainable", True) else f"{parameter['role']} (frozen)"
            cells = (
                called(parameter["name"]),
                called(layer["name"]),
                words(role),
                words(f" {TIMES} ".join(map(str, shape))),
            )
            entries = whole(math.prod(shape))
            rows.append((*cells, entries, *_values(last, parameter["name"])))
    return Table(
        "Parameters",
        anchor,
        columns + _heads(run, last),
        tuple(rows),
        f"Last recorded values of each parameter. {_DASH}",
    )


def law_tables(run: Run, anchor: str) -> tuple[Table, ...]:
    """The laws layer by layer; what has no law, and why. None if laws were not looked for."""
    laws = run.meta.get("laws") or {}
    tables = []
    if laws.get("found"):
        tables.append(_found(run, anchor))
    if laws.get("excluded"):
        rows = tuple((words(item["what"]), words(item["reason"])) for item in laws["excluded"])
        title, note = "What has no conservation law", "No law is claimed for these parts of the model."
        heads = (Column("part of the model"), Column("reason"))
        tables.append(Table(title, f"{anchor}-excluded", heads, rows, note, wraps=True))
    return tuple(tables)


def _found(run: Run, anchor: str) -> Table:
    last = _last_step(run)
    heads = ["laws", "approximate", "largest residual", "largest |c|", "mean |c|", "largest |delta|"]
    columns = (Column("layer"), Column("kind"), *(Column(head, True) for head in heads))
    rows = []
    for layer, laws in run.laws.table.groupby("layer", sort=False, dropna=False):
        residual = laws["residual"].max()
        kinds, approximate = words(", ".join(laws["kind"].unique())), whole(int((~laws["exact"]).sum()))
        largest = value(None if math.isnan(residual) else residual)
        counts = (called(str(layer)), kinds, whole(len(laws)), approximate, largest)
        rows.append((*counts, *_magnitudes(last[last["layer"] == layer])))
    note = "c is conserved by gradient flow; delta is zero where the law holds. Values of the last recorded step."
    return Table("Conservation laws", anchor, columns, tuple(rows), note)


def _magnitudes(rows: pd.DataFrame) -> tuple[Cell, ...]:
    if not len(rows):
        return (value(None),) * 3
    c, delta = rows["c"].abs(), rows["delta"].abs()
    return value(c.max()), value(c.mean()), value(delta.max())


def _last_step(run: Run) -> pd.DataFrame:
    steps = run.neurons["step"].to_numpy()
    return run.neurons.iloc[steps.searchsorted(steps[-1]) :] if len(steps) else run.neurons


@dataclass(frozen=True)
class _Latest:
    """A column at the last step at which it was measured anywhere."""

    name: str
    step: int
    is_last: bool
    values: Mapping[str, float]


def _last_recorded(run: Run, table: Literal["layers", "parameters"], by: str, columns: Sequence[str]) -> list[_Latest]:
    """The columns that hold anything, each at its own last step: some are measured at a coarser cadence."""
    found = []
    frame = run.layers if table == "layers" else run.parameters
    steps = frame["step"].to_numpy()
    for name in columns:
        numbers = frame[name].notna().to_numpy() if name in frame.columns else np.zeros(0, bool)
        if numbers.any():
            step = int(steps[len(numbers) - 1 - numbers[::-1].argmax()])
            first, end = np.searchsorted(steps, step), np.searchsorted(steps, step, side="right")
            rows = frame.iloc[first:end]
            known = (measured(run, table, name) & ~_undefined(run, table, name))[first:end]
            values = dict(zip(rows[by].astype(str)[known], rows[name].astype(float)[known], strict=True))
            found.append(_Latest(name, step, step == steps[-1], values))
    return found


def _undefined(run: Run, table: str, column: str) -> NDArray[np.bool_]:
    """The rows of a table in which a column is 0 / 0."""
    rows = np.zeros(len(run.layers if table == "layers" else run.parameters), bool)
    if table == "layers":
        rows[measured(run, "layers", column)] = zero_norms(run, column)
    return rows


def _heads(run: Run, latest: Sequence[_Latest]) -> tuple[Column, ...]:
    return tuple(_head(run, column) for column in latest)


def _head(run: Run, column: _Latest) -> Column:
    label = _LABELS.get(column.name) or run.quantity(column.name).label
    return Column(label if column.is_last else f"{label} (step {column.step})", True, column.name)


def _values(latest: Sequence[_Latest], name: str) -> tuple[Cell, ...]:
    return tuple(value(column.values[name]) if name in column.values else NOT_MEASURED for column in latest)
