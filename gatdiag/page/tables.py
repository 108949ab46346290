"""The tables of a page: layers, parameters and laws with their last recorded values; settings; recorded quantities."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from gatdiag.diagnosis.wording import TIMES, number
from gatdiag.names import one_line, short
from gatdiag.quantities import THRESHOLDS, gradient_name
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import has_zero_norm, last_values, role_series

Cell: TypeAlias = str | float | None  # None: not measured

_LONGEST = 80  # characters of a name
_LABELS = {"changed_fraction_005": "changed > 5%", "changed_fraction_050": "changed > 50%"}
# The columns shown, which fit a screen of 1280 pixels. A new column of the catalog is shown once it is listed here; the
# table of layers is full, so that one of their outputs takes the place of another.
_OUTPUTS = ("output_norm", "mu", "relative_mu", "dead_fraction", "non_finite")
_ATTENTION = ("attention_entropy", "relative_attention_entropy", "attention_peak")
_COARSE = ("dirichlet_energy", "rayleigh_quotient", "mad", "effective_rank", "numerical_rank")
_OF_OUTPUTS = (*_OUTPUTS, *_COARSE)
_OF_GRADIENTS = (*map(gradient_name, _OUTPUTS), *_ATTENTION, *map(gradient_name, _COARSE))
_OF_PARAMETERS = (
    "norm", "gradient_norm", "relative_gradient_norm", "update_ratio", "unchanged_fraction", *THRESHOLDS, "non_finite",
    "gradient_non_finite", "spectral_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with its title.

    Attributes:
        title: Heading.
        anchor: HTML id.
        rows: The cells; the first of each row is its header.
        columns: The column labels; if empty, there is no header row.
        note: Text above the table.
        sortable: Whether a click on a column label sorts it.
        wraps: Whether cells contain sentences, which wrap.
        tooltips: Column label -> tooltip.
    """

    title: str
    anchor: str
    rows: Sequence[Sequence[Cell]]
    columns: Sequence[str] = ()
    note: str = ""
    sortable: bool = True
    wraps: bool = False
    tooltips: Mapping[str, str] = field(default_factory=dict)

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(row[column], float | int | None) for row in self.rows)


def cell_text(cell: Cell) -> str:
    """The text of a cell."""
    if cell is None:
        return "\N{EN DASH}"
    if isinstance(cell, str):
        return one_line(cell) if cell else ""
    return number(cell)


def run_tables(run: Run, anchor: str) -> list[Table]:
    """The non-empty tables of layers, gradients, parameters and laws, with their last recorded values."""
    tables = [
        layer_table(run, f"{anchor}-layers"),
        gradient_table(run, f"{anchor}-gradients"),
        parameter_table(run, f"{anchor}-parameters"),
        *law_tables(run, f"{anchor}-laws"),
    ]
    return [table for table in tables if table.rows]


def layer_table(run: Run, anchor: str) -> Table:
    """One row per layer, in order."""
    layers = run.meta["structure"]["layers"]
    gradients = last_values(role_series(run, "relative_gradient_norm", FEATURE))
    executed = any(layer.get("executed") is not None for layer in layers)
    known: dict[str, list[Cell]] = {}
    for place, layer in enumerate(layers, start=1):
        was_run = [{True: "yes", False: "no"}.get(layer.get("executed"), "unknown")] * executed
        known[layer["name"]] = [layer.get("index", place), _name_cell(layer.get("kind", "")), *was_run]
    last = [_Latest("of the feature weights", "rel. gradient norm", gradients)] * bool(gradients)
    last += _last_recorded(run, "layers", _OF_OUTPUTS)
    columns = ["layer", "#", "kind", *["executed"] * executed]
    return _table_of_values("Layers", anchor, columns, known, last, "each layer's output")


def gradient_table(run: Run, anchor: str) -> Table:
    """One row per layer: the gradient of its output, and its attention. No rows if neither was recorded."""
    last = _last_recorded(run, "layers", _OF_GRADIENTS)
    known = {name: list[Cell]() for name in run.layer_names if last}
    title = "Gradients and attention by layer"
    of = "the gradient of the loss with respect to each layer's output, and of attention"
    return _table_of_values(title, anchor, ["layer"], known, last, of)


