"""The parts of a page: one run, and the comparison of several."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatdiag.diagnosis import Diagnosis, diagnose
from gatdiag.diagnosis.wording import number
from gatdiag.figures import Figure, figures_for, missing, not_recorded
from gatdiag.names import listed, short
from gatdiag.report.plots import FigureBlock, FigureGroup, Width, figure_block, figure_groups
from gatdiag.report.story import anything, loss_text, metric, notes_text, story, warnings
from gatdiag.report.tables import (
    Cell,
    Table,
    gradient_table,
    law_tables,
    layer_table,
    parameter_table,
    settings_tables,
)
from gatdiag.run import Run
from gatdiag.summary import FEATURES, early_median, results, role_series, training_facts

MOST_IN_FULL = 6  # runs with all their figures on one page; of more, only what comes before the figures


@dataclass(frozen=True)
class RunSection:
    """One run on the page, in the order in which it is read."""

    anchor: str
    name: str
    warnings: Sequence[str]
    story: Sequence[str]
    diagnosis: Diagnosis | None
    shown: FigureBlock | None  # what the verdict's evidence is seen in, if that is not the overview
    notes: str
    overview: FigureBlock | None
    groups: Sequence[FigureGroup]
    remarks: Sequence[str]
    tables: Sequence[Table]
    settings: Sequence[Table]


@dataclass(frozen=True)
class Comparison:
    """Several runs beside each other."""

    warnings: Sequence[str]
    story: Sequence[str]
    table: Table
    overviews: Sequence[tuple[str, FigureBlock]]
    left_out: str
    groups: Sequence[FigureGroup]


def run_sections(runs: Sequence[Run]) -> list[RunSection]:
    """Each run, with overviews in the same colors; of many runs no other figure."""
    recorded = [run for run in runs if anything(run)]
    overviews = [figure for figure in figures_for(recorded[:1]) if figure.group == "overview" and figure.per == "run"]
    shared = {figure.name: figure.shared(recorded) for figure in overviews}
    widths: Sequence[Width] = ("double", "single") if len(runs) == 1 else ("single",)
    return [
        run_section(run, f"run-{place}", in_full=len(runs) <= MOST_IN_FULL, shared=shared, widths=widths)
        for place, run in enumerate(runs, start=1)
    ]


def run_section(
    run: Run,
    anchor: str,
    *,
    in_full: bool = True,
    shared: Mapping[str, Mapping[str, Any]] | None = None,
    widths: Sequence[Width] = ("double", "single"),
) -> RunSection:
    """One run.

    Args:
        run: The run.
        anchor: What the identifiers of its section begin with.
        in_full: Draw more than the overview.
        shared: Name of a figure -> options of its data, that it can be compared with those of other runs.
        widths: Of the overview.
    """
    own = [figure for figure in figures_for([run]) if figure.per == "run"] if anything(run) else []
    known = [figure for figure in own if set(figure.needs) != {*missing(figure, [run])}]
    overview = next((figure for figure in known if figure.group == "overview"), None)
    diagnosis = diagnose(run) if anything(run) else None
    options = (shared or {}).get(overview.name, {}) if overview else {}
    wanted = diagnosis.verdict.figure if diagnosis else ""
    shown = next((figure for figure in known if figure.name == wanted and figure is not overview), None)
    others = [figure for figure in known if figure not in (overview, shown)] if in_full else []
    return RunSection(
        anchor=anchor,
        name=short(run.name),
        warnings=warnings(run),
        story=story(run),
        diagnosis=diagnosis,
        shown=figure_block(shown, [run], anchor) if shown else None,
        notes=notes_text(run),
        overview=figure_block(overview, [run], anchor, widths, **options) if overview else None,
        groups=figure_groups(others, [run], anchor),
        remarks=_remarks([figure for figure in own if figure not in known], in_full=in_full),
        tables=_tables(run, f"{anchor}-tables"),
        settings=settings_tables(run, f"{anchor}-settings"),
    )


def _remarks(absent: Sequence[Figure], *, in_full: bool) -> list[str]:
    if not in_full:
        return [f"More than {MOST_IN_FULL} runs are on this page: a report of this run alone has all its figures."]
    return [f"No figure {figure.title!r}: {not_recorded(*figure.needs)}." for figure in absent]


def _tables(run: Run, anchor: str) -> list[Table]:
    tables = [
        layer_table(run, f"{anchor}-layers"),
        gradient_table(run, f"{anchor}-gradients"),
        parameter_table(run, f"{anchor}-parameters"),
        *law_tables(run, f"{anchor}-laws"),
    ]
    return [table for table in tables if table.rows]


def comparison(runs: Sequence[Run], sections: Sequence[RunSection]) -> Comparison:
    """Several runs, each with its section, beside each other."""
    unfinished = [short(run.name) for run in runs if run.status != "finished"]
    text = f"Without a regular end: {listed(unfinished)}. What was recorded of them is shown."
    left = [short(run.name) for run in runs[MOST_IN_FULL:]]
    have = "has its overview" if len(left) == 1 else "have theirs"
    left_out = f"The first {MOST_IN_FULL} of {len(runs)} runs are shown; {listed(left)} {have} below."
    return Comparison(
        warnings=[text] if unfinished else [],
        story=[*_in_short(runs, sections), *_gradient_contrast(runs)],
        table=comparison_table(runs, "comparison-table"),
        overviews=[(each.name, each.overview) for each in sections[:MOST_IN_FULL] if each.overview],
        left_out=left_out if left else "",
        groups=figure_groups([f for f in figures_for(runs) if f.per == "comparison"], runs, "comparison"),
    )


def comparison_table(runs: Sequence[Run], anchor: str) -> Table:
    """One row per run; columns without a value in any run are left out."""
    columns: dict[str, Sequence[Cell]] = {"run": [short(run.name, 80) for run in runs]}
    if any(run.status != "finished" for run in runs):
        columns["status"] = [run.status for run in runs]
    columns |= results(runs)
    note = "Scores are those at the best step. Steps are counted from 0." if "best step" in columns else ""
    return Table("Runs in numbers", anchor, [*zip(*columns.values(), strict=True)], [*columns], note)


def _in_short(runs: Sequence[Run], sections: Sequence[RunSection]) -> Iterator[str]:
    """A few sentences per run, so that the difference can be read before it is seen."""
    for run, section in list(zip(runs, sections, strict=True))[:MOST_IN_FULL]:
        facts = training_facts(run)
        if section.diagnosis is None:
            yield f"{short(run.name)}: nothing was recorded."
            continue
        parts = [loss_text(short(facts.loss), facts) if facts.loss and facts.steps else "No loss was logged."]
        if facts.metric and facts.best_step is not None:
            best = metric(facts.metric, facts.best_metric)
            parts.append(f"Best {short(facts.metric)}: {best}, at step {facts.best_step:,}.")
        title = section.diagnosis.verdict.title
        yield f"{short(run.name)}: {' '.join(parts)} Verdict: {title[:1].lower()}{title[1:]}."
    left = len(runs) - MOST_IN_FULL
    if left > 0:
        yield f"And {left} more run{'s' * (left != 1)}: see the table."


def _gradient_contrast(runs: Sequence[Run]) -> Iterator[str]:
    """The runs with the smallest and the largest gradients against each other."""
    known = {run.name: gradient for run in runs if (gradient := _weakest_gradient(run)) is not None}
    if len(known) < 2:
        return
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    if not math.isfinite(known[high]):
        return
    factor = f", {number(known[high] / known[low])} times as large" if known[low] else ""
    yield (
        f"Gradients relative to the weights, smallest over layers, over the first 10 % of the "
        f"steps: {number(known[low])} in {short(low)}, {number(known[high])} in {short(high)}{factor}."
    )


def _weakest_gradient(run: Run) -> float | None:
    """The smallest relative gradient norm of a layer early in the run; None if it was not recorded.

    Late in the run that of a network that has learned is small because its loss is.
    """
    return min(early_median(role_series(run, "relative_gradient_norm", FEATURES)).values(), default=None)
