"""`gatdiag faults`: plant faults in small trainings, and count how often the diagnosis names them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import check_folder, parts
from gatdiag.cli.training import trainings_progress
from gatdiag.errors import InputError

if TYPE_CHECKING:
    from gatdiag.experiments.faults.cases import Case

_PARTS = ("calibration", "held-out", "all", "pairs")


def faults(
    only: Annotated[
        str | None,
        typer.Option(metavar="CAUSE,...", help="Only these causes (healthy for controls), or pairs with one of them."),
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            metavar="PART", help="calibration, held-out (other graphs and layers), all, or pairs (two faults at once)."
        ),
    ] = "calibration",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for runs and tables. Finished trainings in it are not repeated.")
    ] = Path("gatdiag-faults"),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of processes; by default one per core.")
    ] = None,
    before: Annotated[
        bool, typer.Option("--preflight", help="Also predict before each training whether it will fail.")
    ] = False,
    treated: Annotated[
        bool,
        typer.Option(
            "--treat", help="Treat the faulty trainings as gatdiag treat does; compare with the repaired twins."
        ),
    ] = False,
) -> None:
    """Train networks with a planted fault, and count how often the verdict names it.

    A fault counts only if its repaired twin trains clearly better. Healthy controls show false alarms, and the rules of
    other tools are a baseline. Each case is a row of a CSV file; the printed summary is written next to it. Ctrl-C
    keeps the trainings that are finished.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    if (part == "pairs") + before + treated > 1:
        raise InputError("Expected one of --part pairs, --preflight and --treat, got more")
    chosen = _chosen(only, part)
    check_folder(out)
    for page in _pages(chosen, part, out, jobs, before=before, treated=treated):
        Console().print(Markdown(page))
    typer.echo(f"Results of each case: {out}")


def _pages(chosen: list[Any], part: str, out: Path, jobs: int | None, *, before: bool, treated: bool) -> list[str]:
    from gatdiag.experiments.faults.bank import evaluate_case, run_cases
    from gatdiag.experiments.faults.pairs import evaluate_pair, write_pairs
    from gatdiag.experiments.faults.preflight import preflight_case, write_preflight
    from gatdiag.experiments.faults.tables import write_bank
    from gatdiag.experiments.faults.treatment import treat_case, write_treatments

    runs = out / "runs"
    if part == "pairs":
        return [write_pairs(run_cases(partial(evaluate_pair, folder=runs), chosen, jobs), out)]
    with trainings_progress("trainings", len(chosen)) as on_done:
        if treated:
            return [write_treatments(run_cases(partial(treat_case, folder=runs), chosen, jobs, on_done), out, part)]
        results = run_cases(partial(evaluate_case, folder=runs), chosen, jobs, on_done)
    pages = [*write_bank(results, out)]
    if before:
        counted = [case for case, counts in zip(chosen, results["counts"], strict=True) if counts]
        pages.append(write_preflight(run_cases(preflight_case, counted, jobs), out))
    return pages


def _chosen(only: str | None, part: str) -> list[Case] | list[int]:
    from gatdiag.experiments.faults.cases import CALIBRATION, PAIRS, cases

    if part not in _PARTS:
        raise InputError(f"--part: expected one of {', '.join(_PARTS)}, got {part!r}")
    wanted = CALIBRATION if only is None else parts(only)
    if not wanted or not {*wanted} <= {*CALIBRATION}:
        raise InputError(f"--only: expected some of {', '.join(CALIBRATION)}, got {only!r}")
    if part == "pairs":
        if found := [number for number, (plants, _) in enumerate(PAIRS) if {*plants} & {*wanted}]:
            return found
        raise InputError(f"--only: expected some of the causes of pairs, got {only!r}")
    return [
        case for case in cases() if case.cause in wanted and (part == "all" or case.is_held_out == (part == "held-out"))
    ]
