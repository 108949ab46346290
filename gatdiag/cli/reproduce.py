"""`gatdiag reproduce`: trains tables and figures of the papers, and compares them with what was published.

The JSON document has the keys ``version`` (1) and ``names``. In the list, each name has its title, paper and numbers of
trainings (quick, quick_done, full, full_done); in reports, its folder, numbers of trainings (done, planned) and
comparisons (rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import DATA_FOLDER, Address, AsJson, Backend, Root, Workers, check_folder, make_pool
from gatdiag.cli.printing import make_table, plain_console, print_json
from gatdiag.cli.training import count_progress, report_failures
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.reproduce.engine import Trainings
    from gatdiag.experiments.reproduce.reproduction import Reproduction


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LIST|all|NAME...]", help="What to reproduce. Default: print the list."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Ten minutes on two cores, or the protocol of the paper.")
    ] = True,
    device: Annotated[str, typer.Option(metavar="NAME", help="Device to train on: cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the reports and the trainings.")] = Path(
        "reports"
    ),
    root: Root = DATA_FOLDER,
    workers: Workers = None,
    backend: Backend = "processes",
    address: Address = None,
    trains: Annotated[
        bool, typer.Option("--train/--no-train", help="Train what is missing, or only report on what is there.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Reproduce tables and figures of the papers.

    Compares published with measured values, with 95 % confidence intervals. OUT/NAME holds README.md, results.csv, the
    figures and the page of the runs. Trainings are kept in OUT/trainings and shared by all names; if interrupted, the
    same command resumes.
    """
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device: expected cpu or cuda, got {device!r}")
    pool = make_pool(workers, backend, address)
    check_folder(out)
    from gatdiag.experiments.reproduce.engine import REPRODUCTIONS, select, train_missing
    from gatdiag.experiments.reproduce.reproduction import Options

    if [name.lower() for name in names or ["list"]] == ["list"]:
        _print_list(out, as_json)
        return
    from gatdiag.experiments.reproduce.report import write_reproduction

    options = Options(not quick, root, "cuda" if device == "cuda" else "cpu", pool, trains)
    written: list[tuple[Trainings, Path]] = []
    for one in _skip_remeasured(select(names or [], REPRODUCTIONS), trains=trains):
        with count_progress(one.name, len(one.quick if quick else one.full) if trains else 0) as on_cell:
            trainings = train_missing(one, out, options, on_cell)
        written.append((trainings, write_reproduction(trainings, out)))
        if not as_json:
            typer.echo(f"{one.name}: {len(trainings.documents)} of {len(trainings.cells)} trainings: {written[-1][1]}")
    if as_json:
        print_json({"version": 1, "names": [_make_document(trainings, folder) for trainings, folder in written]})
    if failed := [why for trainings, _ in written for why in trainings.failed.values()]:
        raise InputError(report_failures(failed, sum(len(trainings.cells) for trainings, _ in written)))


def _skip_remeasured(names: Iterable[Reproduction], *, trains: bool) -> Iterator[Reproduction]:
    """Without training, leave out what is measured anew each time."""
    for one in names:
        if one.evidence and not trains:
            typer.echo(f"{one.name} is measured anew each time: skipped because of --no-train", err=True)
        else:
            yield one


def _make_document(trainings: Trainings, folder: Path) -> dict[str, Any]:
    from gatdiag.experiments.reproduce.engine import compare

    rows = [
        {
            **row.settings,
            **{name: getattr(row, name) for name in ("column", "done", "planned", "mean", "ci95")},
            "published": row.published and row.published.value,
            "published_ci95": row.published and row.published.ci95,
            "difference": row.difference,
            "verdict": row.verdict,
        }
        for row in compare(trainings)
    ]
    done = {"done": len(trainings.documents), "planned": len(trainings.cells)}
    return {"name": trainings.reproduction.name, "folder": str(folder), **done, "rows": rows}


def _print_list(out: Path, as_json: bool) -> None:
    from gatdiag.experiments.reproduce.engine import REPRODUCTIONS, find_trainings
    from gatdiag.experiments.reproduce.reproduction import Options

    rows = []
    for one in REPRODUCTIONS.values():
        quick, full = (len(find_trainings(one, out, Options(full=full)).documents) for full in (False, True))
        counts = {"quick": len(one.quick), "quick_done": quick, "full": len(one.full), "full_done": full}
        rows.append({"name": one.name, "title": one.title, "paper": one.paper, **counts})
    if as_json:
        print_json({"version": 1, "names": rows})
        return
    table = make_table(["name", "title"], ["quick", "full"])
    for row in rows:
        done = [f"{row[f'{kind}_done']} of {row[kind]}" for kind in ("quick", "full")]
        table.add_row(str(row["name"]), str(row["title"]), *done)
    console = plain_console()
    console.print(table)
    console.print(
        f"Columns count the trainings in {out} that are done. gatdiag reproduce NAME writes its report there."
    )
