"""Results -> a CSV file of each case, and a page of Markdown that counts them."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.bank import Result, Tally, alarms, tallies
from gatdiag.run.files import atomic_write


def write_tables(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write `calibration.csv` and `.md`, `held-out.csv` and `.md`: those of which there are results.

    Returns:
        The CSV files.
    """
    written = []
    for name, is_held_out in (("calibration", False), ("held-out", True)):
        own = [result for result in results if result.case.is_held_out == is_held_out]
        if not own:
            continue
        written.append(write_table(folder, name, [result.row() for result in own], _page(name, own)))
    return written


def write_table(folder: Path, name: str, rows: Sequence[Mapping[str, object]], page: Iterable[str]) -> Path:
    """Write `NAME.csv`, with these rows, and `NAME.md`, of these lines; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    with atomic_write(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]] if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with atomic_write(path.with_suffix(".md")) as part:
        part.write_text("\n".join(page) + "\n")
    return path


def said(tally: Tally) -> str:
    """Verdicts on those whose cause was not named.

    Example:
        >>> said(Tally("dead-units", 4, 1, (("healthy", 2), ("lr-too-large", 1)), 0))
        'healthy 2, lr-too-large'
    """
    return ", ".join(code if count == 1 else f"{code} {count}" for code, count in tally.others)


def sentences(results: Sequence[Result]) -> Iterator[str]:
    """What it comes to."""
    rows = [tally for tally in tallies(results) if tally.cause != HEALTHY]
    planted, right, baseline = (sum(column) for column in zip(*map(_numbers, rows), strict=True)) if rows else (0, 0, 0)
    if planted:
        yield (
            f"Right cause first: {right} of {planted} ({right / planted:.0%}); "
            f"published rules: {baseline} ({baseline / planted:.0%})"
        )
    for name, of_twins in (("healthy controls", False), ("repaired twins", True)):
        number, errors, warned, flagged = alarms(results, of_twins=of_twins)
        if number:
            yield f"Of {number} {name}: {errors} with an error, {warned} with a warning; published rules: {flagged}"
    idle = [result.case.name for result in results if not result.counts]
    if idle:
        yield f"Do not count, for the twin does not train clearly better: {', '.join(idle)}"


def _numbers(tally: Tally) -> tuple[int, int, int]:
    return tally.planted, tally.right, tally.baseline


def _page(name: str, results: Sequence[Result]) -> Iterator[str]:
    yield f"# Faults, {name} half: what was planted, and what the diagnosis said\n"
    yield "Written by `gatdiag faults`; `gatdiag.experiments.faults` says what is planted, and when a fault counts."
    yield from (f"- {sentence}" for sentence in sentences(results))
    yield "\n| planted | cases | right | published rules | verdict on the others |\n|---|--:|--:|--:|---|"
    for row in tallies(results):
        yield f"| {row.cause} | {row.planted} | {row.right} | {row.baseline} | {said(row)} |"
    counted = [result for result in results if result.counts]
    yield "\n## Missed, and false alarms\n\n| case | verdict | severity | all findings |\n|---|---|---|---|"
    for result in counted:
        if not result.is_right:
            yield _line(result.case.name, result.verdict.code, result.verdict.severity, result.verdict.codes)
        if result.twin_verdict is not None and result.twin_verdict.alarm:
            twin = result.twin_verdict
            yield _line(f"{result.case.name}, repaired", twin.code, twin.severity, twin.codes)


def _line(*cells: str | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell if isinstance(cell, str) else ' '.join(cell) for cell in cells)} |"
