"""`gatdiag compare`: two runs, or two checkpoints, side by side, what differs most first.

The JSON document has these keys; numbers that are not finite are null:

- ``version``: 3, the version of this description
- ``first``, ``second``: what was compared
- ``diagnoses``: ``first`` and ``second``, each as `gatdiag.diagnosis.Diagnosis.document` gives it
- ``outcomes``: for each result of the trainings ``what``, ``first``, ``second``
- ``settings``: for each setting that differs ``what``, ``first``, ``second``
- ``differences``: for each ``layer``, ``role``, ``quantity``, ``first``, ``second``, ``difference``, from 0 to 1
- ``notes``: texts
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from gatdiag.cli.diagnose import diagnosis_of, headline, opened
from gatdiag.cli.options import AsJson
from gatdiag.cli.printing import grid, number, plain_console, print_document
from gatdiag.names import listed, printable, quoted

if TYPE_CHECKING:
    import pandas as pd

    from gatdiag.checkpoint import Inspection
    from gatdiag.diagnosis import Diagnosis
    from gatdiag.run import Run

_LISTED: Final = 6  # layers in a note
_ALIKE: Final = 3  # layers that show the same quantity, unless all are asked for
_CHANGED: Final = "changed_fraction_005"


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a recorded run, or a saved checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many differences to show; 0 for all.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Put two runs or two checkpoints side by side: outcomes, settings, then layers, what differs most first.

    A difference is a share of what it could be at most. Of runs, medians over all steps are compared; of two
    checkpoints, changes are measured from the first.
    """
    from gatdiag.summary import differences, results

    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        one, one_inspected = opened(first, Path(scratch) / "first")
        other, other_inspected = opened(second, Path(scratch) / "second")
        diagnoses = {"first": diagnosis_of(one, one_inspected), "second": diagnosis_of(other, other_inspected)}
        table = differences(one, other, "last" if one_inspected or other_inspected else "median")
        if one_inspected and other_inspected:
            table = _with_changes(table, one_inspected, other_inspected)
        came = {} if one_inspected and other_inspected else results([one, other])
        notes = [note for inspected in (one_inspected, other_inspected) if inspected for note in inspected.notes]
        notes += _missing((first, one), (second, other))
    document: dict[str, Any] = {
        "version": 3,
        "first": str(first),
        "second": str(second),
        "diagnoses": {side: diagnosis.document() for side, diagnosis in diagnoses.items()},
        "outcomes": [{"what": what, "first": a, "second": b} for what, (a, b) in came.items()],
        "settings": list(_settings(one.meta, other.meta)),
        "differences": table.to_dict("records"),
        "notes": [*dict.fromkeys(notes)],
    }
    if as_json:
        print_document(document)
    else:
        _print(document, diagnoses, table, most)


def _with_changes(table: pd.DataFrame, one: Inspection, other: Inspection) -> pd.DataFrame:
    """How much of each parameter changed between two checkpoints; where nothing did, that is no difference."""
    import pandas as pd

    from gatdiag.checkpoint.measures import changes
    from gatdiag.structure.adapters import ATTENTION

    changed = {
        info: changes(
            one.tensors.get(info.name), other.tensors[info.name], attention=info.role == ATTENTION, quick=True
        ).get(_CHANGED, math.nan)
        for info in other.structure.parameters
        if info.name in other.tensors
    }
    rows = [
        {"layer": i.name, "role": i.role, "quantity": _CHANGED, "first": 0.0, "second": share, "difference": share}
        for i, share in changed.items()
        if not math.isnan(share)
    ]
    table = table[~table["quantity"].str.contains("changed_fraction")]
    table = pd.concat([pd.DataFrame(rows), table]) if rows else table
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _missing(*sides: tuple[Path, Run]) -> Iterator[str]:
    for (path, run), (_, other) in zip(sides, sides[::-1], strict=True):
        if layers := [name for name in run.layer_names if name not in other.layer_names]:
            yield f"only {path} has the layers {listed(map(quoted, layers), _LISTED)}"


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Settings that differ: model, optimizers, versions."""
    a, b = _flat(one), _flat(other)
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield {"what": name, "first": a.get(name, ""), "second": b.get(name, "")}


def _flat(meta: Mapping[str, Any]) -> dict[str, str]:
    found = {name: meta.get(name) for name in ("model", "device", "dtype", "status", "error")}
    for at, optimizer in enumerate(meta["optimizers"]):
        found[f"optimizer {at}"] = optimizer["class"]
        for place, group in enumerate(optimizer["groups"]):
            found |= {f"optimizer {at}, group {place}: {k}": v for k, v in group.items() if k != "parameters"}
    found |= {f"versions: {name}": version for name, version in meta["versions"].items()}
    return {name: str(value) for name, value in found.items() if value is not None}


def _print(document: Mapping[str, Any], diagnoses: Mapping[str, Diagnosis], table: pd.DataFrame, most: int) -> None:
    console = plain_console()
    for letter, side in (("A", "first"), ("B", "second")):
        console.print(printable(f"{letter}: {document[side]}"), soft_wrap=True)
        console.print(printable(headline(diagnoses[side].verdict)))
    if document["outcomes"]:
        results = grid(["training"], ["A", "B"])
        for row in document["outcomes"]:
            results.add_row(printable(str(row["what"])), number(row["first"], ".4g"), number(row["second"], ".4g"))
        console.print(results)
    for setting in document["settings"]:
        console.print(printable(f"{setting['what']}: {setting['first'] or 'none'} | {setting['second'] or 'none'}"))
    differing = table[(table["difference"] > 0) & (table["layer"] != "")]
    varied = differing[differing.groupby(["role", "quantity"]).cumcount() < _ALIKE]
    shown = differing if most == 0 else varied.head(most)
    if len(shown):
        console.print(_lines(shown))
    else:
        console.print("No measured quantity differs." if any(table["layer"]) else "They have no layer in common.")
    left_out = len(differing) - len(shown)
    if left_out:
        console.print(
            f"{left_out} smaller differences are not shown, nor more than {_ALIKE} layers of a kind; --most 0 shows all"
        )
    for note in document["notes"]:
        console.print(printable(f"note: {note}"))


def _lines(rows: pd.DataFrame) -> Table:
    table = grid(["where", "what", "quantity"], ["A", "B", "difference"])
    for row in rows.to_dict("records"):
        names = (printable(str(row[key])) for key in ("layer", "role", "quantity"))
        table.add_row(*names, f"{row['first']:.3g}", f"{row['second']:.3g}", f"{row['difference']:.0%}")
    return table
