"""The sections of a page: one run, and the comparison of several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatdiag.diagnosis import Diagnosis, diagnose
from gatdiag.figures import figures_for, not_recorded
from gatdiag.names import join_names, short
from gatdiag.report.plots import FigureBlock, figure_block
from gatdiag.report.story import describe_loss, format_metric, recorder_notes, run_warnings, story
from gatdiag.report.tables import Cell, Table, run_tables, settings_tables
from gatdiag.run import Run
from gatdiag.summary import is_empty, results, training_facts

MAX_FULL_RUNS = 6  # on one page; with more, runs are shown without their figures
_OVERVIEW = "overview"


@dataclass(frozen=True)
class RunSection:
    """One run on the page, in reading order."""

    anchor: str
    name: str
    warnings: Sequence[str]
    story: Sequence[str]
    diagnosis: Diagnosis | None
    verdict_figure: FigureBlock | None  # shows the verdict's evidence; None if that is the overview
    notes: str
    overview: FigureBlock | None
    figures: Sequence[FigureBlock]
    remarks: Sequence[str]
    tables: Sequence[Table]
    settings: Sequence[Table]


def run_sections(runs: Sequence[Run]) -> list[RunSection]:
    """One section per run, with comparable overviews; of many runs, only those and the figures of the verdicts."""
    recorded = [run for run in runs if not is_empty(run)]
    shared = next((one.shared_options(recorded) for one in figures_for(recorded[:1]) if one.name == _OVERVIEW), {})
    overview = {"widths": ("double", "single") if len(runs) == 1 else ("single",), **shared}
    in_full = len(runs) <= MAX_FULL_RUNS
    return [_section(run, f"run-{place}", overview, in_full=in_full) for place, run in enumerate(runs, start=1)]


def _section(run: Run, anchor: str, options: Mapping[str, Any], *, in_full: bool) -> RunSection:
    """The section of one run; the options are those of its overview."""
    own = {} if is_empty(run) else {figure.name: figure for figure in figures_for([run])}
    diagnosis = None if is_empty(run) else diagnose(run)
    verdict_name = diagnosis.verdict.figure if diagnosis is not None else ""
    drawn = {name: one for name, one in own.items() if in_full or name in (_OVERVIEW, verdict_name)}
    blocks = {
        name: figure_block(one, [run], anchor, **(options if name == _OVERVIEW else {})) for name, one in drawn.items()
    }
    remarks = [
        f"No figure {own[name].title!r}: {not_recorded(*own[name].needs)}." for name in blocks if not blocks[name]
    ]
    if not in_full:
        remarks = [f"This page has more than {MAX_FULL_RUNS} runs: report this run alone to see all its figures."]
    if diagnosis is not None:
        remarks += diagnosis.remarks
    overview = blocks.pop(_OVERVIEW, None)
    verdict_figure = blocks.pop(verdict_name, None)
    return RunSection(
        anchor=anchor,
        name=short(run.name),
        warnings=run_warnings(run),
        story=story(run),
        diagnosis=diagnosis,
        verdict_figure=verdict_figure,
        notes=recorder_notes(run),
        overview=overview,
        figures=[block for block in blocks.values() if block],
        remarks=remarks,
        tables=run_tables(run, f"{anchor}-tables"),
        settings=settings_tables(run, f"{anchor}-settings"),
    )


def comparison(runs: Sequence[Run], sections: Sequence[RunSection]) -> dict[str, Any]:
    """The comparison of several runs with the given sections, as templates/parts.html shows it."""
    unfinished = [short(run.name) for run in runs if run.status != "finished"]
    text = f"Unfinished: {join_names(unfinished)}. The page shows what they recorded."
    left = [short(run.name) for run in runs[MAX_FULL_RUNS:]]
    left_out = f"The first {MAX_FULL_RUNS} of {len(runs)} runs are shown; see below for {join_names(left)}."
    blocks = (figure_block(figure, runs, "comparison") for figure in figures_for(runs))
    return {
        "warnings": [text] if unfinished else [],
        "story": [*_summaries(runs, sections)],
        "table": comparison_table(runs, "comparison-table"),
        "overviews": [(each.name, each.overview) for each in sections[:MAX_FULL_RUNS] if each.overview],
        "left_out": left_out if left else "",
        "figures": [block for block in blocks if block],
    }


def comparison_table(runs: Sequence[Run], anchor: str) -> Table:
    """One row per run; columns without any value are omitted."""
    columns: dict[str, Sequence[Cell]] = {"run": [short(run.name, 80) for run in runs]}
    if any(run.status != "finished" for run in runs):
        columns["status"] = [run.status for run in runs]
    columns |= results(runs)
    note = "Scores are those at the best step. Steps count from 0." if "best step" in columns else ""
    return Table("Results by run", anchor, [*zip(*columns.values(), strict=True)], [*columns], note)


def _summaries(runs: Sequence[Run], sections: Sequence[RunSection]) -> Iterator[str]:
    """A few sentences per run."""
    for run, section in list(zip(runs, sections, strict=True))[:MAX_FULL_RUNS]:
        facts = training_facts(run)
        if section.diagnosis is None:
            yield f"{short(run.name)}: nothing was recorded."
            continue
        parts = [describe_loss(facts) if facts.loss and facts.steps else "No loss was logged."]
        if facts.metric and facts.best_step is not None:
            best = format_metric(facts.metric, facts.best_metric)
            parts.append(f"Best {short(facts.metric)}: {best}, at step {facts.best_step:,}.")
        title = section.diagnosis.verdict.title
        yield f"{short(run.name)}: {' '.join(parts)} Verdict: {title[:1].lower()}{title[1:]}."
    left = len(runs) - MAX_FULL_RUNS
    if left > 0:
        yield f"And {left} more run{'s' * (left != 1)}: see the table."
