"""The page of a treatment: what was measured, what was changed, whether it helped; before and after side by side."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gatdiag.diagnosis.wording import number
from gatdiag.figures import figures_for
from gatdiag.figures.curves import SPREAD_CURVES
from gatdiag.names import one_line, short
from gatdiag.report.page import render, write
from gatdiag.report.plots import FigureBlock, figure_block
from gatdiag.report.story import metric, warnings
from gatdiag.report.tables import Cell, Table
from gatdiag.run import Run
from gatdiag.summary import is_empty, ranked, results
from gatdiag.treatment.outcome import NOTHING, Treatment, Trial

PAGE: Final = "treatment.html"

_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_BY_HAND: Final = "gatdiag cannot change this by itself: it is in the code of the model or of its training."
_CUT_SHORT: Final = "The treatment was cut short"


def write_page(done: Treatment, ended_by: BaseException | None = None) -> Path:
    """The page in the folder of a treatment.

    Args:
        done: The treatment, as far as it went.
        ended_by: What ended it early.

    Raises:
        OSError: The file cannot be written.
    """
    section = _section(done, ended_by)
    model = short(str(done.before.runs[0].meta.get("model") or "The model")) if done.before.runs else "The model"
    parts = {
        "Verdict": ("treatment", True),
        "What was measured": ("treatment-measured", section["shown"]),
        section["change"]: ("treatment-changed", section["shown"]),
        "Each seed": ("treatment-seeds", section["seeds"].rows),
        "Other remedies": ("treatment-others", section["others"]),
    }
    contents = [(name, anchor) for name, (anchor, there) in parts.items() if there]
    return write(render(f"{model}, before and after", contents, treatment=section), done.folder / PAGE)


def _section(done: Treatment, ended_by: BaseException | None) -> dict[str, Any]:
    """What templates/treatment.html shows."""
    trials = [*done.trials, *(Trial("", one, remedy=one.remedy, refused=_BY_HAND) for one in done.by_hand)]
    trials = [
        replace(trial, finding=trial.finding or done.verdict) for trial in trials if trial.finding or done.verdict
    ]
    shown = _shown(trials)
    before, after = _recorded(done.before), _recorded(shown) if shown else []
    measures = _measures(before, after)
    headline = _CUT_SHORT if not done.helped and (ended_by is not None or not before) else done.headline
    return {
        "cured": done.helped or headline == NOTHING,
        "headline": headline,
        "sentence": _sentence(headline, shown, measures, len(done.seeds)),
        "warnings": [*_cut_short(ended_by), *_cautions("before", before), *_cautions("after", after)],
        "shown": shown,
        "change": "What was changed" if shown and shown.changes else "What to change",
        "evidence": _evidence(shown, done.before),
        "pair": _pair(shown, before, after),
        "curves": _curves(before, after),
        "seeds": _seeds(measures, before, after),
        "others": [(trial, _outcome(trial, before)) for trial in trials if trial is not shown],
        "folders": [str(run.folder) for run in (*before[:1], *after[:1])],
    }


def _recorded(trial: Trial) -> list[Run]:
    return [run for run in trial.runs if not is_empty(run)]


def _shown(trials: Sequence[Trial]) -> Trial | None:
    """What the page is about: the last that helped, else the first that was trained, else the first finding."""
    best = [trial for trial in reversed(trials) if trial.helped]
    return next(iter([*best, *(trial for trial in trials if trial.runs), *trials]), None)


def _cut_short(error: BaseException | None) -> Iterator[str]:
    if error is not None:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        said = "interrupted by hand" if isinstance(error, KeyboardInterrupt) else one_line(said).rstrip(".")
        yield f"Cut short: {said}. What was recorded until then is kept, and shown here."


def _cautions(when: str, runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        yield from (f"{short(run.name)}, {when}: {text}" for text in warnings(run))


# --- whether it helped ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
    """What trainings are judged by: one number of each."""

    label: str
    before: Sequence[float]
    after: Sequence[float]

    def text(self, value: float) -> str:
        return metric(self.label, value)

    def middle(self, values: Sequence[float]) -> str:
        """The median."""
        return self.text(ranked(values, 0.5))

    def spread(self, values: Sequence[float]) -> str:
        low, high = (self.text(ranked(values, share)) for share in (0.0, 1.0))
        return low if low == high else f"{low} to {high}"

    @property
    def change(self) -> str:
        """Before and after, of all seeds."""
        return f" {_ARROW} ".join(self.middle(values) for values in (self.before, self.after) if values)


def _measures(before: Sequence[Run], after: Sequence[Run]) -> list[_Measure]:
    """Scores at the best validation step, that of test data first, then the last loss; those that were logged."""
    known = results([*before, *after]) if before or after else {}
    numbers = {what: [math.nan if value is None else value for value in values] for what, values in known.items()}
    ordered = (what for start in ("test ", "validation ", "last loss") for what in numbers if what.startswith(start))
    return [_Measure(what, numbers[what][: len(before)], numbers[what][len(before) :]) for what in ordered]


def _sentence(headline: str, shown: Trial | None, measures: Sequence[_Measure], seeds: int) -> str:
    if shown is None or shown.finding is None:
        if headline == NOTHING:
            return "No check found a reason for the network not to train; nothing was changed."
        return "Nothing was found or changed until then."
    cause = f"The diagnosis: {shown.finding.title[:1].lower()}{shown.finding.title[1:]}."
    if not shown.runs:
        return f"{cause} {shown.refused}" if shown.refused else f"{cause} Its remedy was not tried to the end."
    first = next((one for one in measures if one.before and one.after), None)
    if first is None:
        return cause
    so_far = "With its remedy" if shown.helped else "With its remedy so far"
    if len(shown.runs) == seeds and shown.gains and not shown.helped:
        so_far = "With its remedy it trains no better:"
    of = f" (median of {len(first.after)} seeds)" if len(first.after) > 1 else ""
    course = f"the {first.label} went from {first.middle(first.before)} to {first.middle(first.after)}"
    return f"{cause} {so_far} {course}{of}."


def _outcome(trial: Trial, before: Sequence[Run]) -> str:
    """What came of a remedy that is not the one the page is about."""
    if trial.refused:
        return ""
    came = "; ".join(f"{one.label} {one.change}" for one in _measures(before, _recorded(trial)) if one.after)
    return f"Tried, and it did not help: {came}." if came else "Not tried to the end."


def _seeds(measures: Sequence[_Measure], before: Sequence[Run], after: Sequence[Run]) -> Table:
    """A row a seed; their median, and from where to where they are."""
    names = [short(run.name) for run in max(before, after, key=len)]
    columns = [
        (f"{one.label}, {when}", one, values)
        for one in measures
        for when, values in (("before", one.before), ("after", one.after))
        if values
    ]
    rows: list[list[Cell]] = [
        [name, *(one.text(values[place]) if place < len(values) else None for _, one, values in columns)]
        for place, name in enumerate(names)
    ]
    if len(names) > 1:
        rows.append(["median", *(one.middle(values) for _, one, values in columns)])
        rows.append(["lowest to highest", *(one.spread(values) for _, one, values in columns)])
    note = "Scores are those at the step of the best validation score." if len(measures) > 1 else ""
    return Table("Each seed", "treatment-seeds", rows, ["seed", *(head for head, *_ in columns)], note, sortable=False)


def _curves(before: Sequence[Run], after: Sequence[Run]) -> FigureBlock | None:
    runs = [*before, *after]
    if not runs:
        return None
    groups = ["before"] * len(before) + ["after"] * len(after)
    return figure_block(SPREAD_CURVES, runs, "treatment", ("double", "single"), groups=groups)


# --- what was measured ------------------------------------------------------------------------------------------------


def _evidence(shown: Trial | None, before: Trial) -> Table | None:
    """The numbers that the finding rests on, and what they are with the remedy; the verdicts of the first seed."""
    if shown is None or shown.finding is None:
        return None
    after = [next((one for one in each if one.code == shown.finding.code), None) for each in shown.diagnoses[:1]]
    rows: list[list[Cell]] = [
        [
            one.what,
            f"{number(one.value)} {one.unit}".strip(),
            *(number(again.evidence[place].value) if again else "not flagged" for again in after),
        ]
        for place, one in enumerate(shown.finding.evidence)
    ]
    rows.append(["verdict", *(each.verdict.title for each in (*before.diagnoses[:1], *shown.diagnoses[:1]))])
    heads = ["", "before", *["after" for _ in after]]
    return Table("Evidence", "treatment-evidence", rows, heads, shown.finding.threshold, sortable=False)


def _pair(shown: Trial | None, before: Sequence[Run], after: Sequence[Run]) -> list[tuple[str, FigureBlock]]:
    """The figure that shows the evidence, of the first seed, before and after; what it shares, on the same scale."""
    runs = {when: of[0] for when, of in (("before", before), ("after", after)) if of}
    wanted = shown.finding.figure if shown and shown.finding else ""
    for figure in sorted(figures_for(before[:1]) if before else [], key=lambda one: one.name != wanted):
        shared = figure.shared([*runs.values()])
        pair = [(when, figure_block(figure, [run], f"treatment-{when}", **shared)) for when, run in runs.items()]
        if all(block for _, block in pair):
            return [(when, block) for when, block in pair if block]
    return []
