"""`gatdiag diagnose`: why recorded runs do not train, or what is wrong with checkpoints.

The JSON document has the keys ``version`` (3) and ``diagnoses``: for each source the key ``source`` and those of
`gatdiag.diagnosis.Diagnosis.document` (word, verdict, findings, skipped, state, reason, remarks). NaN and infinity are
null.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from gatdiag.cli.options import AsJson, FailOn, Level
from gatdiag.cli.printing import COLORS, plain_console, print_json, rows
from gatdiag.errors import InputError
from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.checkpoint import Checkpoint
    from gatdiag.diagnosis import Diagnosis
    from gatdiag.run import Run

_IN_PARENTHESES: Final = re.compile(r" \([^()]*\)")
_MOST_LINES: Final = 12  # of a terminal, for one finding
_FOUND: Final = 1  # exit status where a finding or the verdict is at or above --fail-on
_UNDETERMINED: Final = 3  # exit status where too little was recorded to say whether a training went well


def diagnose(
    sources: Annotated[list[Path], typer.Argument(metavar="RUN|FILE...", help="Run folders or checkpoints.")],
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the verdict and short tables as Markdown, in less than 200 lines.")
    ] = False,
    fail_on: FailOn = Level.error,
) -> None:
    """Find out why a run does not train, or a checkpoint is broken.

    Prints the cause first, with its evidence and a remedy to paste. Exits with status 0 if every finding and the
    verdict are less severe than --fail-on, 1 if one is not (a failing training that no check explains is a warning), 2
    if there is nothing to read, 3 if too little was recorded to say whether it trained.
    """
    from gatdiag.diagnosis import diagnose as diagnose_run

    if as_json and as_markdown:
        raise InputError("--json and --markdown: expected one of them, got both")
    found: list[tuple[Path, Diagnosis]] = []
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
            run = to_run(open_run_or_checkpoints(source), Path(scratch) / "run")
            found.append((source, diagnose_run(run)))
            if as_markdown:
                _print_markdown(run, *found[-1])
    if as_json:
        diagnoses = [{"source": str(source), **diagnosis.document()} for source, diagnosis in found]
        print_json({"version": 3, "diagnoses": diagnoses})
    elif not as_markdown:
        _print_text(found)
    exit_with_status([diagnosis for _, diagnosis in found], fail_on)
    if fail_on is not Level.never and any(diagnosis.verdict.code == "undetermined" for _, diagnosis in found):
        raise typer.Exit(_UNDETERMINED)


def _print_text(found: Sequence[tuple[Path, Diagnosis]]) -> None:
    for source, diagnosis in found:
        if len(found) > 1:
            plain_console().print(printable(f"== {source}"), soft_wrap=True)
        print_diagnosis(diagnosis, "gatdiag diagnose --json")


def _print_markdown(run: Run, source: Path, diagnosis: Diagnosis) -> None:
    from gatdiag.page.markdown import markdown

    typer.echo(markdown(run, diagnosis, source), nl=False)


def open_run_or_checkpoints(path: Path) -> Run | list[Checkpoint]:
    """A recorded run, or the checkpoints that the path names."""
    from gatdiag.run import load
    from gatdiag.run.files import META, has_tables, runs_inside

    if not path.exists():
        raise InputError(f"Expected a run or a checkpoint, but {str(path)!r} does not exist")
    if path.is_dir() and ((path / META).exists() or has_tables(path)):
        return load(path)
    from gatdiag.checkpoint import open_all  # loads torch, which is not needed for runs
    from gatdiag.checkpoint.opening import is_checkpoint

    if path.is_dir() and runs_inside(path) and not any(map(is_checkpoint, (path, *path.iterdir()))):
        return load(path)  # the only run inside, or an error that names them
    return open_all(path)


def to_run(opened: Run | list[Checkpoint], scratch: Path) -> Run:
    """What was opened as a run: checkpoints are measured, and written to the folder ``scratch``."""
    if not isinstance(opened, list):
        return opened
    from gatdiag.checkpoint import inspect

    return inspect(opened, scratch).run


def print_diagnosis(diagnosis: Diagnosis, reasons: str) -> None:
    """Print a diagnosis; ``reasons`` is where to find why checks were skipped.

    On a terminal in color, wrapped at spaces, without asides, and with the evidence in what is left of twelve lines.
    Into a file or a pipe everything, each part on a line of its own.
    """
    console = plain_console()
    if not console.is_terminal:
        for line in diagnosis.lines(reasons):
            console.print(Text(printable(line)), soft_wrap=True)
        return
    parts = [(part, line) for part, line in diagnosis.parts(reasons) if part != "aside"]
    of_verdict = [parts[0], *takewhile(lambda one: one[0] not in COLORS, parts[1:])]
    taken = sum(_height(console, *one) for one in of_verdict if one[0] != "evidence")
    for part, line in parts:
        if part == "evidence" and _height(console, part, line) > _MOST_LINES - taken:
            line = _in_short(line)
        for row in rows(console, part, line):
            console.print(row, soft_wrap=True)


def _in_short(evidence: str) -> str:
    """Evidence with the first threshold, which its number is compared with, without the reason for it."""
    found, flagged, threshold = evidence.partition(" Flagged ")
    first, *others = _IN_PARENTHESES.sub("", threshold).split("; ")
    return f"{found}{flagged}{first}{'; --json names other thresholds.' if others else ''}"


def _height(console: Console, part: str, line: str) -> int:
    return sum(ceil(len(row) / console.width) for row in rows(console, part, line))


def exit_with_status(diagnoses: Sequence[Diagnosis], fail_on: Level) -> None:
    """Exit with status 1 if a finding or the verdict is at least as severe as ``fail_on``."""
    levels = [*Level]
    bad = levels[levels.index(fail_on) :]
    found = [one for diagnosis in diagnoses for one in (*diagnosis, diagnosis.verdict)]
    if any(one.severity in bad and one.code not in ("healthy", "undetermined") for one in found):
        raise typer.Exit(_FOUND)
