"""`gatdiag faults`: plants faults in small trainings and counts how often the diagnosis names them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.options import check_folder, split_list
from gatdiag.cli.training import count_progress
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
            metavar="PART", help="calibration, held-out (other graphs and layers), all, or pairs (two faults each)."
        ),
    ] = "calibration",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for runs and tables. Finished trainings in it are not repeated.")
    ] = Path("gatdiag-faults"),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of processes. Default: one per core.")
    ] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Also predict before each training whether it will fail.")
    ] = False,
    treat: Annotated[
        bool,
        typer.Option("--treat", help="Treat each fault as gatdiag treat does, and compare with the repaired twin."),
    ] = False,
) -> None:
    """Count how often the diagnosis names a planted fault.

    Each faulty network has a repaired twin and counts only if the twin trains clearly better. Healthy controls show
    false alarms, and rules that other tools publish are evaluated for comparison. A CSV file has one row per case; the
    printed tables are saved beside it, for --only CAUSE in a subfolder, as they are not those of a whole part. Finished
    trainings survive Ctrl-C.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    if (part == "pairs") + preflight + treat > 1:
        raise InputError("--part pairs, --preflight and --treat are mutually exclusive: give one of them")
    cases = _select_cases(only, part)
    check_folder(out)
    tables = out if only is None else out / "only"
    for page in _evaluate(cases, part, out / "runs", tables, jobs, preflight=preflight, treat=treat):
        Console().print(Markdown(page))
    typer.echo(f"Results of each case: {tables}")


def _evaluate(
    cases: list[Any], part: str, runs: Path, out: Path, jobs: int | None, *, preflight: bool, treat: bool
) -> list[str]:
    """Train and evaluate the cases, save the tables, and return them as Markdown."""
    from gatdiag.experiments.faults.bank import evaluate_case, run_cases
    from gatdiag.experiments.faults.pairs import evaluate_pair, write_pairs
    from gatdiag.experiments.faults.preflight import preflight_case, write_preflight
    from gatdiag.experiments.faults.tables import write_bank
    from gatdiag.experiments.faults.treatment import treat_case, write_treatments

    if part == "pairs":
        return [write_pairs(run_cases(partial(evaluate_pair, folder=runs), cases, jobs), out)]
    with count_progress("trainings", len(cases)) as on_done:
        if treat:
            treatments = run_cases(partial(treat_case, folder=runs), cases, jobs, on_done)
            return [write_treatments(treatments, out, part)]
        results = run_cases(partial(evaluate_case, folder=runs), cases, jobs, on_done)
    pages = [*write_bank(results, out)]
    if preflight:
        counted = [case for case, counts in zip(cases, results["counts"], strict=True) if counts]
        pages.append(write_preflight(run_cases(preflight_case, counted, jobs), out, part))
    return pages


def _select_cases(only: str | None, part: str) -> list[Case] | list[int]:
    """The chosen cases, or numbers of pairs."""
    from gatdiag.experiments.faults.cases import CALIBRATION, PAIRS, cases

    if part not in _PARTS:
        raise InputError(f"--part: expected one of {', '.join(_PARTS)}, got {part!r}")
    wanted = CALIBRATION if only is None else split_list(only)
    if not wanted or not {*wanted} <= {*CALIBRATION}:
        raise InputError(f"--only: expected some of {', '.join(CALIBRATION)}, got {only!r}")
    if part == "pairs":
        if found := [number for number, (plants, _) in enumerate(PAIRS) if {*plants} & {*wanted}]:
            return found
        raise InputError(f"--only: expected some of the causes of pairs, got {only!r}")
    return [
        case for case in cases() if case.cause in wanted and (part == "all" or case.is_held_out == (part == "held-out"))
    ]
