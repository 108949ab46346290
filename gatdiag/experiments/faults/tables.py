"""Results -> a CSV file of each case, and a page of Markdown that counts them, which is printed, too."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from gatdiag.diagnosis import HEALTHY
from gatdiag.experiments.faults.bank import ALARMS
from gatdiag.experiments.faults.cases import CALIBRATION
from gatdiag.experiments.markdown import table as markdown
from gatdiag.run.files import atomic_write


def save(folder: Path, name: str, table: pd.DataFrame, page: Iterable[str]) -> str:
    """Write the table as `NAME.csv`, and `NAME.md`, of these paragraphs; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / f"{name}.csv") as part:
        table.to_csv(part, index=False, lineterminator="\n")
    text = "\n\n".join(page) + "\n"
    with atomic_write(folder / f"{name}.md") as part:
        part.write_text(text)
    return text


def tally(codes: Iterable[str]) -> str:
    """How often each stands there, the most frequent first.

    Example:
        >>> tally(["lr-too-large", "healthy", "healthy"])
        'healthy 2, lr-too-large'
    """
    return ", ".join(code if count == 1 else f"{code} {count}" for code, count in Counter(codes).most_common())


def halves(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows for calibration and those that are held out, if there are any."""
    if len(table):
        names = table["held_out"].map({False: "calibration", True: "held-out"})
        yield from ((str(name), half) for name, half in table.groupby(names))


def by_cause(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each cause that was planted, in the order of the bank."""
    causes = {cause: table[table["planted"] == cause] for cause in CALIBRATION}
    yield from ((cause, own) for cause, own in causes.items() if len(own))


def save_bank(results: pd.DataFrame, folder: Path) -> Iterator[str]:
    """Write `calibration.csv` and `.md`, `held-out.csv` and `.md`: those of which there are results; their pages."""
    for name, half in halves(results):
        yield save(folder, name, half, _page(name, half))


def _page(name: str, results: pd.DataFrame) -> Iterator[str]:
    yield f"# Faults, {name} half: what was planted, and what the diagnosis said"
    yield "Written by `gatdiag faults`; `gatdiag.experiments.faults` says what is planted, and when a fault counts."
    yield "\n".join(f"- {sentence}" for sentence in sentences(results))
    yield markdown(confusion(results))
    yield "## Missed, and false alarms"
    yield markdown(_wrong(results[results["counts"]]))


def confusion(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each cause that was planted; right on controls: neither error nor warning."""
    rows = [
        {
            "planted": cause,
            "cases": len(own),
            "right": own["right"].sum(),
            "published rules": (own["published_rules"] == cause).sum(),
            "verdict on the others": tally(own["verdict"][~own["right"]]),
        }
        for cause, own in by_cause(results[results["counts"]])
    ]
    return pd.DataFrame(rows)


def sentences(results: pd.DataFrame) -> Iterator[str]:
    """What it comes to."""
    counted = results[results["counts"]]
    faults, controls = counted[counted["planted"] != HEALTHY], counted[counted["planted"] == HEALTHY]
    if len(faults):
        right, rules = faults["right"].sum(), (faults["published_rules"] == faults["planted"]).sum()
        yield (
            f"Right cause first: {right} of {len(faults)} ({right / len(faults):.0%}); "
            f"published rules: {rules} ({rules / len(faults):.0%})"
        )
    for name, healthy, of in (("healthy controls", controls, ""), ("repaired twins", faults, "twin_")):
        if len(healthy):
            errors, warned = ((healthy[f"{of}severity"] == severity).sum() for severity in ALARMS)
            flagged = (healthy[f"{of}published_rules"] != HEALTHY).sum()
            yield (
                f"Of {len(healthy)} {name}: {errors} with an error, {warned} with a warning; published rules: {flagged}"
            )
    if idle := [*results["case"][~results["counts"]]]:
        yield f"Do not count, for the twin does not train clearly better: {', '.join(idle)}"


def _wrong(counted: pd.DataFrame) -> pd.DataFrame:
    """Each faulty training or control that is not judged rightly, and each twin with an error or a warning."""
    names = ["case", "verdict", "severity", "all_findings"]
    of_twins = counted[counted["twin_severity"].isin(ALARMS)]
    twins = pd.DataFrame({name: of_twins[f"twin_{name}"] for name in names[1:]})
    twins.insert(0, "case", of_twins["case"] + ", repaired")
    return pd.concat([counted[~counted["right"]][names], twins]).sort_index(kind="stable")
