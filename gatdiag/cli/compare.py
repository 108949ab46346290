"""`gatdiag compare`: two runs, or two checkpoints, side by side, what differs most first.

The JSON document has these keys; numbers that are not finite are null:

- ``version``: 1, the version of this description
- ``first``, ``second``: what was compared
- ``settings``: for each setting that differs ``what``, ``first``, ``second``
- ``differences``: for each ``layer``, ``role``, ``quantity``, ``first``, ``second``, ``difference``, from 0 to 1
- ``notes``: texts
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gatdiag.checkpoint.inspection import inspect
from gatdiag.cli.printing import print_document, printable
from gatdiag.run import Run, load
from gatdiag.run.layout import META
from gatdiag.summary import differences, only_in

_VERSIONS: Final = "versions"


@dataclass(frozen=True)
class _Side:
    """One of the two.

    Attributes:
        name: As it was given.
        run: The run, or the one made of a checkpoint.
        is_checkpoint: Whether it is one.
        notes: What a reader should know.
    """

    name: str
    run: Run
    is_checkpoint: bool
    notes: tuple[str, ...] = ()


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
        one = _side(first, Path(scratch) / "first", None)
        other = _side(second, Path(scratch) / "second", first if one.is_checkpoint else None)
        table = differences(one.run, other.run, "last" if one.is_checkpoint or other.is_checkpoint else "median")
        if one.is_checkpoint and other.is_checkpoint:
            table = _with_changes(table, other.run)
        settings = list(_settings(one.run.meta, other.run.meta))
        notes = [*dict.fromkeys([*one.notes, *other.notes, *_missing(one, other)])]
    if as_json:
        print_document(
            {
                "version": 1,
                "first": one.name,
                "second": other.name,
                "settings": settings,
                "differences": table.to_dict("records"),
                "notes": notes,
            }
        )
    else:
        _print(one, other, table, settings, notes, most)


def _side(path: Path, scratch: Path, reference: Path | None) -> _Side:
    if path.is_dir() and (path / META).exists():
        return _Side(str(path), load(path), is_checkpoint=False)
    inspection = inspect(path, scratch, reference=reference)
    return _Side(str(path), inspection.run, is_checkpoint=True, notes=inspection.notes)


def _with_changes(table: pd.DataFrame, second: Run) -> pd.DataFrame:
    """How much of each parameter changed between two checkpoints; where nothing did, that is no difference."""
    columns = ["changed_fraction_005", "unchanged_fraction"]
    changes = second.parameters[["parameter", "role", *columns]].dropna(subset=columns)
    rows = pd.DataFrame(
        {
            "layer": changes["parameter"].astype(str),
            "role": changes["role"].astype(str),
            "quantity": "changed_fraction_005",
            "first": 0.0,
            "second": changes["changed_fraction_005"],
            "difference": changes["changed_fraction_005"],
        }
    )
    table = table[~table["quantity"].str.contains("changed_fraction")]
    return pd.concat([rows, table]).sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _missing(one: _Side, other: _Side) -> Iterator[str]:
    for side, names in zip((one, other), only_in(one.run, other.run), strict=True):
        if names:
            yield f"only {side.name} has the layers {', '.join(names)}"


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """What the two runs say of themselves, where it differs: model, optimisers, versions."""
    a, b = _flat(one), _flat(other)
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield {"what": name, "first": a.get(name, ""), "second": b.get(name, "")}


def _flat(meta: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(meta.get(name)) for name in ("model", "device", "dtype", "status", "error")}
    for number, optimizer in enumerate(meta["optimizers"]):
        found[f"optimiser {number}"] = str(optimizer["class"])
        for at, group in enumerate(optimizer["groups"]):
            found |= {f"optimiser {number}, group {at}: {k}": str(v) for k, v in group.items() if k != "parameters"}
    found |= {f"{_VERSIONS}: {name}": str(version) for name, version in meta[_VERSIONS].items()}
    return found


def _print(
    one: _Side,
    other: _Side,
    table: pd.DataFrame,
    settings: Sequence[Mapping[str, str]],
    notes: Sequence[str],
    most: int,
) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(printable(f"A: {one.name}"), soft_wrap=True)
    console.print(printable(f"B: {other.name}"), soft_wrap=True)
    for setting in settings:
        console.print(printable(f"{setting['what']}: {setting['first'] or 'none'} | {setting['second'] or 'none'}"))
    differing = table[table["difference"] > 0]
    shown = differing if most == 0 else differing.head(most)
    if len(shown):
        console.print(_grid(shown))
    else:
        console.print("No measured quantity differs.")
    left = len(differing) - len(shown)
    if left:
        console.print(f"{left} smaller differences are not shown; --most 0 shows all")
    for note in notes:
        console.print(printable(f"note: {note}"))


def _grid(table: pd.DataFrame) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("where", "what", "quantity"):
        grid.add_column(heading, overflow="fold")
    for heading in ("A", "B", "difference"):
        grid.add_column(heading, justify="right")
    for row in table.to_dict("records"):
        numbers = (format(row["first"], ".3g"), format(row["second"], ".3g"), format(row["difference"], ".0%"))
        names = (row["layer"] or "whole network", row["role"], row["quantity"])
        grid.add_row(*(printable(str(name)) for name in names), *numbers)
    return grid
