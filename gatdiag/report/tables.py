"""The tables of a page: layers, parameters and laws with their last recorded values, settings, catalogue."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from gatdiag.diagnosis.values import last_values
from gatdiag.diagnosis.wording import TIMES, cell
from gatdiag.names import one_line, short
from gatdiag.quantities import columns
from gatdiag.report.equations import equation
from gatdiag.run import Run
from gatdiag.summary import FEATURES, measured, role_series, zero_norms

_LONGEST = 80  # characters of a name in a table


@dataclass(frozen=True)
class Column:
    """The head of a column.

    Attributes:
        label: What it says.
        numeric: Whether its cells are numbers.
        explained: A longer text, or "".
    """

    label: str
    numeric: bool = False
    explained: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: What it shows.
        value: What it is sorted by, as JavaScript reads a number; None: by its text.
    """

    text: str | Markup
    value: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with its title.

    Attributes:
        title: Its heading.
        anchor: Its identifier on the page.
        columns: The heads.
        rows: The cells; the first of each row names it.
        note: What to know before reading it.
        sortable: Whether a click on a head sorts it.
        wraps: Whether its cells hold sentences.
    """

    title: str
    anchor: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    sortable: bool = True
    wraps: bool = False


# Sorted behind all numbers, as NaN is.
NOT_MEASURED = Cell("\N{EN DASH}", "NaN")


def words(text: object) -> Cell:
    """A cell of text."""
    return Cell(one_line(str(text)) if str(text) else "")


def called(text: object) -> Cell:
    """A cell with a name from the user's model or logs; the middle of a very long one is left out."""
    return Cell(short(str(text), _LONGEST))


def value(number: object) -> Cell:
    """A cell with a number; empty where nothing was measured.

    Example:
        >>> value(0.25), value(float("inf")), value(None)
        (Cell(text='0.25', value='0.25'), Cell(text='∞', value='Infinity'), Cell(text='', value=None))
    """
    if number is None or number is pd.NA:
        return Cell("")
    real = float(number)  # type: ignore[arg-type]
    return Cell(cell(real), f"{real:.6g}".replace("inf", "Infinity"))


def whole(number: int) -> Cell:
    """A cell with a whole number, all digits shown."""
    return Cell(str(number), str(number))


def pairs(title: str, anchor: str, heads: tuple[str, str], entries: Mapping[str, object]) -> Table:
    """A table of names and what they stand for."""
    rows = tuple((words(name), words(entry)) for name, entry in entries.items())
    return Table(title, anchor, tuple(Column(head) for head in heads), rows, sortable=False, wraps=True)


_LABELS = {"changed_fraction_005": "changed > 5 %", "changed_fraction_050": "changed > 50 %"}
_DASH = "A dash: not measured, or not defined for it."
_APART = ("attention", "quantiles")  # shown with the gradients; too many for a table
_OF_OUTPUTS = tuple(q.name for q in columns("layers") if "gradient" not in q.name and q.group not in _APART)
_OF_GRADIENTS = tuple(q.name for q in columns("layers") if "gradient" in q.name or q.group == "attention")
_OF_PARAMETERS = tuple(q.name for q in columns("parameters") if q.group not in _APART)


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

    table: Literal["layers", "parameters"]
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
            found.append(_Latest(table, name, step, step == steps[-1], values))
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
    label = _LABELS.get(column.name) or run.quantity(column.table, column.name).label
    return Column(label if column.is_last else f"{label} (step {column.step})", True, column.name)


def _values(latest: Sequence[_Latest], name: str) -> tuple[Cell, ...]:
    return tuple(value(column.values[name]) if name in column.values else NOT_MEASURED for column in latest)


def settings_tables(run: Run, anchor: str) -> tuple[Table, ...]:
    """All of them, those with anything in them."""
    tables = [
        pairs("The run", f"{anchor}-run", ("", ""), _about(run)),
        *_optimizers(run, anchor),
        pairs("Cadence", f"{anchor}-cadence", ("", ""), _cadence(run.meta.get("cadence") or {})),
        _notes(run, f"{anchor}-notes"),
        pairs("Versions", f"{anchor}-versions", ("", ""), run.meta.get("versions") or {}),
        _catalogue(run, f"{anchor}-catalogue"),
    ]
    return tuple(table for table in tables if table.rows)