def parameter_table(run: Run, anchor: str) -> Table:
    """One row per parameter, in order."""
    known: dict[str, list[Cell]] = {}
    for layer in run.meta["structure"]["layers"]:
        for info in layer["parameters"]:
            role = info["role"] + " (frozen)" * (not info.get("trainable", True))
            shape = f" {TIMES} ".join(map(str, info["shape"]))
            known[info["name"]] = [_name_cell(layer["name"]), role, shape, math.prod(info["shape"])]
    columns = ["parameter", "layer", "role", "shape", "entries"]
    last = _last_recorded(run, "parameters", _OF_PARAMETERS)
    return _table_of_values("Parameters", anchor, columns, known, last, "each parameter")


def _table_of_values(
    title: str,
    anchor: str,
    columns: Sequence[str],
    known: Mapping[str, list[Cell]],
    last: Sequence["_Latest"],
    of: str,
) -> Table:
    """One row per name: the known cells, then the last recorded values."""
    return Table(
        title,
        anchor,
        [[_name_cell(name), *cells, *(column.values.get(name) for column in last)] for name, cells in known.items()],
        [*columns, *(column.label for column in last)],
        f"Last recorded values of {of}. A dash means not measured or undefined.",
        tooltips={"#": "position of the layer", **{column.label: column.name for column in last}},
    )


def law_tables(run: Run, anchor: str) -> Iterator[Table]:
    """The laws by layer, and the parts of the model that have none, with reasons. No tables if there are neither."""
    laws = run.meta["laws"]
    if laws["found"]:
        yield _law_table(run, anchor)
    if laws["excluded"]:
        rows = [[item["what"], item["reason"]] for item in laws["excluded"]]
        columns = ["part of the model", "reason"]
        yield Table("Parts without a conservation law", f"{anchor}-excluded", rows, columns, wraps=True)


def _law_table(run: Run, anchor: str) -> Table:
    steps = run.neurons["step"].to_numpy()
    last = run.neurons.iloc[steps.searchsorted(steps[-1]) :] if len(steps) else run.neurons
    sizes = last[["c", "delta"]].abs().groupby(last["layer"], observed=True)
    by_layer = sizes.agg(largest_c=("c", "max"), mean_c=("c", "mean"), largest_delta=("delta", "max"))
    known = {layer: values for layer, *values in by_layer.itertuples(name=None)}
    rows: list[list[Cell]] = []
    for layer, laws in run.laws.table.groupby("layer", sort=False, dropna=False):
        residual, values = laws["residual"].max(), known.get(layer, [None] * 3)
        counts: list[Cell] = [", ".join(laws["kind"].unique()), len(laws), int((~laws["exact"]).sum())]
        rows.append([_name_cell(layer), *counts, None if math.isnan(residual) else float(residual), *values])
    columns = ["layer", "kind", "laws", "approximate", "largest residual", "largest |c|", "mean |c|", "largest |delta|"]
    note = "c is conserved by gradient flow; delta is zero if the law holds. Values of the last recorded step."
    return Table("Conservation laws", anchor, rows, columns, note)


@dataclass(frozen=True)
class _Latest:
    """A column at the last step at which any of its values was measured."""

    name: str
    label: str
    values: Mapping[str, float]


def _last_recorded(run: Run, table: Literal["layers", "parameters"], names: Sequence[str]) -> list[_Latest]:
    """The columns that are not empty, each at its own last step: some are measured less often."""
    found = []
    frame, by = (run.layers, "layer") if table == "layers" else (run.parameters, "parameter")
    steps = frame["step"].to_numpy()
    for name in names:
        numbers = np.flatnonzero(frame[name].notna())
        if len(numbers):
            step = steps[numbers[-1]]
            known = (steps == step) & run.is_measured(table, name)
            if table == "layers":  # 0 / 0
                known[np.flatnonzero(run.is_measured(table, name))[has_zero_norm(run, name)]] = False
            rows = frame[known]
            label = _LABELS.get(name) or run.quantity(table, name).label
            label += f" (step {step})" * bool(step != steps[-1])
            found.append(_Latest(name, label, dict(zip(rows[by].astype(str), map(float, rows[name]), strict=True))))
    return found


