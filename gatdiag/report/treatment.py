"""The page of a treatment: what was measured, what was changed, whether it helped; before and after side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gatdiag.diagnosis import Finding, diagnose
from gatdiag.diagnosis.wording import number
from gatdiag.figures import figures_for, missing
from gatdiag.figures.curves import SPREAD_CURVES
from gatdiag.names import one_line, short
from gatdiag.report.page import PathLike, check_target, render, write
from gatdiag.report.plots import FigureBlock, figure_block
from gatdiag.report.story import Stat, anything, metric, warnings
from gatdiag.report.tables import Cell, Table
from gatdiag.run import Run
from gatdiag.summary import compare, ranked, score_label

Ending: TypeAlias = Literal["helped", "no help", "nothing to treat", "not applicable", "unfinished"]

_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_HEADLINES: Final[Mapping[Ending, str]] = {
    "helped": "The remedy helped",
    "no help": "No remedy helped",
    "nothing to treat": "There is nothing to treat",
    "not applicable": "The cause has to be removed in the code",
    "unfinished": "The treatment was cut short",
}


@dataclass(frozen=True)
class Attempt:
    """One finding, and what was done about it.

    Attributes:
        finding: What was found before.
        line: Code to paste.
        changes: What was changed, a sentence each; empty where nothing was.
        runs: The trainings with the remedy, in the order of the seeds; empty where it was not applied.
        helped: None where that is not known: it was not applied, or not trained to the end.
        reason: Why it was not applied, and what to change where; "" if it was applied.
    """

    finding: Finding
    line: str
    changes: Sequence[str] = ()
    runs: Sequence[Run] = ()
    helped: bool | None = None
    reason: str = ""


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


@dataclass(frozen=True)
class AttemptSection:
    """A attempt on the page, with what came of it."""

    attempt: Attempt
    anchor: str
    outcome: str


@dataclass(frozen=True)
class TreatmentSection:
    """A treatment on the page, in the order in which it is read."""

    ending: Ending
    headline: str
    sentence: str
    warnings: Sequence[str]
    stats: Sequence[Stat]
    shown: Attempt | None
    evidence: Table
    pair: Sequence[tuple[str, FigureBlock]]
    curves: FigureBlock | None
    seeds: Table
    failed: Sequence[AttemptSection]
    not_applied: Sequence[AttemptSection]
    folders: Sequence[str]


def write_treatment(
    before: Sequence[Run],
    attempts: Sequence[Attempt],
    path: PathLike,
    *,
    ended_by: str = "",
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes one self-contained HTML page about a treatment: before and after side by side.

    Args:
        before: The trainings as they were, one a seed; none where even the first was cut short.
        attempts: What was done about each finding, in the order in which it was tried.
        path: The file to write.
        ended_by: What cut the treatment short, such as an exception; "" if it came to its end.
        title: The page's heading; by default the model's name.
        overwrite: Replace whatever file is there. Without it only an earlier report of gatdiag is replaced.

    Returns:
        The file.

    Raises:
        InputError: The file is there and no report of gatdiag.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> page = write_treatment([], [], Path(tempfile.mkdtemp()) / "page.html", ended_by="ValueError: no data")
        >>> "ValueError: no data" in page.read_text()
        True
    """
    check_target(Path(path), overwrite=overwrite)
    section = treatment_section(before, attempts, ended_by)
    model = short(str(before[0].meta.get("model") or "The model")) if before else "The model"
    parts = {
        "Verdict": ("treatment", True),
        "What was measured": ("treatment-measured", section.shown),
        "What to change": ("treatment-changed", section.shown),
        "Each seed": ("treatment-seeds", section.seeds.rows),
        "Other remedies": ("treatment-others", section.failed or section.not_applied),
    }
    contents = [(name, anchor) for name, (anchor, there) in parts.items() if there]
    return write(render(title or f"{model}, before and after", contents, treatment=section), Path(path))


def treatment_section(before: Sequence[Run], attempts: Sequence[Attempt], ended_by: str = "") -> TreatmentSection:
    """What is said of a treatment, and shown."""
    shown = _shown(attempts)
    after = [run for run in shown.runs if anything(run)] if shown else []
    before = [run for run in before if anything(run)]
    measures = _measures(before, after)
    ending = _ending(before, attempts, ended_by)
    cut = [f"Cut short: {one_line(ended_by).rstrip('.')}. What was recorded until then is kept, and shown here."]
    others = [
        _attempt_section(attempt, place, before) for place, attempt in enumerate(attempts) if attempt is not shown
    ]
    return TreatmentSection(
        ending=ending,
        headline=_HEADLINES[ending],
        sentence=_sentence(ending, shown, measures),
        warnings=[*(cut if ended_by else []), *_cautions("before", before), *_cautions("after", after)],
        stats=[_stat(measure) for measure in measures],
        shown=shown,
        evidence=_evidence(shown, before, after),
        pair=_pair(shown, before, after),
        curves=_curves(before, after),
        seeds=_seeds(measures, before, after),
        failed=[one for one in others if not one.attempt.reason],
        not_applied=[one for one in others if one.attempt.reason],
        folders=[str(run.folder) for run in (*before[:1], *after[:1])],
    )


