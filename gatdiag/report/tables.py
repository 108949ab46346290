"""The tables of a page: layers, parameters and laws with their last recorded values, settings, catalogue."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from markupsafe import Markup

from gatdiag.diagnosis.wording import TIMES, number
from gatdiag.names import one_line, short
from gatdiag.quantities import THRESHOLDS, gradient_name
from gatdiag.report.equations import equation
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import has_zero_norm, last_values, role_series

Cell: TypeAlias = str | Markup | float | None  # None: a number that was not measured

_LONGEST = 80  # characters of a name
_LABELS = {"changed_fraction_005": "changed > 5 %", "changed_fraction_050": "changed > 50 %"}
# What is shown, as wide as a screen of 1280 pixels: a new column of the catalogue is shown once it stands here.
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
        title: Its heading.
        anchor: Its identifier on the page.
        rows: The cells; the first of each row names it.
        columns: What the heads say; none: no heads.
        note: What to know before reading it.
        sortable: A click on a head sorts it.
        wraps: Its cells hold sentences.
        explained: Head -> a longer text.
    """

    title: str
    anchor: str
    rows: Sequence[Sequence[Cell]]
    columns: Sequence[str] = ()
    note: str = ""
    sortable: bool = True
    wraps: bool = False
    explained: Mapping[str, str] = field(default_factory=dict)

    def is_numeric(self, column: int) -> bool:
        """It holds numbers, not texts."""
        return any(isinstance(row[column], float | int | None) for row in self.rows)


def cell_text(cell: Cell) -> str:
    """Text of a cell."""
    if cell is None:
        return "\N{EN DASH}"
    if isinstance(cell, str):
        return cell if isinstance(cell, Markup) or not cell else one_line(cell)
    return number(cell)


def sort_key(cell: float | None) -> str:
    """A number as JavaScript reads it, to sort by; what is none comes behind all others."""
    return "NaN" if cell is None else f"{cell:.6g}".replace("inf", "Infinity").replace("nan", "NaN")


def run_tables(run: Run, anchor: str) -> list[Table]:
    """Layers, gradients, parameters and laws, with their last recorded values; those with anything in them."""
    tables = [
        layer_table(run, f"{anchor}-layers"),
        gradient_table(run, f"{anchor}-gradients"),
        parameter_table(run, f"{anchor}-parameters"),
        *law_tables(run, f"{anchor}-laws"),
    ]
    return [table for table in tables if table.rows]


def layer_table(run: Run, anchor: str) -> Table:
    """One row a layer, in order."""
    layers = run.meta["structure"]["layers"]
    gradients = last_values(role_series(run, "relative_gradient_norm", FEATURE))
    executed = any(layer.get("executed") is not None for layer in layers)
    known: dict[str, list[Cell]] = {}
    for place, layer in enumerate(layers, start=1):
        was_run = [{True: "yes", False: "no"}.get(layer.get("executed"), "unknown")] * executed
        known[layer["name"]] = [layer.get("index", place), _called(layer.get("kind", "")), *was_run]
    last = [_Latest("of the feature weights", "rel. gradient norm", gradients)] * bool(gradients)
    last += _last_recorded(run, "layers", _OF_OUTPUTS)
    heads = ["layer", "#", "kind", *["executed"] * executed]
    return _measured("Layers", anchor, heads, known, last, "each layer's output")


def gradient_table(run: Run, anchor: str) -> Table:
    """One row a layer: the gradient that comes back to its output, and its attention. Without rows if not recorded."""
    last = _last_recorded(run, "layers", _OF_GRADIENTS)
    known = {name: list[Cell]() for name in run.layer_names if last}
    title = "Gradients and attention of the layers"
    return _measured(title, anchor, ["layer"], known, last, "the loss's gradient of each layer's output, and attention")


def parameter_table(run: Run, anchor: str) -> Table:
    """One row a parameter, in order."""
    known: dict[str, list[Cell]] = {}
    for layer in run.meta["structure"]["layers"]:
        for info in layer["parameters"]:
            role = info["role"] + " (frozen)" * (not info.get("trainable", True))
            shape = f" {TIMES} ".join(map(str, info["shape"]))
            known[info["name"]] = [_called(layer["name"]), role, shape, math.prod(info["shape"])]
    heads = ["parameter", "layer", "role", "shape", "entries"]
    last = _last_recorded(run, "parameters", _OF_PARAMETERS)
    return _measured("Parameters", anchor, heads, known, last, "each parameter")


def _measured(
    title: str,
    anchor: str,
    heads: Sequence[str],
    known: Mapping[str, list[Cell]],
    last: Sequence["_Latest"],
    of: str,
) -> Table:
    """A row for each name: what is known of it, then the columns as they were last recorded."""
    return Table(
        title,
        anchor,
        [[_called(name), *cells, *(column.values.get(name) for column in last)] for name, cells in known.items()],
        [*heads, *(column.label for column in last)],
        f"Last recorded values of {of}. A dash: not measured, or not defined for it.",
        explained={"#": "place of the layer", **{column.label: column.name for column in last}},
    )


def law_tables(run: Run, anchor: str) -> Iterator[Table]:
    """The laws layer by layer; what has no law, and why. None if laws were not looked for."""
    laws = run.meta["laws"]
    if laws["found"]:
        yield _laws_by_layer(run, anchor)
    if laws["excluded"]:
        rows = [[item["what"], item["reason"]] for item in laws["excluded"]]
        note = "No law is claimed for these parts of the model."
        heads = ["part of the model", "reason"]
        yield Table("What has no conservation law", f"{anchor}-excluded", rows, heads, note, wraps=True)


