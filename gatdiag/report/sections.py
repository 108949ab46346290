"""The parts of a page: one run, and the comparison of several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatdiag.diagnosis import Diagnosis, diagnose
from gatdiag.figures import figures_for, not_recorded
from gatdiag.names import join_names, short
from gatdiag.report.plots import FigureBlock, figure_block
from gatdiag.report.story import loss_text, metric, notes_text, story, warnings
from gatdiag.report.tables import Cell, Table, run_tables, settings_tables
from gatdiag.run import Run
from gatdiag.summary import is_empty, results, training_facts

MOST_IN_FULL = 6  # runs with all their figures on one page; of more, only what comes before the figures
_OVERVIEW = "overview"


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
    figures: Sequence[FigureBlock]
    remarks: Sequence[str]
    tables: Sequence[Table]
    settings: Sequence[Table]


def run_sections(runs: Sequence[Run]) -> list[RunSection]:
    """Each run, with overviews in the same colors; of many runs no figure but these and what verdicts are seen in."""
    recorded = [run for run in runs if not is_empty(run)]
    shared = next((one.shared_options(recorded) for one in figures_for(recorded[:1]) if one.name == _OVERVIEW), {})
    overview = {"widths": ("double", "single") if len(runs) == 1 else ("single",), **shared}
    in_full = len(runs) <= MOST_IN_FULL
    return [_section(run, f"run-{place}", overview, in_full=in_full) for place, run in enumerate(runs, start=1)]


def _section(run: Run, anchor: str, options: Mapping[str, Any], *, in_full: bool) -> RunSection:
    """One run; the options are those of its overview."""
    own = {} if is_empty(run) else {figure.name: figure for figure in figures_for([run])}
    diagnosis = None if is_empty(run) else diagnose(run)
    seen = diagnosis.verdict.figure if diagnosis else ""
    drawn = {name: one for name, one in own.items() if in_full or name in (_OVERVIEW, seen)}
    blocks = {
        name: figure_block(one, [run], anchor, **(options if name == _OVERVIEW else {})) for name, one in drawn.items()
    }
    remarks = [
        f"No figure {own[name].title!r}: {not_recorded(*own[name].needs)}." for name in blocks if not blocks[name]
    ]
    if not in_full:
        remarks = [f"More than {MOST_IN_FULL} runs are on this page: a report of this run alone has all its figures."]
    overview = blocks.pop(_OVERVIEW, None)
    shown = blocks.pop(seen, None)
    return RunSection(
        anchor=anchor,
        name=short(run.name),
        warnings=warnings(run),
        story=story(run),
        diagnosis=diagnosis,
        shown=shown,
        notes=notes_text(run),
        overview=overview,
        figures=[block for block in blocks.values() if block],
        remarks=remarks,
        tables=run_tables(run, f"{anchor}-tables"),
        settings=settings_tables(run, f"{anchor}-settings"),
    )


def comparison(runs: Sequence[Run], sections: Sequence[RunSection]) -> dict[str, Any]:
    """Several runs, each with its section, beside each other: what templates/parts.html shows of them."""
    unfinished = [short(run.name) for run in runs if run.status != "finished"]
    text = f"Without a regular end: {join_names(unfinished)}. What was recorded of them is shown."
    left = [short(run.name) for run in runs[MOST_IN_FULL:]]
    have = "has its overview" if len(left) == 1 else "have theirs"
    left_out = f"The first {MOST_IN_FULL} of {len(runs)} runs are shown; {join_names(left)} {have} below."
    blocks = (figure_block(figure, runs, "comparison") for figure in figures_for(runs))
    return {
        "warnings": [text] if unfinished else [],
        "story": [*_in_short(runs, sections)],
        "table": comparison_table(runs, "comparison-table"),
        "overviews": [(each.name, each.overview) for each in sections[:MOST_IN_FULL] if each.overview],
        "left_out": left_out if left else "",
        "figures": [block for block in blocks if block],
    }


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
        parts = [loss_text(facts) if facts.loss and facts.steps else "No loss was logged."]
        if facts.metric and facts.best_step is not None:
            best = metric(facts.metric, facts.best_metric)
            parts.append(f"Best {short(facts.metric)}: {best}, at step {facts.best_step:,}.")
        title = section.diagnosis.verdict.title
        yield f"{short(run.name)}: {' '.join(parts)} Verdict: {title[:1].lower()}{title[1:]}."
    left = len(runs) - MOST_IN_FULL
    if left > 0:
        yield f"And {left} more run{'s' * (left != 1)}: see the table."
