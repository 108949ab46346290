"""Results -> a CSV file with a row for each case, and a summary in Markdown."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pandas as pd

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.bank import ALARMS
from gatdiag.experiments.faults.cases import CALIBRATION
from gatdiag.experiments.markdown import table as markdown
from gatdiag.run.files import atomic_write

REPAIRED: Final = ", repaired"
"""Behind the name of a case: its twin."""


def write_table(folder: Path, name: str, table: pd.DataFrame, describe: Callable[[pd.DataFrame], Iterable[str]]) -> str:
    """Write a table as `NAME.csv`, and its description, from paragraphs, as `NAME.md`; returns the description."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / f"{name}.csv") as part:
        table.to_csv(part, index=False, lineterminator="\n")
    text = "\n\n".join(describe(table)) + "\n"
    with atomic_write(folder / f"{name}.md") as part:
        part.write_text(text)
    return text


def count_codes(codes: Iterable[str]) -> str:
    """Codes with their counts, the most frequent first.

    Example:
        >>> count_codes(["lr-too-large", "healthy", "healthy"])
        'healthy 2, lr-too-large'
    """
    return ", ".join(code if count == 1 else f"{code} {count}" for code, count in Counter(codes).most_common())


def split_halves(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows for calibration and the held-out rows, each if there are any."""
    if len(table):
        names = table["held_out"].map({False: "calibration", True: "held-out"})
        yield from ((str(name), half) for name, half in table.groupby(names))


def group_by_cause(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each planted cause, in the order of the bank."""
    groups = {cause: table[table["planted"] == cause] for cause in CALIBRATION}
    yield from ((cause, rows) for cause, rows in groups.items() if len(rows))


def write_bank(results: pd.DataFrame, folder: Path) -> Iterator[str]:
    """Write `calibration.csv` and `.md`, `held-out.csv` and `.md`, each if it has rows; yields the Markdown."""
    for name, half in split_halves(results):
        yield write_table(folder, name, half, partial(_paragraphs, name))


def _paragraphs(name: str, results: pd.DataFrame) -> Iterator[str]:
    yield f"# Faults, {name} half: planted causes and verdicts"
    yield "Written by `gatdiag faults`; `gatdiag.experiments.faults` explains what is planted and when a fault counts."
    yield "\n".join(f"- {sentence}" for sentence in summarize(results))
    yield markdown(confusion_table(results))
    yield "## Missed faults and false alarms"
    yield markdown(_wrong(results[results["counts"]]))


def confusion_table(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each planted cause; a control is right if there is neither an error nor a warning."""
    rows = [
        {
            "planted": cause,
            "cases": len(own),
            "right": own["right"].sum(),
            "published rules": (own["published_rules"] == cause).sum(),
            "verdict on the others": count_codes(own["verdict"][~own["right"]]),
        }
        for cause, own in group_by_cause(results[results["counts"]])
    ]
    return pd.DataFrame(rows)


def summarize(results: pd.DataFrame) -> Iterator[str]:
    """Sentences with the totals."""
    counted = results[results["counts"]]
    faults, controls = counted[counted["planted"] != HEALTHY], counted[counted["planted"] == HEALTHY]
    if len(faults):
        right, rules = faults["right"].sum(), (faults["published_rules"] == faults["planted"]).sum()
        yield (
            f"Right verdict: {right} of {len(faults)} ({right / len(faults):.0%}); "
            f"published rules: {rules} ({rules / len(faults):.0%})"
        )
    for name, healthy, prefix in (("healthy controls", controls, ""), ("repaired twins", faults, "twin_")):
        if len(healthy):
            errors, warned = ((healthy[f"{prefix}severity"] == severity).sum() for severity in ALARMS)
            flagged = (healthy[f"{prefix}published_rules"] != HEALTHY).sum()
            yield (
                f"Of {len(healthy)} {name}: {errors} with an error, {warned} with a warning; published rules: {flagged}"
            )
    if excluded := [*results["case"][~results["counts"]]]:
        yield f"Not counted, since the repaired twin does not train clearly better: {', '.join(excluded)}"


def _wrong(counted: pd.DataFrame) -> pd.DataFrame:
    """Faults and controls with a wrong verdict, and twins with an error or a warning."""
    names = ["case", "verdict", "severity", "all_findings"]
    flagged = counted[counted["twin_severity"].isin(ALARMS)]
    twins = pd.DataFrame({name: flagged[f"twin_{name}"] for name in names[1:]})
    twins.insert(0, "case", flagged["case"] + REPAIRED)
    return pd.concat([counted[~counted["right"]][names], twins]).sort_index(kind="stable")
