"""`gatdiag reproduce`: trains tables and figures of the papers, and compares them with what was published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatdiag.cli.options import DATA_FOLDER, Address, Backend, Root, Workers, check_folder, make_pool
from gatdiag.cli.printing import make_table, plain_console
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
        _print_list(out)
        return
    from gatdiag.experiments.reproduce.report import write_reproduction

    options = Options(not quick, root, "cuda" if device == "cuda" else "cpu", pool, trains)
    written: list[Trainings] = []
    for one in _skip_remeasured(select(names or [], REPRODUCTIONS), trains=trains):
        with count_progress(one.name, len(one.quick if quick else one.full) if trains else 0) as on_cell:
            trainings = train_missing(one, out, options, on_cell)
        folder = write_reproduction(trainings, out)
        written.append(trainings)
        typer.echo(f"{one.name}: {len(trainings.documents)} of {len(trainings.cells)} trainings: {folder}")
    if failed := [why for trainings in written for why in trainings.failed.values()]:
        raise InputError(report_failures(failed, sum(len(trainings.cells) for trainings in written)))


def _skip_remeasured(names: Iterable[Reproduction], *, trains: bool) -> Iterator[Reproduction]:
    """Without training, leave out what is measured anew each time."""
    for one in names:
        if one.evidence and not trains:
            typer.echo(f"{one.name} is measured anew each time: skipped because of --no-train", err=True)
        else:
            yield one


def _print_list(out: Path) -> None:
    from gatdiag.experiments.reproduce.engine import REPRODUCTIONS, find_trainings
    from gatdiag.experiments.reproduce.reproduction import Options

    table = make_table(["name", "title"], ["quick", "full"])
    for one in REPRODUCTIONS.values():
        quick, full = (len(find_trainings(one, out, Options(full=full)).documents) for full in (False, True))
        table.add_row(one.name, one.title, f"{quick} of {len(one.quick)}", f"{full} of {len(one.full)}")
    console = plain_console()
    console.print(table)
    console.print(
        f"Columns count the trainings in {out} that are done. gatdiag reproduce NAME writes its report there."
    )
