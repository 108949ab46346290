"""The parts of a page: one run, and the comparison of several."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gatdiag.diagnosis import Finding, examine
from gatdiag.diagnosis.values import SHARE
from gatdiag.diagnosis.vanishing_gradients import weakest_gradient
from gatdiag.diagnosis.wording import count, number, percent
from gatdiag.figures import Figure, figures_for, missing, not_recorded
from gatdiag.names import listed, short
from gatdiag.report.plots import FigureBlock, FigureGroup, figure_block, figure_groups
from gatdiag.report.story import Stat, anything, loss_text, metric, note_facts, stats, story, warnings
from gatdiag.report.tables import (
    Cell,
    Column,
    Table,
    called,
    gradient_table,
    law_tables,
    layer_table,
    parameter_table,
    settings_tables,
    value,
    whole,
    words,
)
from gatdiag.run import Run
from gatdiag.summary import compare, score_label, training_facts

MOST_IN_FULL = 6  # runs with all their figures on one page; of more, only what comes before the figures


@dataclass(frozen=True)
class RunSection:
    """One run on the page, in the order in which it is read."""

    anchor: str
    name: str
    warnings: tuple[str, ...]
    story: tuple[str, ...]
    stats: tuple[Stat, ...]
    notable: tuple[Finding, ...]
    plain: tuple[Finding, ...]
    checked: bool
    overview: FigureBlock | None
    groups: tuple[FigureGroup, ...]
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]
    settings: tuple[Table, ...]


@dataclass(frozen=True)
class Comparison:
    """Several runs beside each other."""

    warnings: tuple[str, ...]
    story: tuple[str, ...]
    table: Table
    overviews: tuple[tuple[str, FigureBlock], ...]
    left_out: str
    groups: tuple[FigureGroup, ...]


def run_section(run: Run, anchor: str, *, in_full: bool = True) -> RunSection:
    """One run.

    Args:
        run: The run.
        anchor: What the identifiers of its section begin with.
        in_full: Whether to draw more than the overview.
    """
    own = [figure for figure in figures_for([run]) if figure.per == "run"] if anything(run) else []
    known = [figure for figure in own if set(figure.needs) != {*missing(figure, [run])}]
    overviews = [figure for figure in known if figure.group == "overview"]
    others = [figure for figure in known if figure.group != "overview"] if in_full else []
    facts = _facts(run)
    return RunSection(
        anchor=anchor,
        name=short(run.name),
        warnings=warnings(run),
        story=story(run),
        stats=stats(run),
        notable=tuple(fact for fact in facts if fact.is_problem),
        plain=tuple(fact for fact in facts if not fact.is_problem),
        checked=len(facts) > len(tuple(note_facts(run))),
        overview=figure_block(overviews[0], [run], anchor, ("double", "single")) if overviews else None,
        groups=figure_groups(others, [run], anchor),
        remarks=_remarks([figure for figure in own if figure not in known], in_full=in_full),
        tables=_tables(run, f"{anchor}-tables"),
        settings=settings_tables(run, f"{anchor}-settings"),
    )


def _remarks(absent: Sequence[Figure], *, in_full: bool) -> tuple[str, ...]:
    if not in_full:
        return (f"More than {MOST_IN_FULL} runs are on this page: a report of this run alone has all its figures.",)
    return tuple(f"No figure {figure.title!r}: {not_recorded(*figure.needs)}." for figure in absent)


def comparison(runs: Sequence[Run]) -> Comparison:
    """What several runs show together."""
    figures = [figure for figure in figures_for(runs) if figure.per == "comparison"]
    unfinished = [short(run.name) for run in runs if run.status != "finished"]
    text = f"Without a regular end: {listed(map(short, unfinished))}. What was recorded of them is shown."
    return Comparison(
        warnings=(text,) if unfinished else (),
        story=_contrast(runs),
        table=comparison_table(runs, "comparison-table"),
        overviews=tuple(_beside_each_other(runs)),
        left_out=_left_out(runs),
        groups=figure_groups(figures, runs, "comparison"),
    )


def _beside_each_other(runs: Sequence[Run]) -> Iterator[tuple[str, FigureBlock]]:
    """The overview of each run, with the run's name; all in the same colors."""
    shown = [run for run in runs[:MOST_IN_FULL] if anything(run)]
    overviews = [figure for figure in figures_for(shown[:1]) if figure.group == "overview" and figure.per == "run"]
    shared = [figure.shared(shown) for figure in overviews]
    for place, run in enumerate(shown):
        for figure, options in zip(overviews, shared, strict=True):
            yield short(run.name), figure_block(figure, [run], f"comparison-{place}", **options)