def _shown(attempts: Sequence[Attempt]) -> Attempt | None:
    """What the page is about: the last that helped, else the first that was made, else the first finding."""
    best = [attempt for attempt in reversed(attempts) if attempt.helped]
    return next(iter([*best, *(attempt for attempt in attempts if attempt.runs), *attempts]), None)


def _ending(before: Sequence[Run], attempts: Sequence[Attempt], ended_by: str) -> Ending:
    if any(attempt.helped for attempt in attempts):
        return "helped"
    if ended_by or not before:
        return "unfinished"
    if not attempts:
        return "nothing to treat"
    return "no help" if any(attempt.runs for attempt in attempts) else "not applicable"


def _cautions(when: str, runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        yield from (f"{short(run.name)}, {when}: {text}" for text in warnings(run))


# --- whether it helped ------------------------------------------------------------------------------------------------


def _measures(before: Sequence[Run], after: Sequence[Run]) -> list[_Measure]:
    """Scores at the best validation step, that of test data first, then the last loss; those that were logged."""
    frame = compare([*before, *after])
    if not len(frame):
        return []
    score = score_label(frame["score"])
    labels = {"accuracy_test": f"test {score}", "accuracy_val": f"validation {score}", "last_loss": "last loss"}
    known = [name for name in labels if frame[name].notna().any() or (name == "last_loss" and frame["steps"].any())]
    values = {name: frame[name].tolist() for name in known}
    return [_Measure(labels[name], values[name][: len(before)], values[name][len(before) :]) for name in known]


def _change(measure: _Measure) -> str:
    """Before and after, of all seeds."""
    parts = [measure.middle(values) for values in (measure.before, measure.after) if values]
    return f" {_ARROW} ".join(parts)


def _stat(measure: _Measure) -> Stat:
    parts = [measure.spread(values) for values in (measure.before, measure.after) if len(values) > 1]
    return Stat(measure.label.capitalize(), _change(measure), f"seeds: {f' {_ARROW} '.join(parts)}" if parts else "")


def _sentence(ending: Ending, shown: Attempt | None, measures: Sequence[_Measure]) -> str:
    if shown is None:
        return {
            "nothing to treat": "No check found a reason for the network not to train; nothing was changed.",
        }.get(ending, "Nothing was found or changed until then.")
    cause = f"The diagnosis: {shown.finding.title[:1].lower()}{shown.finding.title[1:]}."
    if not shown.runs:
        return f"{cause} {shown.reason}" if shown.reason else f"{cause} Its remedy was not tried to the end."
    first = next((one for one in measures if one.before and one.after), None)
    course = f"the {first.label} went from {first.middle(first.before)} to {first.middle(first.after)}" if first else ""
    seeds = f" (median of {len(first.after)} seeds)" if first and len(first.after) > 1 else ""
    so_far = {True: "With its remedy", False: "With its remedy it trains no better:", None: "With its remedy so far"}
    return f"{cause} {so_far[shown.helped]} {course}{seeds}." if course else cause


def _attempt_section(attempt: Attempt, place: int, before: Sequence[Run]) -> AttemptSection:
    measures = _measures(before, [run for run in attempt.runs if anything(run)])
    outcome = "; ".join(f"{one.label} {_change(one)}" for one in measures if one.after)
    return AttemptSection(attempt, f"treatment-attempt-{place}", outcome)


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
    if not runs or missing(SPREAD_CURVES, runs):
        return None
    groups = ["before"] * len(before) + ["after"] * len(after)
    return figure_block(SPREAD_CURVES, runs, "treatment", ("double", "single"), groups=groups)


# --- what was measured ------------------------------------------------------------------------------------------------


def _evidence(shown: Attempt | None, before: Sequence[Run], after: Sequence[Run]) -> Table:
    """The numbers that the finding rests on, and what they are with the remedy; the verdicts of the first seed."""
    if shown is None:
        return Table("Evidence", "treatment-evidence", [])
    heads = ["", "before", "after"] if after else ["", "before"]
    said = [diagnose(run) for run in (*before[:1], *after[:1])]
    found = [next((one for one in each if one.code == shown.finding.code), None) for each in said[len(before[:1]) :]]
    rows: list[list[Cell]] = [
        [
            one.what,
            f"{number(one.value)} {one.unit}".strip(),
            *(number(again.evidence[place].value) if again else "not flagged" for again in found),
        ]
        for place, one in enumerate(shown.finding.evidence)
    ]
    rows.append(["verdict", *(each.verdict.title for each in said)])
    return Table("Evidence", "treatment-evidence", rows, heads, shown.finding.threshold, sortable=False)


def _pair(shown: Attempt | None, before: Sequence[Run], after: Sequence[Run]) -> list[tuple[str, FigureBlock]]:
    """The figure that shows the evidence, of the first seed, before and after; what it shares, on the same scale."""
    runs = {"before": before[0]} if before else {}
    runs |= {"after": after[0]} if after else {}
    several = [*runs.values()]
    own = [one for one in figures_for(several[:1]) if one.per == "run" and not missing(one, several)] if several else []
    wanted = shown.finding.figure if shown else ""
    figure = next((one for one in own if one.name == wanted), next(iter(own), None))
    if figure is None:
        return []
    options = figure.shared(several)
    return [(when, figure_block(figure, [run], f"treatment-{when}", **options)) for when, run in runs.items()]
