"""A benchmark for the diagnosis: small trainings with one planted fault each, their repaired twins, healthy controls.

A fault is a change of a few settings of a training that is otherwise fine: `calibration` and `held_out` list them by
the code of the finding that is right. The training without that change is the repaired twin. A fault counts only if
its twin trains clearly better (`bank.should_count`), measured independently of the diagnosis: with the true labels and
the usual loss. Nothing is wrong with the controls. Half of the cases are held out from calibration; their seeds start
at 100. Equal recipes give equal runs, whatever the number of processes.

- `recipe`: a training as data
- `rows`, `calibration`, `held_out`, `cases`: all cases
- `tasks`, `network`, `training`: recipe -> data, model, recorded training
- `bank`: cases -> runs -> verdicts, and which of them are right
- `published_rules`: the rules of other tools, on the same runs
- `pairs`: two faults at once
- `preflight`: what `gatdiag.preflight` predicts before the training
- `treatment`: whether the remedies that the diagnosis names cure the faults
- `ranges`: what quantities are in healthy trainings, layer by layer
- `public`: trainings that somebody reported as not working, rebuilt small
- `tables`: results as CSV and Markdown
- `expected.csv`, `test_verdicts`: the verdicts of some cases, which the test suite trains

This program scores all of it and writes `reports/diagnosis` and `reports/treatment`.
"""

import shlex
import subprocess
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from tests.bank.bank import evaluate_case, run_cases
from tests.bank.cases import BANK, CAUSES
from tests.bank.pairs import PAIRS, evaluate_pair, pair_tables
from tests.bank.preflight import preflight_case, preflight_tables
from tests.bank.public import REPORTS
from tests.bank.public.scoring import evaluate_report, report_tables
from tests.bank.ranges import measure_case, range_tables
from tests.bank.tables import verdict_tables
from tests.bank.treatment import treat_case, treatment_tables

ROOT = Path(__file__).parents[2]
PARTS = {
    "calibration": (evaluate_case, verdict_tables),
    "held-out": (evaluate_case, verdict_tables),
    "pairs": (evaluate_pair, pair_tables),
    "preflight": (preflight_case, preflight_tables),
    "treat": (treat_case, treatment_tables),
    "ranges": (measure_case, range_tables),
    "public": (evaluate_report, report_tables),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser("python -m tests.bank", description="Count how often the diagnosis names a planted fault.")
    parser.add_argument("part", nargs="?", default="all", choices=("all", *PARTS), help="default: all")
    parser.add_argument(
        "--causes",
        nargs="+",
        choices=CAUSES,
        metavar="CAUSE",
        help="only these, healthy for controls, pairs and reports with one of them; tables go to DIR, not reports",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="number of processes; default: one per core")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "runs" / "bank",
        metavar="DIR",
        help="where trainings are kept; those that are finished at this commit are not repeated",
    )
    chosen = parser.parse_args(arguments)
    commit, console = read_commit(), Console()
    for part in PARTS if chosen.part == "all" else [chosen.part]:
        command = ["python", "-m", "tests.bank", part, *(["--causes", *chosen.causes] if chosen.causes else [])]
        origin = f"Written by `{shlex.join(command)}` at commit {commit}."
        evaluate, make_tables = PARTS[part]
        items = select_items(part, chosen.causes or CAUSES)
        results = run_cases(partial(evaluate, folder=chosen.folder / commit), items, chosen.jobs)
        for table in make_tables(results) if len(results) else ():
            console.print(Markdown(table.write(chosen.folder if chosen.causes else ROOT / "reports", origin)))


def read_commit() -> str:
    """The commit of the checkout, marked if its code was changed since; "unknown" without git."""
    head, changes = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "gatdiag", "tests"])
    )
    return f"{head}-changed" if changes else head or "unknown"


def select_items(part: str, causes: Sequence[str]) -> list:
    """Numbers of pairs, names of reports, or cases."""
    if part == "public":
        return [name for name, one in REPORTS.items() if {*causes} >= {*CAUSES} or {*one.right} & {*causes}]
    if part == "pairs":
        return [number for number, (plants, _) in enumerate(PAIRS) if {*plants} & {*causes}]
    is_wanted = {"calibration": (False,), "held-out": (True,)}.get(part, (False, True))
    return [case for case in BANK.values() if case.cause in causes and case.is_held_out in is_wanted]


if __name__ == "__main__":
    main()
