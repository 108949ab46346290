"""The tables of how it was recorded: optimizers, cadence, versions, notes, and the catalogue of quantities."""

from collections.abc import Iterator, Mapping
from typing import Any

from gatdiag.report.equations import equation
from gatdiag.report.tables import Cell, Column, Table, pairs, words
from gatdiag.report.wording import short
from gatdiag.run import Run


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
    title = "What recording could not do"
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
