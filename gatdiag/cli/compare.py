"""`gatdiag compare`: two runs, or two checkpoints, side by side, what differs most first.

The JSON document has these keys; numbers that are not finite are null:

- ``version``: 1, the version of this description
- ``first``, ``second``: what was compared
- ``settings``: for each setting that differs ``what``, ``first``, ``second``
- ``differences``: for each ``layer``, ``role``, ``quantity``, ``first``, ``second``, ``difference``, from 0 to 1
- ``notes``: texts
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gatdiag.checkpoint import change
from gatdiag.checkpoint.inspection import Inspection, inspect
from gatdiag.cli.printing import print_document
from gatdiag.errors import InputError
from gatdiag.names import listed, printable, quoted
from gatdiag.run import Run, load
from gatdiag.run.layout import META
from gatdiag.summary import differences, only_in, outcomes

_VERSIONS: Final = "versions"
_LISTED: Final = 6  # layers in a note
_ALIKE: Final = 3  # layers that show the same quantity, unless all are asked for


@dataclass(frozen=True)
class _Side:
    """One of the two.

    Attributes:
        name: As it was given.
        run: The run, or the one made of a checkpoint.
        inspection: What a checkpoint says; None of a run.
    """

    name: str
    run: Run
    inspection: Inspection | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        return () if self.inspection is None else self.inspection.notes


def print_comparison(first: Path, second: Path, *, most: int, as_json: bool) -> None:
    """Compare and print.

    Args:
        first: Folder of a run, or a checkpoint.
        second: The other; of two checkpoints, changes are measured from the first.
        most: How many differences the table shows; 0 for all.
        as_json: Print one JSON document instead.

    Raises:
        InputError: One of them cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        one, other = _side(first, Path(scratch) / "first"), _side(second, Path(scratch) / "second")
        table = differences(one.run, other.run, "last" if one.inspection or other.inspection else "median")
        if one.inspection and other.inspection:
            table = _with_changes(table, one.inspection, other.inspection)
        results = outcomes(one.run, other.run)
        settings = list(_settings(one.run.meta, other.run.meta))
        notes = [*dict.fromkeys([*one.notes, *other.notes, *_missing(one, other)])]
    if as_json:
        print_document(
            {
                "version": 1,
                "first": one.name,
                "second": other.name,
                "outcomes": results.to_dict("records"),
                "settings": settings,
                "differences": table.to_dict("records"),
                "notes": notes,
            }
        )
    else:
        _print(one, other, results, table, settings, notes, most)


def _side(path: Path, scratch: Path) -> _Side:
    if not path.exists():
        raise InputError(f"Expected a run or a checkpoint, but {str(path)!r} does not exist")
    if path.is_dir() and (path / META).exists():
        return _Side(str(path), load(path))
    inspection = inspect(path, scratch)
    return _Side(str(path), inspection.run, inspection)


def _with_changes(table: pd.DataFrame, one: Inspection, other: Inspection) -> pd.DataFrame:
    """How much of each parameter changed between two checkpoints; where nothing did, that is no difference."""
    infos = other.structure.parameters
    changes = change.compare(one.tensors, other.tensors, infos).columns
    rows = [
        {
            "layer": info.name,
            "role": info.role,
            "quantity": "changed_fraction_005",
            "first": 0.0,
            "second": changes[info.name]["changed_fraction_005"],
            "difference": changes[info.name]["changed_fraction_005"],
        }
        for info in infos
        if info.name in changes and not math.isnan(changes[info.name]["changed_fraction_005"])
    ]
    table = table[~table["quantity"].str.contains("changed_fraction")]
    table = pd.concat([pd.DataFrame(rows), table]) if rows else table
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _missing(one: _Side, other: _Side) -> Iterator[str]:
    for side, names in zip((one, other), only_in(one.run, other.run), strict=True):
        if names:
            yield f"only {side.name} has the layers {listed(map(quoted, names), _LISTED)}"


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """What the two runs say of themselves, where it differs: model, optimizers, versions."""
    a, b = _flat(one), _flat(other)
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield {"what": name, "first": a.get(name, ""), "second": b.get(name, "")}


def _flat(meta: Mapping[str, Any]) -> dict[str, str]:
    found = {name: meta.get(name) for name in ("model", "device", "dtype", "status", "error")}
    for number, optimizer in enumerate(meta["optimizers"]):
        found[f"optimizer {number}"] = optimizer["class"]
        for at, group in enumerate(optimizer["groups"]):
            found |= {f"optimizer {number}, group {at}: {k}": v for k, v in group.items() if k != "parameters"}
    found |= {f"{_VERSIONS}: {name}": version for name, version in meta[_VERSIONS].items()}
    return {name: str(value) for name, value in found.items() if value is not None}


def _print(
    one: _Side,
    other: _Side,
    results: pd.DataFrame,
    table: pd.DataFrame,
    settings: Sequence[Mapping[str, str]],
    notes: Sequence[str],
    most: int,
) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(printable(f"A: {one.name}"), soft_wrap=True)
    console.print(printable(f"B: {other.name}"), soft_wrap=True)
    if not (one.inspection and other.inspection):
        console.print(_columns(results))
    for setting in settings:
        console.print(printable(f"{setting['what']}: {setting['first'] or 'none'} | {setting['second'] or 'none'}"))
    differing = table[(table["difference"] > 0) & (table["layer"] != "")]
    varied = differing[differing.groupby(["role", "quantity"]).cumcount() < _ALIKE]
    shown = differing if most == 0 else varied.head(most)
    if len(shown):
        console.print(_grid(shown))
    else:
        console.print("No measured quantity differs." if any(table["layer"]) else "They have no layer in common.")
    left = len(differing) - len(shown)
    if left:
        console.print(
            f"{left} smaller differences are not shown, nor more than {_ALIKE} layers of a kind; --most 0 shows all"
        )
    for note in notes:
        console.print(printable(f"note: {note}"))


def _columns(results: pd.DataFrame) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("training", overflow="fold")
    for heading in ("A", "B"):
        grid.add_column(heading, justify="right")
    for row in results.to_dict("records"):
        numbers = ("" if math.isnan(row[side]) else format(row[side], ".4g") for side in ("first", "second"))
        grid.add_row(printable(str(row["what"])), *numbers)
    return grid


def _grid(table: pd.DataFrame) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("where", "what", "quantity"):
        grid.add_column(heading, overflow="fold")
    for heading in ("A", "B", "difference"):
        grid.add_column(heading, justify="right")
    for row in table.to_dict("records"):
        numbers = (format(row["first"], ".3g"), format(row["second"], ".3g"), format(row["difference"], ".0%"))
        names = (row["layer"], row["role"], row["quantity"])
        grid.add_row(*(printable(str(name)) for name in names), *numbers)
    return grid