def _laws_by_layer(run: Run, anchor: str) -> Table:
    steps = run.neurons["step"].to_numpy()
    last = run.neurons.iloc[steps.searchsorted(steps[-1]) :] if len(steps) else run.neurons
    rows: list[list[Cell]] = []
    for layer, laws in run.laws.table.groupby("layer", sort=False, dropna=False):
        own, residual = last[last["layer"] == layer], laws["residual"].max()
        c, delta = own["c"].abs(), own["delta"].abs()
        values = [float(c.max()), float(c.mean()), float(delta.max())] if len(own) else [None] * 3
        counts: list[Cell] = [", ".join(laws["kind"].unique()), len(laws), int((~laws["exact"]).sum())]
        rows.append([_called(layer), *counts, None if math.isnan(residual) else float(residual), *values])
    heads = ["layer", "kind", "laws", "approximate", "largest residual", "largest |c|", "mean |c|", "largest |delta|"]
    note = "c is conserved by gradient flow; delta is zero where the law holds. Values of the last recorded step."
    return Table("Conservation laws", anchor, rows, heads, note)


@dataclass(frozen=True)
class _Latest:
    """A column at the last step at which it was measured anywhere."""

    name: str
    label: str
    values: Mapping[str, float]


def _last_recorded(run: Run, table: Literal["layers", "parameters"], names: Sequence[str]) -> list[_Latest]:
    """The columns that hold anything, each at its own last step: some are measured at a coarser cadence."""
    found = []
    frame, by = (run.layers, "layer") if table == "layers" else (run.parameters, "parameter")
    steps = frame["step"].to_numpy()
    for name in names:
        numbers = np.flatnonzero(frame[name].notna())
        if len(numbers):
            step = steps[numbers[-1]]
            known = (steps == step) & run.is_measured(table, name)
            if table == "layers":  # 0 / 0 is not defined
                known[np.flatnonzero(run.is_measured(table, name))[has_zero_norm(run, name)]] = False
            rows = frame[known]
            label = _LABELS.get(name) or run.quantity(table, name).label
            label += f" (step {step})" * bool(step != steps[-1])
            found.append(_Latest(name, label, dict(zip(rows[by].astype(str), map(float, rows[name]), strict=True))))
    return found


def settings_tables(run: Run, anchor: str) -> list[Table]:
    """All of them, those with anything in them."""
    notes = [[str(place), note] for place, note in enumerate(run.meta["notes"], start=1)]
    tables = [
        _pairs("The run", f"{anchor}-run", _about(run)),
        *_optimizers(run, anchor),
        _pairs("Cadence", f"{anchor}-cadence", _cadence(run.meta["cadence"])),
        Table("Notes", f"{anchor}-notes", notes, ["#", "note"], sortable=False, wraps=True),
        _pairs("Versions", f"{anchor}-versions", run.meta["versions"]),
        _catalogue(run, f"{anchor}-catalogue"),
    ]
    return [table for table in tables if table.rows]


def _pairs(title: str, anchor: str, entries: Mapping[str, object]) -> Table:
    return Table(title, anchor, [[name, str(entry)] for name, entry in entries.items()], sortable=False, wraps=True)


def _about(run: Run) -> dict[str, object]:
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
        "number format": meta["dtype"],
        "order of the layers": meta["structure"].get("order"),
        "logged": ", ".join(run.logged),
        "schema": meta["schema"],
    }
    return {name: entry for name, entry in known.items() if entry not in (None, "")}


def _optimizers(run: Run, anchor: str) -> Iterator[Table]:
    for place, optimizer in enumerate(run.meta["optimizers"]):
        groups = optimizer["groups"]
        settings = list(dict.fromkeys(key for group in groups for key in group if key != "parameters"))
        rows = [[str(key), *(str(group.get(key, "")) for group in groups)] for key in settings]
        rows.append(["parameter tensors", *(str(len(group.get("parameters") or [])) for group in groups)])
        heads = ["setting", *(f"group {number}" for number in range(len(groups)))]
        since = f" from step {optimizer['from_step']} on" if optimizer.get("from_step") else ""
        title = f"Optimizer: {short(str(optimizer['class']))}{since}"
        yield Table(title, f"{anchor}-optimizer-{place}", rows, heads, sortable=False)


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


def _catalogue(run: Run, anchor: str) -> Table:
    known = [run.quantity(entry.get("table"), entry["name"]) for entry in run.meta["quantities"]]
    rows = [
        [q.label, ".".join(filter(None, (q.table, q.name))), q.unit, equation(q.equation), q.high, q.low, q.paper]
        for q in known
    ]
    note = (
        "Every recorded quantity, as the tables of the run hold it. X is a layer's output, W (or w) a parameter, "
        "L the loss, η the learning rate, λ the weight decay. A unit says how the number scales with them: L/W, for "
        "example, doubles with the loss and halves where the parameter doubles; no unit: it does not scale."
    )
    heads = ["quantity", "column", "unit", "equation", "high", "low", "paper"]
    return Table("Catalogue of quantities", anchor, rows, heads, note, wraps=True)


def _called(name: object) -> str:
    """A name from the user's model or logs; the middle of a very long one is left out."""
    return short(str(name), _LONGEST)
