"""`gatdiag reproduce`: a table or figure of the papers, trained, drawn, and compared with what was published.

The JSON document has the keys ``version`` (1) and ``names``; of the list a row for each (name, title, paper, quick,
full, done: numbers of trainings), of reports a row for each with its folder, its trainings and its comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import DATA_FOLDER, Address, AsJson, Backend, Root, Workers, check_folder, pool_of
from gatdiag.cli.printing import grid, plain_console, print_document
from gatdiag.cli.training import trainings_progress
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.reproduce.engine import Trainings
    from gatdiag.experiments.reproduce.reproduction import Reproduction


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[LIST|all|NAME...]", help="What to reproduce; by default the list.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Ten minutes on two cores, or the protocol of the paper.")
    ] = True,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to train: cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the reports, and of all trainings.")] = Path(
        "reports"
    ),
    root: Root = DATA_FOLDER,
    workers: Workers = None,
    backend: Backend = "processes",
    address: Address = None,
    trains: Annotated[
        bool, typer.Option("--train/--no-train", help="Train and measure what is not done, or only report on what is.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Reproduce tables and figures of the papers: published against measured, with 95 % confidence intervals.

    OUT/NAME holds README.md, results.csv, the figures and the page of the runs. Trainings are kept in OUT/trainings,
    each for all names that need it: killed or interrupted, the same command goes on with what is not done.
    """
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device: expected cpu or cuda, got {device!r}")
    pool = pool_of(workers, backend, address)
    check_folder(out)
    from gatdiag.experiments.reproduce.engine import REPRODUCTIONS, chosen, trained
    from gatdiag.experiments.reproduce.reproduction import Options

    if [name.lower() for name in names or ["list"]] == ["list"]:
        _list(out, as_json)
        return
    from gatdiag.experiments.reproduce.report import write_reproduction

    options = Options(not quick, root, "cuda" if device == "cuda" else "cpu", pool, trains)
    written: list[tuple[Trainings, Path]] = []
    for one in _to_write(chosen(names or [], REPRODUCTIONS), trains=trains):
        with trainings_progress(one.name, len(one.quick if quick else one.full) if trains else 0) as on_cell:
            trainings = trained(one, out, options, on_cell)
        written.append((trainings, write_reproduction(trainings, out)))
        if not as_json:
            typer.echo(f"{one.name}: {len(trainings.documents)} of {len(trainings.cells)} trainings: {written[-1][1]}")
    if as_json:
        print_document({"version": 1, "names": [_document(trainings, folder) for trainings, folder in written]})
    if failed := [why for trainings, _ in written for why in trainings.failed.values()]:
        raise InputError(f"{len(failed)} trainings failed, and are tried again next time: {'; '.join({*failed})}")


def _to_write(names: Iterable[Reproduction], *, trains: bool) -> Iterator[Reproduction]:
    for one in names:
        if one.evidence and not trains:
            typer.echo(f"{one.name} is measured anew each time, not with --no-train: left as it is", err=True)
        else:
            yield one


def _document(trainings: Trainings, folder: Path) -> dict[str, Any]:
    from gatdiag.experiments.reproduce.engine import compared

    rows = [
        {
            **row.settings,
            **{name: getattr(row, name) for name in ("column", "done", "planned", "mean", "ci95")},
            "published": row.published and row.published.value,
            "published_ci95": row.published and row.published.ci95,
            "difference": row.difference,
            "verdict": row.verdict,
        }
        for row in compared(trainings)
    ]
    done = {"done": len(trainings.documents), "planned": len(trainings.cells)}
    return {"name": trainings.reproduction.name, "folder": str(folder), **done, "rows": rows}


def _list(out: Path, as_json: bool) -> None:
    from gatdiag.experiments.reproduce.engine import REPRODUCTIONS, planned
    from gatdiag.experiments.reproduce.reproduction import Options

    rows = []
    for one in REPRODUCTIONS.values():
        quick, full = (len(planned(one, out, Options(full=full)).documents) for full in (False, True))
        counts = {"quick": len(one.quick), "quick_done": quick, "full": len(one.full), "full_done": full}
        rows.append({"name": one.name, "title": one.title, "paper": one.paper, **counts})
    if as_json:
        print_document({"version": 1, "names": rows})
        return
    table = grid(["name", "title"], ["quick", "full"])
    for row in rows:
        done = [f"{row[f'{kind}_done']} of {row[kind]}" for kind in ("quick", "full")]
        table.add_row(str(row["name"]), str(row["title"]), *done)
    console = plain_console()
    console.print(table)
    console.print(f"Trainings that are done are those in {out}. gatdiag reproduce NAME makes its report there.")
