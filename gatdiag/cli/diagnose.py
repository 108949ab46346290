"""`gatdiag diagnose`: recorded runs or checkpoints -> why each does not train, and what to do.

The JSON document has the keys ``version`` (2) and ``diagnoses``: for each source ``source`` and what
`gatdiag.diagnosis.Diagnosis.document` gives (verdict, findings, skipped, state). Numbers that are not finite are null.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from gatdiag.cli.compare import diagnosis_of, headline, opened
from gatdiag.cli.options import AsJson
from gatdiag.cli.printing import plain_console, print_document
from gatdiag.errors import InputError
from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis, Finding

_FOUND: Final = 1  # exit status where a finding is at or above --fail-on

FailOn: TypeAlias = Annotated[
    str,
    typer.Option(metavar="LEVEL", help="End with status 1 at a finding that is this bad: note, warning, error; never."),
]


def diagnose(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN|FILE...", help="Folders of recorded runs, or checkpoints.")
    ],
    as_json: AsJson = False,
    fail_on: FailOn = "error",
) -> None:
    """Say why a recorded training, or a saved checkpoint, is broken: the cause first, its evidence, a line to paste.

    Ends with status 0 if nothing is as bad as --fail-on, 1 if something is, 2 if there is nothing to read.
    """
    check_level(fail_on)
    found: list[tuple[Path, Diagnosis, bool]] = []
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
            run, inspection = opened(source, Path(scratch) / "run")
            is_empty = not any(map(len, (run.steps, run.layers, run.parameters, run.neurons)))
            found.append((source, diagnosis_of(run, inspection), is_empty))
    if as_json:
        diagnoses = [{"source": str(source), **diagnosis.document()} for source, diagnosis, _ in found]
        print_document({"version": 2, "diagnoses": diagnoses})
    else:
        for source, diagnosis, is_empty in found:
            if len(found) > 1:
                plain_console().print(printable(f"== {source}"), soft_wrap=True)
            if is_empty and not diagnosis.findings:
                plain_console().print(
                    "Nothing was recorded, so there is nothing to judge; gatdiag report says what to do"
                )
            else:
                print_diagnosis(diagnosis)
    end([diagnosis for _, diagnosis, _ in found], fail_on)


def check_level(fail_on: str) -> None:
    """Raise InputError where it is none."""
    from gatdiag.diagnosis import SEVERITIES

    if fail_on not in (*SEVERITIES, "never"):
        raise InputError(f"--fail-on: expected {', '.join(reversed(SEVERITIES))} or never, got {fail_on!r}")


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the findings, the verdict with all that belongs to it; or that there is none."""
    console = plain_console()
    verdict = diagnosis.verdict
    if not verdict.is_problem:
        console.print(headline(verdict))
    for finding in diagnosis.findings:
        for line in _lines(finding, in_full=finding is verdict):
            console.print(printable(line.replace("\N{NO-BREAK SPACE}", " ")), soft_wrap=line.startswith("    "))
    if diagnosis.skipped:
        console.print(f"Not checked: {', '.join(diagnosis.skipped)} (--json says why)")


def _lines(finding: Finding, *, in_full: bool) -> Iterator[str]:
    from gatdiag.diagnosis.wording import number

    yield headline(finding)
    if in_full:
        evidence = [f"{one.what}: {number(one.value)} {one.unit}".rstrip() for one in finding.evidence]
        if evidence:
            yield f"  evidence: {'; '.join(evidence)}. {finding.threshold}"
        if finding.remedy:
            yield "  to paste:"
            yield from (f"    {line}" for line in finding.remedy.splitlines())
        if finding.falsified_by:
            yield f"  wrong if: {finding.falsified_by}"
    if finding.symptoms:
        yield f"  explains: {', '.join(symptom.title.lower() for symptom in finding.symptoms)}"


def end(diagnoses: Sequence[Diagnosis], fail_on: str) -> None:
    """End with status 1 if a finding is as bad as that."""
    from gatdiag.diagnosis import SEVERITIES

    bad = () if fail_on == "never" else SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if any(finding.severity in bad for diagnosis in diagnoses for finding in diagnosis):
        raise typer.Exit(_FOUND)