def settings_tables(run: Run, anchor: str) -> list[Table]:
    """The non-empty tables of settings, notes and versions."""
    notes = [[str(place), note] for place, note in enumerate(run.meta["notes"], start=1)]
    tables = [
        _table_of_pairs("The run", f"{anchor}-run", _run_facts(run)),
        *_optimizers(run, anchor),
        _table_of_pairs("Recording schedule", f"{anchor}-schedule", _schedule(run.meta["cadence"])),
        Table("Notes", f"{anchor}-notes", notes, ["#", "note"], sortable=False, wraps=True),
        _table_of_pairs("Versions", f"{anchor}-versions", run.meta["versions"]),
    ]
    return [table for table in tables if table.rows]


def _table_of_pairs(title: str, anchor: str, entries: Mapping[str, object]) -> Table:
    return Table(title, anchor, [[name, str(entry)] for name, entry in entries.items()], sortable=False, wraps=True)


def _run_facts(run: Run) -> dict[str, object]:
    meta = run.meta
    known = {
        "name": run.name,
        "folder": run.folder.name,
        "status": f"{run.status}: {meta['error']}" if meta["error"] else run.status,
        "created": meta["created"],
        "ended": meta["ended"],
        "resumed at steps": ", ".join(map(str, meta["resumed_at"])),
        "model": meta["model"],
        "device": meta["device"],
        "dtype": meta["dtype"],
        "layer order": meta["structure"].get("order"),
        "logged": ", ".join(run.logged_names),
        "schema version": meta["schema"],
    }
    return {name: entry for name, entry in known.items() if entry not in (None, "")}


def _optimizers(run: Run, anchor: str) -> Iterator[Table]:
    for place, optimizer in enumerate(run.meta["optimizers"]):
        groups = optimizer["groups"]
        settings = list(dict.fromkeys(key for group in groups for key in group if key != "parameters"))
        rows = [[str(key), *(str(group.get(key, "")) for group in groups)] for key in settings]
        rows.append(["parameter tensors", *(str(len(group.get("parameters") or [])) for group in groups)])
        columns = ["setting", *(f"group {number}" for number in range(len(groups)))]
        since = f" from step {optimizer['from_step']} on" if optimizer.get("from_step") else ""
        title = f"Optimizer: {short(str(optimizer['class']))}{since}"
        yield Table(title, f"{anchor}-optimizer-{place}", rows, columns, sortable=False)


def _schedule(cadence: Mapping[str, Any]) -> dict[str, object]:
    known: dict[str, object] = {}
    if "every" in cadence:
        known["recorded steps"] = {"1": "every step", "log": "dense early, sparse later"}.get(
            str(cadence["every"]), f"every {cadence['every']}"
        )
    if cadence.get("budget"):
        known["budget"] = f"at most {cadence['budget']:.1%} of the training time"
    if "metrics" in cadence:
        known["metrics"] = cadence["metrics"]
    for group, multiple in (cadence.get("groups") or {}).items():
        known[group] = "every recorded step" if multiple == 1 else f"1 in {multiple} recorded steps"
    return known


def table_of_quantities(runs: Sequence[Run], anchor: str) -> Table | None:
    """What the columns of the runs' tables are; None if nothing was recorded."""
    every = {(each.get("table"), each["name"]): run for run in runs for each in run.meta["quantities"]}
    known = [run.quantity(*column) for column, run in every.items()]
    if not known:
        return None
    rows = [
        [q.label, ".".join(filter(None, (q.table, q.name))), q.unit, q.equation, q.high, q.low, q.paper] for q in known
    ]
    note = (
        "The columns of the run's tables. X is a layer's output, W (or w) a parameter, L the loss, ∇W (or ∇X) its "
        "gradient, η the learning rate, λ the weight decay. The unit shows how a value scales with them: one in L/W "
        "doubles if the loss doubles and halves if the parameter doubles; one without a unit does not change."
    )
    columns = ["quantity", "column", "unit", "equation", "high", "low", "paper"]
    return Table("What the columns are", anchor, rows, columns, note, wraps=True)


def _name_cell(name: object) -> str:
    """A name from the user's model or logs, elided if very long."""
    return short(str(name), _LONGEST)
