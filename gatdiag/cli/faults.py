"""`gatdiag faults`: plant faults in small trainings, and count how often the diagnosis names them.

The JSON document has the keys ``version`` (1), ``cases`` (a row for each, as in the CSV file), ``confusion`` (a row for
each cause: planted, right, others, baseline) and ``healthy`` (for controls and twins: trainings, errors, warnings,
baseline); with ``--preflight`` also ``preflight``, a row for each network before its training. With ``--treat`` it has
``version`` and ``cases``, a row for each as in that table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatdiag.cli.options import AsJson
from gatdiag.cli.printing import grid, number, plain_console, print_document
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.faults.bank import Result
    from gatdiag.experiments.faults.cases import Case
    from gatdiag.experiments.faults.foresight import Forecast

_PARTS = ("calibration", "held-out", "all", "pairs")


def faults(
    only: Annotated[
        str | None, typer.Option(metavar="CAUSE,...", help="Only these causes; healthy is one of them.")
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            metavar="PART", help="calibration, held-out (other graphs and layers), all, or pairs (two faults at once)."
        ),
    ] = "calibration",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for runs and tables. What was trained there is not repeated.")
    ] = Path("gatdiag-faults"),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes; one for each core if left out.")
    ] = None,
    before: Annotated[
        bool, typer.Option("--preflight", help="Say of each network before its training, too, whether it will fail.")
    ] = False,
    treated: Annotated[
        bool,
        typer.Option("--treat", help="Treat what is faulty as gatdiag treat does; compare with the repaired twins."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train networks in which a fault was planted, and count how often its cause is named first.

    Each has a repaired twin, and counts only if that trains clearly better; controls in which nothing is wrong show
    false alarms, and the rules that other tools publish are judged beside. Ctrl-C keeps what was finished.
    """
    from gatdiag.experiments.faults.bank import run_bank
    from gatdiag.experiments.faults.foresight import forecasts, sentence, write_forecasts
    from gatdiag.experiments.faults.tables import write_tables

    chosen = _chosen(only, part)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: choose another --out")
    if part == "pairs":
        _two_at_once(out, jobs, as_json)
        return
    if treated:
        _treat(chosen, out, jobs, as_json)
        return
    with _progress(len(chosen)) as on_done:
        results = run_bank(chosen, out / "runs", jobs, on_done)
    written = write_tables(results, out)
    foreseen: list[Forecast] = []
    if before:
        with _progress(len(results)) as on_done:
            foreseen = list(forecasts(results, on_done))
        written.append(write_forecasts(foreseen, out))
    if as_json:
        document = {"version": 1, **_document(results)}
        print_document(document | {"preflight": [one.row() for one in foreseen]} if before else document)
        return
    _print(results)
    if foreseen:
        plain_console().print(sentence(foreseen))
    plain_console().print(f"Each case: {', '.join(map(str, written))}")


def _two_at_once(out: Path, jobs: int | None, as_json: bool) -> None:
    from gatdiag.experiments.faults.pairs import in_short, run_pairs, write_pairs

    pairs = run_pairs(out / "runs", jobs)
    written = write_pairs(pairs, out)
    if as_json:
        print_document({"version": 1, "pairs": [pair.row() for pair in pairs]})
        return
    plain_console().print(f"{in_short(pairs)}\nEach pair: {written}")


def _treat(chosen: Sequence[Case], out: Path, jobs: int | None, as_json: bool) -> None:
    from gatdiag.experiments.faults.treated import in_short, treat_bank, write_cures

    with _progress(len(chosen)) as on_done:
        cures = treat_bank(chosen, out / "runs", jobs, on_done)
    written = write_cures(cures, out)
    if as_json:
        print_document({"version": 1, "cases": [cure.row() for cure in cures]})
        return
    table = grid(["case", "verdict", "remedy"], ["faulty", "treated", "twin", "good"])
    for cure in cures:
        numbers = [number(value, ".3f") for value in (cure.faulty, cure.treated, cure.twin)]
        table.add_row(cure.case, cure.verdict, cure.remedy or cure.reason, *numbers, cure.row()["good"])
    console = plain_console()
    console.print(table)
    console.print(in_short(cures))
    console.print(f"Each case: {', '.join(map(str, written))}")


def _chosen(only: str | None, part: str) -> list[Case]:
    from gatdiag.diagnosis import HEALTHY
    from gatdiag.experiments.faults.cases import FAULTS, cases

    if part not in _PARTS:
        raise InputError(f"--part: expected one of {', '.join(_PARTS)}, got {part!r}")
    known = [*FAULTS, HEALTHY]
    wanted = known if only is None else [cause.strip() for cause in only.split(",") if cause.strip()]
    if not wanted or not {*wanted} <= {*known}:
        raise InputError(f"--only: expected some of {', '.join(known)}, got {only!r}")
    return [
        case for case in cases() if case.cause in wanted and (part == "all" or case.is_held_out == (part == "held-out"))
    ]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Case], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("trainings", total=total)
        yield lambda case: bar.update(task, advance=1, description=case.name)


def _document(results: Sequence[Result]) -> dict[str, object]:
    from gatdiag.experiments.faults.bank import alarms, tallies

    healthy = {}
    for name, of_twins in (("controls", False), ("twins", True)):
        values = alarms(results, of_twins=of_twins)
        healthy[name] = dict(zip(("trainings", "errors", "warnings", "baseline"), values, strict=True))
    return {
        "cases": [result.row() for result in results],
        "confusion": [asdict(tally) for tally in tallies(results)],
        "healthy": healthy,
    }


def _print(results: Sequence[Result]) -> None:
    from gatdiag.experiments.faults.bank import tallies
    from gatdiag.experiments.faults.tables import said, sentences

    console = plain_console()
    table = grid(["planted", "verdict on the others"], ["cases", "right", "rules"])
    for tally in tallies(results):
        table.add_row(tally.cause, said(tally), str(tally.planted), str(tally.right), str(tally.baseline))
    console.print(table)
    for sentence in sentences(results):
        console.print(sentence)
