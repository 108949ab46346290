"""The sections of a page: one run, and the comparison of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gatdiag.card import Tone
from gatdiag.diagnosis import Diagnosis, diagnose
from gatdiag.figures import figures_for, not_recorded
from gatdiag.names import join_names, short
from gatdiag.page.chart import chart_data
from gatdiag.page.plots import FigureBlock, figure_block, line_sample
from gatdiag.page.screen import USUAL, Screen, screen
from gatdiag.page.story import recorder_notes, run_warnings, story
from gatdiag.page.tables import Cell, Table, run_tables, settings_tables
from gatdiag.run import Run
from gatdiag.summary import is_empty, is_of_checkpoints, lines_of_runs, results

MAX_FULL_RUNS: Final = 6  # on one page; of more, these are shown with an overview, and none with all figures
_BY_SEVERITY: Final[tuple[Tone, ...]] = ("failing", "degraded", "unknown", "healthy")
_OVERVIEW, _BY_LAYER, _CURVES = "overview", "by_layer", "training_curves"


@dataclass(frozen=True)
class RunSection:
    """One run on the page, in reading order."""

    anchor: str
    name: str
    warnings: Sequence[str]
    diagnosis: Diagnosis | None
    screen: Screen
    evidence: FigureBlock | None  # shows what the verdict is about
    overview: FigureBlock | None
    chart: str  # JSON, for the chart that answers to the mouse
    story: Sequence[str]
    remarks: Sequence[str]
    notes: str
    figures: Sequence[FigureBlock]
    tables: Sequence[Table]
    settings: Sequence[Table]


def run_sections(runs: Sequence[Run]) -> list[RunSection]:
    """One section per run; of many runs, the figures of the verdicts alone, and overviews of the worst."""
    found = [None if is_empty(run) else diagnose(run) for run in runs]
    in_full = len(runs) <= MAX_FULL_RUNS
    worst = _worst(found)
    return [
        _section(run, f"run-{place + 1}", found[place], in_full=in_full, has_overview=place in worst)
        for place, run in enumerate(runs)
    ]


def _worst(found: Sequence[Diagnosis | None]) -> list[int]:
    """The places of the most severe diagnoses, in order of the runs; of many healthy runs, the first."""
    tones: list[Tone] = ["healthy" if one is None else one.tone for one in found]
    return sorted(sorted(range(len(found)), key=lambda place: _BY_SEVERITY.index(tones[place]))[:MAX_FULL_RUNS])


def _section(run: Run, anchor: str, diagnosis: Diagnosis | None, *, in_full: bool, has_overview: bool) -> RunSection:
    """The section of one run."""
    own = {} if is_empty(run) else {figure.name: figure for figure in figures_for([run])}
    shown = screen(run, diagnosis)
    first, of_first = evidence_figure(diagnosis, shown.about)
    if is_of_checkpoints(run) and not len(run.layers):  # most of it is about what only a training has
        own.pop(_OVERVIEW, None)
    wanted = {first, *[_OVERVIEW] * has_overview}
    drawn = {name: one for name, one in own.items() if in_full or name in wanted}
    known = {_OVERVIEW: {"widths": ("double", "single") if in_full else ("single",)}, first: of_first}
    blocks = {name: figure_block(one, [run], anchor, **known.get(name, {})) for name, one in drawn.items()}
    remarks = [
        f"No figure {own[name].title!r}: {not_recorded(*own[name].needs)}." for name in blocks if not blocks[name]
    ]
    if not in_full:
        rest = "figures" if has_overview else "figures and tables"
        remarks = [f"This page has more than {MAX_FULL_RUNS} runs: report this run alone to see all its {rest}."]
    if diagnosis is not None:
        remarks += diagnosis.remarks
    overview, evidence = blocks.pop(_OVERVIEW, None), blocks.pop(first, None)
    return RunSection(
        anchor=anchor,
        name=short(run.name),
        warnings=run_warnings(run),
        diagnosis=diagnosis,
        screen=shown,
        evidence=evidence or blocks.pop(_CURVES, None),
        overview=overview,
        chart=_chart(run, diagnosis, shown) if diagnosis is not None and has_overview else "",
        story=story(run),
        remarks=remarks,
        notes=recorder_notes(run),
        figures=[block for block in blocks.values() if block],
        tables=run_tables(run, f"{anchor}-tables") if has_overview else (),
        settings=settings_tables(run, f"{anchor}-settings"),
    )


def _chart(run: Run, diagnosis: Diagnosis, shown: Screen) -> str:
    """The data of the chart, which begins with the quantity of the strip and has its layers."""
    layers = {cell.layer for cell in shown.strip.cells} if shown.strip else set[str]()
    over = diagnosis.verdict.over if shown.about else ""
    return chart_data(run, shown.about or USUAL, over, layers)


def evidence_figure(diagnosis: Diagnosis | None, about: str) -> tuple[str, dict[str, Any]]:
    """The name of the figure that shows what the verdict is about, and its options: over layers, or over steps."""
    if diagnosis is None or not (about or diagnosis.verdict.column.startswith("steps.")):
        return _CURVES, {"gradients": False}
    found = diagnosis.verdict
    if not about:
        threshold = {"column": found.column, "line": found.line, "beyond": found.beyond}
        return _CURVES, {"gradients": False, "metrics": False} | threshold
    shown = {"column": about, "concerned": found.layers, "steps": found.steps, "line": found.line}
    return _BY_LAYER, shown | {"beyond": found.beyond, "over": found.over}


def comparison(runs: Sequence[Run], sections: Sequence[RunSection]) -> dict[str, Any]:
    """The comparison of several runs with the given sections, as templates/parts.html shows it."""
    unfinished = [short(run.name) for run in runs if run.status != "finished"]
    text = f"Unfinished: {join_names(unfinished)}. The page shows what they recorded."
    worst = [section.name for section in sections if section.overview]
    left_out = (
        f"Of {len(runs)} runs, {join_names(worst, MAX_FULL_RUNS)} have an overview here, those that fail first. Report "
        "a run alone to see all its figures."
    )
    blocks = (
        figure_block(figure, runs, "comparison", widths=("single",) if place else ("double", "single"))
        for place, figure in enumerate(figures_for(runs))
    )
    return {
        "sections": sections,
        "lines": [line_sample(line) for line in lines_of_runs(runs)],
        "in_full": len(runs) <= MAX_FULL_RUNS,
        "warnings": [text] if unfinished else [],
        "table": comparison_table(runs, "comparison-table", sections),
        "left_out": left_out if worst and len(runs) > MAX_FULL_RUNS else "",
        "figures": [block for block in blocks if block],
    }


def comparison_table(runs: Sequence[Run], anchor: str, sections: Sequence[RunSection] = ()) -> Table:
    """One row per run, with its verdict if it has a section; columns without any value are omitted."""
    columns: dict[str, Sequence[Cell]] = {"run": [short(run.name, 80) for run in runs]}
    if sections:
        columns["state"] = [section.screen.word for section in sections]
        found = [section.diagnosis for section in sections]
        columns["verdict"] = ["nothing was recorded" if one is None else one.verdict.title for one in found]
    if any(run.status != "finished" for run in runs):
        columns["status"] = [run.status for run in runs]
    columns |= results(runs)
    note = "Scores are those at the best step. Steps count from 0." if "best step" in columns else ""
    return Table("Results by run", anchor, [*zip(*columns.values(), strict=True)], [*columns], note)
