"""`gatdiag compare`: two runs or two checkpoints side by side, largest differences first."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gatdiag.cli.diagnose import open_run_or_checkpoints, to_run
from gatdiag.cli.printing import make_table, plain_console
from gatdiag.names import join_names, printable, short
from gatdiag.roles import ATTENTION

if TYPE_CHECKING:
    import pandas as pd

    from gatdiag.checkpoint import Checkpoint
    from gatdiag.run import Run

_MAX_NAMES: Final = 6  # layers in a note
_CHANGED: Final = "changed_fraction_005"
_NO_SIZE: Final[Mapping[str, Callable[[float], bool]]] = {  # values without a factor between them, first the worst
    "undefined": math.isnan,
    "infinite": math.isinf,
    "zero": lambda value: value == 0,
    "negative": lambda value: value < 0,
}


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Run folder or checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Run folder or checkpoint to compare it with.")],
    most: Annotated[int, typer.Option(metavar="N", min=0, help="Number of differences to show; 0 shows all.")] = 10,
) -> None:
    """Compare two runs or two checkpoints.

    Prints outcomes, settings that differ, then layers, largest differences first: shares by the difference, others by
    the factor between them. For runs, medians over all steps are compared; for two checkpoints, changes are measured
    from the first.
    """
    from gatdiag.diagnosis import diagnose
    from gatdiag.summary import differences, results

    opened = [open_run_or_checkpoints(path) for path in (first, second)]
    saved = [each for each in opened if isinstance(each, list)]
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        one, other = (to_run(each, Path(scratch) / str(place)) for place, each in enumerate(opened))
        verdicts = [diagnose(one).headline, diagnose(other).headline]
        table = differences(one, other, "last" if saved else "median")
        if len(saved) == len(opened):
            table = _with_changes(table, saved, other)
        outcomes = {} if len(saved) == len(opened) else results([one, other])
    console = plain_console()
    for letter, path, verdict in zip("AB", (first, second), verdicts, strict=True):
        console.print(printable(f"{letter}: {path}"), soft_wrap=True)
        console.print(printable(verdict))
    if outcomes:
        trainings = make_table(["training"], ["A", "B"])
        for what, values in outcomes.items():
            trainings.add_row(printable(what), *(_in_digits(value, 4) for value in values))
        console.print(trainings)
    for setting in _differing_settings(one.meta, other.meta):
        console.print(printable(setting))
    _print_differences(
        table[(table["difference"] > 0) & (table["layer"] != "")], most, share_layers=any(table["layer"])
    )
    notes = [
        note for run, of in zip((one, other), opened, strict=True) if isinstance(of, list) for note in run.meta["notes"]
    ]
    for note in dict.fromkeys([*notes, *_missing_layers((first, one), (second, other))]):
        console.print(printable(f"note: {note}"))


def _with_changes(table: pd.DataFrame, saved: Sequence[Sequence[Checkpoint]], other: Run) -> pd.DataFrame:
    """The table with the share of each parameter's weights that changed from the first checkpoint to the second."""
    import pandas as pd

    from gatdiag.checkpoint.measures import measure_changes

    rows = []
    before, after = (checkpoints[-1].tensors for checkpoints in saved)
    roles = {info["name"]: info["role"] for layer in other.meta["structure"]["layers"] for info in layer["parameters"]}
    for name in filter(after.__contains__, roles):
        found = measure_changes(before.get(name), after[name], attention=roles[name] == ATTENTION, quick=True)
        share = found.get(_CHANGED, math.nan)
        if not math.isnan(share):
            values = {"first": 0.0, "second": share, "factor": math.nan, "difference": share}
            rows.append({"layer": name, "role": roles[name], "quantity": _CHANGED, **values})
    table = table[~table["quantity"].str.contains("changed_fraction")]
    table = pd.concat([pd.DataFrame(rows), table]) if rows else table
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _missing_layers(*sides: tuple[Path, Run]) -> Iterator[str]:
    for (path, run), (_, other) in zip(sides, sides[::-1], strict=True):
        if layers := [name for name in run.layer_names if name not in other.layer_names]:
            yield f"only {path} has the layers {join_names(map(short, layers), _MAX_NAMES)}"


def _differing_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    a, b = _flat_settings(one), _flat_settings(other)
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield f"{name}: {a.get(name, 'none')} | {b.get(name, 'none')}"


def _flat_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Model, optimizers and versions, by name."""
    found = {name: meta.get(name) for name in ("model", "device", "dtype", "status", "error")}
    for at, optimizer in enumerate(meta["optimizers"]):
        found[f"optimizer {at}"] = optimizer["class"]
        for place, group in enumerate(optimizer["groups"]):
            found |= {f"optimizer {at}, group {place}: {k}": v for k, v in group.items() if k != "parameters"}
    found |= {f"versions: {name}": version for name, version in meta["versions"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _label(row: Mapping[Hashable, Any]) -> str:
    """The quantity as figures call it, and what it is of."""
    from gatdiag.quantities import get_quantity

    table = "neurons" if row["quantity"] == "c" else "parameters" if row["role"] else "layers"
    of = {"parameters": f", {row['role']}", "layers": ", output"}.get(table, "")
    return get_quantity(f"{table}.{row['quantity']}").label + of


def _in_digits(value: float | None, digits: int) -> str:
    from gatdiag.diagnosis.wording import number, plain

    return "" if value is None else plain(number(value, digits))


def _describe(row: Mapping[Hashable, Any]) -> str:
    """How B differs from A: by the factor; of a share or of c, by the difference; or which of them has no size."""
    from gatdiag.diagnosis.wording import TIMES, number, plain

    if row["factor"] > 0:
        factor = row["factor"]
        return plain(f"{TIMES} {number(factor)}" if factor > 1 else f"/ {number(1 / factor)}")
    if math.isinf(row["difference"]):
        sides = (("A", row["first"]), ("B", row["second"]))
        return next(f"{what} in {side}" for what, is_so in _NO_SIZE.items() for side, value in sides if is_so(value))
    change = row["second"] - row["first"]
    return plain(f"{'+' if change > 0 else ''}{number(change)}")


def _print_differences(differing: pd.DataFrame, most: int, *, share_layers: bool) -> None:
    console = plain_console()
    varied = differing.drop_duplicates(["role", "quantity"])  # each in the layer where it differs most
    shown = differing if most == 0 else varied.head(most)
    table = make_table(["layer", "quantity"], ["A", "B", "difference"])
    for row in shown.to_dict("records"):
        names = (printable(str(row["layer"])), _label(row))
        table.add_row(*names, *(_in_digits(row[side], 3) for side in ("first", "second")), _describe(row))
    if len(shown):
        console.print(table)
    else:
        console.print("No measured quantity differs." if share_layers else "The two have no layer in common.")
    left_out = len(differing) - len(shown)
    if left_out:
        console.print(f"Each quantity where it differs most; --most 0 shows the other {left_out} differences, too.")
