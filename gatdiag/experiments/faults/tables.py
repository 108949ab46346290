"""Results -> a CSV file of each case, and a page of Markdown that counts them, which is printed, too."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.bank import Result
from gatdiag.experiments.faults.cases import FAULTS
from gatdiag.run.files import atomic_write


def save(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], page: Iterable[str]) -> str:
    """Write `NAME.csv`, with these rows, and `NAME.md`, of these lines; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / f"{name}.csv") as part:
        pd.DataFrame(rows).to_csv(part, index=False, lineterminator="\n")
    text = "\n".join(page) + "\n"
    with atomic_write(folder / f"{name}.md") as part:
        part.write_text(text)
    return text


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a table.

    Example:
        >>> print(markdown([{"case": "dead-units-00", "right": 1}]))
        | case | right |
        |---|---|
        | dead-units-00 | 1 |
    """
    lines = [[*rows[0]], *([str(cell).replace("|", "/") for cell in row.values()] for row in rows)] if rows else []
    head, *body = [f"| {' | '.join(line)} |" for line in lines] or ["None."]
    return "\n".join([head, *(["|---" * len(rows[0]) + "|"] if rows else []), *body])


def tally(codes: Iterable[str]) -> str:
    """How often each stands there, the most frequent first.

    Example:
        >>> tally(["lr-too-large", "healthy", "healthy"])
        'healthy 2, lr-too-large'
    """
    return ", ".join(code if count == 1 else f"{code} {count}" for code, count in Counter(codes).most_common())


def save_bank(results: Sequence[Result], folder: Path) -> Iterator[str]:
    """Write `calibration.csv` and `.md`, `held-out.csv` and `.md`: those of which there are results; their pages."""
    for name, is_held_out in (("calibration", False), ("held-out", True)):
        own = [result for result in results if result.case.is_held_out == is_held_out]
        if own:
            yield save(folder, name, [result.row() for result in own], _page(name, own))


def _page(name: str, results: Sequence[Result]) -> Iterator[str]:
    yield f"# Faults, {name} half: what was planted, and what the diagnosis said\n"
    yield "Written by `gatdiag faults`; `gatdiag.experiments.faults` says what is planted, and when a fault counts.\n"
    yield from (f"- {sentence}" for sentence in sentences(results))
    yield f"\n{markdown(confusion(results))}"
    yield f"\n## Missed, and false alarms\n\n{markdown([*_wrong(results)])}"


def confusion(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each cause that was planted; right on controls: neither error nor warning."""
    rows = []
    for cause in [*FAULTS, HEALTHY]:
        own = [result for result in results if result.counts and result.case.cause == cause]
        if own:
            row = {"planted": cause, "cases": len(own), "right": sum(result.is_right for result in own)}
            row["published rules"] = sum(result.verdict.baseline == cause for result in own)
            row["verdict on the others"] = tally(result.verdict.code for result in own if not result.is_right)
            rows.append(row)
    return rows


def sentences(results: Sequence[Result]) -> Iterator[str]:
    """What it comes to."""
    rows = [row for row in confusion(results) if row["planted"] != HEALTHY]
    if rows:
        planted, right, baseline = (sum(row[of] for row in rows) for of in ("cases", "right", "published rules"))
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


def alarms(results: Iterable[Result], *, of_twins: bool) -> tuple[int, int, int, int]:
    """Healthy trainings, and on how many there is an error, a warning, any verdict of the published rules.

    Args:
        results: Of any cases.
        of_twins: The repaired twins of faults that count, in place of the controls.
    """
    said = [
        verdict
        for result in results
        for verdict in [result.twin_verdict if of_twins else result.verdict]
        if result.counts and verdict is not None and (of_twins or result.case.cause == HEALTHY)
    ]
    errors, warned = (sum(verdict.severity == severity for verdict in said) for severity in ("error", "warning"))
    return len(said), errors, warned, sum(verdict.baseline != HEALTHY for verdict in said)


def _wrong(results: Sequence[Result]) -> Iterator[dict[str, str]]:
    for result in results:
        for name, verdict, is_wrong in (
            (result.case.name, result.verdict, not result.is_right),
            (f"{result.case.name}, repaired", result.twin_verdict, result.twin_verdict and result.twin_verdict.alarm),
        ):
            if result.counts and verdict is not None and is_wrong:
                said = {"verdict": verdict.code, "severity": verdict.severity, "all findings": " ".join(verdict.codes)}
                yield {"case": name, **said}
