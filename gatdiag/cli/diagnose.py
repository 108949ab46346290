"""`gatdiag diagnose`: a recorded run or a checkpoint -> what is wrong, the most severe first.

The JSON document has the keys ``version`` (1), ``source`` and ``findings``: for each the attributes of
`gatdiag.diagnosis.Finding`. Numbers that are not finite are null.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from gatdiag.cli.compare import findings_of, opened
from gatdiag.cli.options import AsJson
from gatdiag.cli.printing import plain_console, print_document
from gatdiag.errors import InputError
from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.diagnosis import Finding

_FOUND: Final = 1  # exit status where a finding is at or above --fail-on

FailOn: TypeAlias = Annotated[
    str,
    typer.Option(metavar="LEVEL", help="End with status 1 at a finding that is this bad: note, warning, error; never."),
]


def diagnose(
    source: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="Folder of a recorded run, or a checkpoint.")],
    as_json: AsJson = False,
    fail_on: FailOn = "error",
) -> None:
    """Say what is wrong with a recorded training, or with a saved checkpoint, the most severe first.

    Ends with status 0 if nothing is as bad as --fail-on, 1 if something is, 2 if there is nothing to read.
    """
    check_level(fail_on)
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        run, inspection = opened(source, Path(scratch) / "run")
        findings = findings_of(run, inspection)
        is_empty = not any(map(len, (run.steps, run.layers, run.parameters, run.neurons)))
    if as_json:
        print_document({"version": 1, "source": str(source), "findings": [asdict(finding) for finding in findings]})
    elif is_empty and not findings:
        plain_console().print("Nothing was recorded, so there is nothing to judge; gatdiag report says what to do")
    else:
        print_findings(findings)
    end(findings, fail_on)


def check_level(fail_on: str) -> None:
    """Raise InputError where it is none."""
    from gatdiag.diagnosis import SEVERITIES

    levels = [severity for severity in reversed(SEVERITIES) if severity != "info"]
    if fail_on not in (*levels, "never"):
        raise InputError(f"--fail-on: expected {', '.join(levels)} or never, got {fail_on!r}")


def print_findings(findings: Sequence[Finding]) -> None:
    """Print one finding after the other, or that there is none."""
    console = plain_console()
    for finding in findings:
        text = f"{finding.severity}: {finding.title}: {finding.text} [{finding.code}]"
        console.print(printable(text.replace("\N{NO-BREAK SPACE}", " ")))
    if not findings:
        console.print("No problem found")


def end(findings: Sequence[Finding], fail_on: str) -> None:
    """End with status 1 if one is as bad as that."""
    from gatdiag.diagnosis import SEVERITIES

    levels: list[str] = [*SEVERITIES]
    bad = [] if fail_on == "never" else levels[: levels.index(fail_on) + 1]
    if any(finding.severity in bad for finding in findings):
        raise typer.Exit(_FOUND)