def _left_out(runs: Sequence[Run]) -> str:
    """How many overviews are not shown; "" if all are."""
    left = runs[MOST_IN_FULL:]
    if not left:
        return ""
    where = f"{listed(short(run.name) for run in left)} {'has its overview' if len(left) == 1 else 'have theirs'} below"
    return f"The first {MOST_IN_FULL} of {len(runs)} runs are shown; {where}."


def comparison_table(runs: Sequence[Run], anchor: str) -> Table:
    """One row a run; columns without a value in any run are left out."""
    frame = compare(runs)
    score = score_label(frame["score"])
    labels = {
        "accuracy_train": f"train {score}", "accuracy_val": f"validation {score}", "accuracy_test": f"test {score}",
        "best_step": "best step", "first_loss": "first loss", "best_loss": "best loss", "last_loss": "last loss",
        "depth": "depth", "width": "width", "steps": "recorded steps",
    }  # fmt: skip
    ended = any(run.status != "finished" for run in runs)
    cells = {name: [_entry(run, name, entry) for run, entry in zip(runs, frame[name], strict=True)] for name in labels}
    kept = [name for name in labels if any(cell.text for cell in cells[name])]
    rows = tuple(
        (called(run.name), *[words(run.status)] * ended, *(cells[name][place] for name in kept))
        for place, run in enumerate(runs)
    )
    columns = (Column("run"), *[Column("status")] * ended, *(Column(labels[name], True) for name in kept))
    scored = any(name.startswith("accuracy") for name in kept)
    note = f"The {score} is that at the best step. Steps are counted from 0." if scored else ""
    return Table("Runs in numbers", anchor, columns, rows, note)


def _entry(run: Run, column: str, entry: float | None) -> Cell:
    """One number of the comparison; a loss that is NaN although it was logged is said to be that."""
    known = float("nan") if entry is None else float(entry)
    if math.isfinite(known) and known.is_integer():
        return whole(int(known))
    logged = column.endswith("loss") and training_facts(run).loss is not None
    return value(None if math.isnan(known) and not logged else known)


def _facts(run: Run) -> tuple[Finding, ...]:
    return (*examine(run), *note_facts(run)) if anything(run) else ()


def _tables(run: Run, anchor: str) -> tuple[Table, ...]:
    tables = (
        layer_table(run, f"{anchor}-layers"),
        gradient_table(run, f"{anchor}-gradients"),
        parameter_table(run, f"{anchor}-parameters"),
    )
    return tuple(table for table in (*tables, *law_tables(run, f"{anchor}-laws")) if table.rows)


def _contrast(runs: Sequence[Run]) -> tuple[str, ...]:
    """A few sentences a run, so that the difference can be read before it is seen; then that of the gradients."""
    left = len(runs) - MOST_IN_FULL
    rest = [f"And {left} more run{'s' * (left != 1)}: see the table."] if left > 0 else []
    return (*(_in_short(run) for run in runs[:MOST_IN_FULL]), *rest, *_gradient_contrast(runs))


def _gradient_contrast(runs: Sequence[Run]) -> Iterator[str]:
    """The runs with the smallest and the largest gradients against each other."""
    known = {run.name: gradient for run in runs if (gradient := weakest_gradient(run)) is not None}
    if len(known) < 2:
        return
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    if not math.isfinite(known[high]):
        return
    factor = f", {number(known[high] / known[low])} times as large" if known[low] else ""
    yield (
        f"Gradients relative to the weights, smallest over layers, over the first {percent(SHARE)} of the "
        f"steps: {number(known[low])} in {short(low)}, {number(known[high])} in {short(high)}{factor}."
    )


def _in_short(run: Run) -> str:
    facts = training_facts(run)
    if not anything(run):
        return f"{short(run.name)}: nothing was recorded."
    parts = [loss_text(short(facts.loss), facts) if facts.loss and facts.steps else "No loss was logged."]
    if facts.metric and facts.best_step is not None:
        best = metric(facts.metric, facts.best_metric)
        parts.append(f"Best {short(facts.metric)}: {best}, at step {count(facts.best_step)}.")
    standing = [fact.title[:1].lower() + fact.title[1:] for fact in _facts(run) if fact.is_problem]
    return f"{short(run.name)}: {' '.join(parts)} Stands out: {', '.join(standing) or 'nothing'}."
