"""`gatdiag diagnose`: recorded runs or checkpoints -> why each does not train, and what to do.

The JSON document has the keys ``version`` (2) and ``diagnoses``: for each source ``source`` and what
`gatdiag.diagnosis.Diagnosis.document` gives (verdict, findings, skipped, state). Numbers that are not finite are null.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gatdiag.cli.options import AsJson, FailOn, Level
from gatdiag.cli.printing import plain_console, print_document
from gatdiag.errors import InputError
from gatdiag.names import printable

if TYPE_CHECKING:
    from gatdiag.checkpoint import Inspection
    from gatdiag.diagnosis import Diagnosis
    from gatdiag.run import Run

_FOUND: Final = 1  # exit status where a finding is at or above --fail-on


def diagnose(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN|FILE...", help="Folders of recorded runs, or checkpoints.")
    ],
    as_json: AsJson = False,
    fail_on: FailOn = Level.error,
) -> None:
    """Say why a recorded training, or a saved checkpoint, is broken: the cause first, its evidence, a line to paste.

    Ends with status 0 if nothing is as bad as --fail-on, 1 if something is, 2 if there is nothing to read.
    """
    from gatdiag.summary import is_empty

    found: list[tuple[Path, Diagnosis, bool]] = []
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
            run, inspection = opened(source, Path(scratch) / "run")
            found.append((source, diagnosis_of(run, inspection), is_empty(run)))
    if as_json:
        diagnoses = [{"source": str(source), **diagnosis.document()} for source, diagnosis, _ in found]
        print_document({"version": 2, "diagnoses": diagnoses})
    else:
        for source, diagnosis, nothing in found:
            if len(found) > 1:
                plain_console().print(printable(f"== {source}"), soft_wrap=True)
            if nothing and not diagnosis.findings:
                plain_console().print(
                    "Nothing was recorded, so there is nothing to judge; gatdiag report says what to do"
                )
            else:
                print_diagnosis(diagnosis, "gatdiag diagnose --json")
    end([diagnosis for _, diagnosis, _ in found], fail_on)


def opened(path: Path, scratch: Path) -> tuple[Run, Inspection | None]:
    """A run; or the one made of a checkpoint, with what the checkpoint says."""
    from gatdiag.run import load
    from gatdiag.run.files import META

    if not path.exists():
        raise InputError(f"Expected a run or a checkpoint, but {str(path)!r} does not exist")
    if path.is_dir() and (path / META).exists():
        return load(path), None
    from gatdiag.checkpoint import inspect  # loads torch, which runs do without
    from gatdiag.checkpoint.opening import is_checkpoint

    if path.is_dir() and any(path.glob(f"*/{META}")) and not any(map(is_checkpoint, (path, *path.iterdir()))):
        return load(path), None  # which says that there are runs inside
    inspection = inspect(path, scratch)
    return inspection.run, inspection


def diagnosis_of(run: Run, inspection: Inspection | None) -> Diagnosis:
    """Diagnosis of what `opened` gave."""
    from gatdiag.diagnosis import diagnose

    if inspection is None:
        return diagnose(run)
    from gatdiag.checkpoint import weight_table

    return diagnose(run, weight_table(inspection))


def print_diagnosis(diagnosis: Diagnosis, reasons: str) -> None:
    """Print the lines of a diagnosis; `reasons` is where it is said why checks could not be made."""
    console = plain_console()
    for line in diagnosis.lines(reasons):
        console.print(printable(line), soft_wrap=line.startswith("    "))  # a line to paste stays one


def end(diagnoses: Sequence[Diagnosis], fail_on: Level) -> None:
    """End with status 1 if a finding is as bad as that."""
    levels = [*Level]
    bad = levels[levels.index(fail_on) :]
    if any(finding.severity in bad for diagnosis in diagnoses for finding in diagnosis):
        raise typer.Exit(_FOUND)