def _about(run: Run) -> dict[str, object]:
    meta = run.meta
    known = {
        "name": run.name,
        "folder": run.folder.name,
        "status": f"{run.status}: {meta['error']}" if meta.get("error") else run.status,
        "created": meta.get("created"),
        "ended": meta.get("ended"),
        "resumed at steps": ", ".join(map(str, meta.get("resumed_at") or [])),
        "model": meta.get("model"),
        "device": meta.get("device"),
        "number format": meta.get("dtype"),
        "order of the layers": meta["structure"].get("order"),
        "logged": ", ".join(run.logged),
        "schema": meta.get("schema"),
    }
    return {name: entry for name, entry in known.items() if entry not in (None, "")}


def _optimizers(run: Run, anchor: str) -> Iterator[Table]:
    for place, optimizer in enumerate(run.meta.get("optimizers") or []):
        groups = optimizer.get("groups") or []
        settings = list(dict.fromkeys(key for group in groups for key in group if key != "parameters"))
        heads = (Column("setting"), *(Column(f"group {number}") for number in range(len(groups))))
        rows = [tuple(words(cell) for cell in (key, *(group.get(key, "") for group in groups))) for key in settings]
        counts = (len(group.get("parameters") or []) for group in groups)
        rows.append((words("parameter tensors"), *(words(count) for count in counts)))
        start = optimizer.get("from_step")
        title = f"Optimizer: {short(str(optimizer.get('class')))}" + (f" from step {start} on" if start else "")
        yield Table(title, f"{anchor}-optimizer-{place}", heads, tuple(rows), sortable=False)


def _cadence(cadence: Mapping[str, Any]) -> dict[str, object]:
    known: dict[str, object] = {}
    if "every" in cadence:
        known["sampled steps"] = {"1": "every step", "log": "dense early, sparse later"}.get(
            str(cadence["every"]), f"every {cadence['every']}"
        )
    if cadence.get("budget"):
        known["budget"] = f"at most {cadence['budget']:.1%} of the training time"
    if "metrics" in cadence:
        known["metrics"] = cadence["metrics"]
    for group, multiple in (cadence.get("groups") or {}).items():
        known[group] = "each sampled step" if multiple == 1 else f"one of {multiple} sampled steps"
    return known


def _notes(run: Run, anchor: str) -> Table:
    rows = tuple((words(str(place)), words(note)) for place, note in enumerate(run.meta.get("notes") or [], start=1))
    title = "Notes"
    return Table(title, anchor, (Column("#"), Column("note")), rows, sortable=False, wraps=True)


def _catalogue(run: Run, anchor: str) -> Table:
    heads = ("quantity", "column", "unit", "equation", "high", "low", "paper")
    rows = tuple(_entry(entry) for entry in run.meta.get("quantities") or [])
    note = (
        "Every recorded quantity, as the tables of the run hold it. X is a layer's output, W (or w) a parameter, "
        "L the loss, η the learning rate, λ the weight decay. A unit says how the number scales with them: L/W, for "
        "example, doubles with the loss and halves where the parameter doubles; no unit: it does not scale."
    )
    return Table("Catalogue of quantities", anchor, tuple(map(Column, heads)), rows, note, wraps=True)


def _entry(quantity: Mapping[str, Any]) -> tuple[Cell, ...]:
    known = {key: str(quantity.get(key) or "") for key in ("unit", "equation", "high", "low", "paper")}
    name, table = str(quantity.get("name") or ""), str(quantity.get("table") or "")
    return (
        words(quantity.get("label") or name),
        words(f"{table}.{name}" if table else name),
        words(known["unit"]),
        Cell(equation(known["equation"])),
        *(words(known[key]) for key in ("high", "low", "paper")),
    )
