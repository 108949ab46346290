"""Results -> tables: a CSV file with a row for each case, and a page with the totals in Markdown."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from gatdiag.diagnosis import HEALTHY
from gatdiag.run.files import atomic_write
from reports.papers.markdown import table as markdown
from tests.bank.bank import ALARMS
from tests.bank.cases import CAUSES

REPAIRED: Final = ", repaired"
"""Behind the name of a case: its twin."""


@dataclass(frozen=True)
class Table:
    """Results and what they come to.

    Attributes:
        name: Place below `reports/`, such as ``diagnosis/held-out``.
        title: Headline of the page.
        rows: All results.
        paragraphs: The page below its headline.
    """

    name: str
    title: str
    rows: pd.DataFrame
    paragraphs: Iterable[str]

    def write(self, folder: Path, origin: str) -> str:
        """Write `NAME.csv` and `NAME.md`; returns the page, which says its origin."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        page = "\n\n".join([f"# {self.title}", origin, *self.paragraphs]) + "\n"
        with atomic_write(path.with_suffix(".csv")) as part:
            self.rows.to_csv(part, index=False, lineterminator="\n")
        with atomic_write(path.with_suffix(".md")) as part:
            part.write_text(page)
        return page


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
    groups = {cause: table[table["planted"] == cause] for cause in CAUSES}
    yield from ((cause, rows) for cause, rows in groups.items() if len(rows))


def verdict_tables(results: pd.DataFrame) -> Iterator[Table]:
    """The verdicts of each half that has rows."""
    for name, half in split_halves(results):
        paragraphs = [
            "\n".join(f"- {sentence}" for sentence in summarize(half)),
            markdown(confusion_table(half)),
            "## Missed faults and false alarms",
            markdown(_wrong(half[half["counts"]])),
        ]
        yield Table(f"diagnosis/{name}", f"Faults, {name} half: planted causes and verdicts", half, paragraphs)


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
    names = ["case", "verdict", "severity", "findings"]
    flagged = counted[counted["twin_severity"].isin(ALARMS)]
    twins = pd.DataFrame({name: flagged[f"twin_{name}"] for name in names[1:]})
    twins.insert(0, "case", flagged["case"] + REPAIRED)
    return pd.concat([counted[~counted["right"]][names], twins]).sort_index(kind="stable")
