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
        typer.Option(metavar="CAUSE,...", help="Only these causes, healthy being one, or pairs with one of these."),
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
) -> None:
    """Train networks in which a fault was planted, and count how often its cause is named first.

    Each has a repaired twin, and counts only if that trains clearly better; controls in which nothing is wrong show
    false alarms, and the rules that other tools publish are judged beside. Each case is a row of a CSV file, and what
    is printed is kept beside it. Ctrl-C keeps what was finished.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    pairs = part == "pairs"
    if pairs + before + treated > 1:
        raise InputError("Expected one of --part pairs, --preflight and --treat, got more")
    chosen = _chosen(only, part)
    check_folder(out)
    for page in _pages(chosen, out, jobs, pairs=pairs, before=before, treated=treated):
        Console().print(Markdown(page))
    typer.echo(f"Each case: {out}")


def _pages(chosen: list[Any], out: Path, jobs: int | None, *, pairs: bool, before: bool, treated: bool) -> list[str]:
    from gatdiag.experiments.faults.bank import table_of, verdicts
    from gatdiag.experiments.faults.foresight import forecasts, save_forecasts
    from gatdiag.experiments.faults.pairs import pair_verdicts, save_pairs
    from gatdiag.experiments.faults.tables import save_bank
    from gatdiag.experiments.faults.treated import cures, save_cures

    runs = out / "runs"
    if pairs:
        return [save_pairs(table_of(partial(pair_verdicts, folder=runs), chosen, jobs), out)]
    with trainings_progress("trainings", len(chosen)) as on_done:
        if treated:
            return [save_cures(table_of(partial(cures, folder=runs), chosen, jobs, on_done), out)]
        results = table_of(partial(verdicts, folder=runs), chosen, jobs, on_done)
    pages = [*save_bank(results, out)]
    if before:
        counted = [case for case, counts in zip(chosen, results["counts"], strict=True) if counts]
        pages.append(save_forecasts(table_of(forecasts, counted, jobs), out))
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
