"""`gatdiag compare`: two runs, or two checkpoints, side by side, what differs most first."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gatdiag.cli.diagnose import diagnosis_of, opened
from gatdiag.cli.printing import grid, number, plain_console
from gatdiag.names import join_names, printable, quote
from gatdiag.roles import ATTENTION

if TYPE_CHECKING:
    import pandas as pd

    from gatdiag.checkpoint import Inspection
    from gatdiag.run import Run

_LISTED: Final = 6  # layers in a note
_ALIKE: Final = 3  # layers that show the same quantity, unless all are asked for
_CHANGED: Final = "changed_fraction_005"


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a recorded run, or a saved checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many differences to show; 0 for all.")] = 30,
) -> None:
    """Put two runs or two checkpoints side by side: outcomes, settings, then layers, what differs most first.

    A difference is a share of what it could be at most. Of runs, medians over all steps are compared; of two
    checkpoints, changes are measured from the first.
    """
    from gatdiag.summary import differences, results

    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        one, one_inspected = opened(first, Path(scratch) / "first")
        other, other_inspected = opened(second, Path(scratch) / "second")
        verdicts = [diagnosis_of(one, one_inspected).verdict, diagnosis_of(other, other_inspected).verdict]
        table = differences(one, other, "last" if one_inspected or other_inspected else "median")
        if one_inspected and other_inspected:
            table = _with_changes(table, one_inspected, other_inspected)
        came = {} if one_inspected and other_inspected else results([one, other])
    console = plain_console()
    for letter, path, verdict in zip("AB", (first, second), verdicts, strict=True):
        console.print(printable(f"{letter}: {path}"), soft_wrap=True)
        console.print(printable(str(verdict)))
    if came:
        trainings = grid(["training"], ["A", "B"])
        for what, values in came.items():
            trainings.add_row(printable(what), *(number(value, ".4g") for value in values))
        console.print(trainings)
    for setting in _settings(one.meta, other.meta):
        console.print(printable(setting))
    _print_differences(table[(table["difference"] > 0) & (table["layer"] != "")], most, alike=any(table["layer"]))
    notes = [note for inspected in (one_inspected, other_inspected) if inspected for note in inspected.notes]
    for note in dict.fromkeys([*notes, *_missing((first, one), (second, other))]):
        console.print(printable(f"note: {note}"))


def _with_changes(table: pd.DataFrame, one: Inspection, other: Inspection) -> pd.DataFrame:
    """How much of each parameter changed between two checkpoints; where nothing did, that is no difference."""
    import pandas as pd

    from gatdiag.checkpoint.measures import changes

    rows = []
    for info in other.structure.parameters:
        if info.name in other.last.tensors:
            before, after = one.last.tensors.get(info.name), other.last.tensors[info.name]
            share = changes(before, after, attention=info.role == ATTENTION, quick=True).get(_CHANGED, math.nan)
            if not math.isnan(share):
                values = {"first": 0.0, "second": share, "difference": share}
                rows.append({"layer": info.name, "role": info.role, "quantity": _CHANGED, **values})
    table = table[~table["quantity"].str.contains("changed_fraction")]
    table = pd.concat([pd.DataFrame(rows), table]) if rows else table
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _missing(*sides: tuple[Path, Run]) -> Iterator[str]:
    for (path, run), (_, other) in zip(sides, sides[::-1], strict=True):
        if layers := [name for name in run.layer_names if name not in other.layer_names]:
            yield f"only {path} has the layers {join_names(map(quote, layers), _LISTED)}"


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Settings that differ: model, optimizers, versions."""
    a, b = _flat(one), _flat(other)
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield f"{name}: {a.get(name, 'none')} | {b.get(name, 'none')}"


def _flat(meta: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: meta.get(name) for name in ("model", "device", "dtype", "status", "error")}
    for at, optimizer in enumerate(meta["optimizers"]):
        found[f"optimizer {at}"] = optimizer["class"]
        for place, group in enumerate(optimizer["groups"]):
            found |= {f"optimizer {at}, group {place}: {k}": v for k, v in group.items() if k != "parameters"}
    found |= {f"versions: {name}": version for name, version in meta["versions"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _print_differences(differing: pd.DataFrame, most: int, *, alike: bool) -> None:
    console = plain_console()
    varied = differing[differing.groupby(["role", "quantity"]).cumcount() < _ALIKE]
    shown = differing if most == 0 else varied.head(most)
    if len(shown):
        table = grid(["where", "what", "quantity"], ["A", "B", "difference"])
        for row in shown.to_dict("records"):
            names = (printable(str(row[key])) for key in ("layer", "role", "quantity"))
            table.add_row(*names, f"{row['first']:.3g}", f"{row['second']:.3g}", f"{row['difference']:.0%}")
        console.print(table)
    else:
        console.print("No measured quantity differs." if alike else "They have no layer in common.")
    left_out = len(differing) - len(shown)
    if left_out:
        console.print(
            f"{left_out} smaller differences are not shown, nor more than {_ALIKE} layers of a kind; --most 0 shows all"
        )
