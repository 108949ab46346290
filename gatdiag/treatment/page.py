"""The HTML page of a treatment: whether it helped, what was changed, and the evidence before and after."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from gatdiag.card import Tone
from gatdiag.diagnosis import CAUSES, Diagnosis, Finding
from gatdiag.diagnosis.wording import number
from gatdiag.figures.by_layer import BY_LAYER, GREEN
from gatdiag.figures.curves import SPREAD_CURVES
from gatdiag.names import one_line, short
from gatdiag.page.document import Labeled, render, write
from gatdiag.page.plots import FigureBlock, figure_block
from gatdiag.page.screen import Screen, Strip, Tile, layer_strip, screen, shown_column
from gatdiag.page.sections import comparison_table, evidence_figure
from gatdiag.page.story import run_warnings
from gatdiag.run import Run
from gatdiag.summary import in_words, is_empty, loss_name, training_facts
from gatdiag.treatment.outcome import NOTHING, Treatment, Trial

PAGE: Final = "treatment.html"

_CUT_SHORT: Final = "The treatment was cut short"
_ARROW: Final = " \N{RIGHTWARDS ARROW} "
_MOST_TILES: Final = 6


@dataclass(frozen=True)
class Side:
    """One run before or after, the verdict over all seeds, and its first screen.

    `judged` is its diagnosis as if the finding that was treated were its verdict, so that both sides are compared by
    the same quantity.
    """

    name: str
    run: Run
    finding: Finding
    judged: Diagnosis
    screen: Screen


def write_page(done: Treatment, ended_by: BaseException | None = None) -> Path:
    """Write the page to the folder of a treatment.

    Args:
        done: The treatment, possibly incomplete.
        ended_by: The exception that ended it early.

    Raises:
        OSError: The file cannot be written.
    """
    section = _section(done, ended_by)
    contents = {
        "Verdict": ("treatment", True),
        "What was tried": ("treatment-tried", section["is_good"]),
        "Learning curves": ("treatment-curves", section["curves"]),
        "Results by run": ("treatment-results", section["seeds"]),
        **{side.name: (f"treatment-{side.name.lower()}", True) for side in section["sides"]},
        "To change in your code": ("treatment-manual-fixes", section["manual_fixes"]),
    }
    anchors = [(name, anchor) for name, (anchor, there) in contents.items() if there]
    names = [str(run.meta["model"]) for run in done.before.runs if run.meta.get("model")]
    title = f"{short(next(iter(names), 'The model'))}, before and after"
    return write(render(title, anchors, treatment=section), done.folder / PAGE)


def _section(done: Treatment, ended_by: BaseException | None) -> dict[str, Any]:
    """The variables of templates/treatment.html."""
    trained = (trial for trial in reversed(done.trials) if trial.runs)
    after = done.after or next(trained, None)
    trials = {"Before": done.before} | ({} if after is None else {"After": after})
    runs = {name: [run for run in trial.runs if not is_empty(run)] for name, trial in trials.items()}
    every = [_named(run, name) for name, of_trial in runs.items() for run in of_trial]
    groups = [name.lower() for name, of_trial in runs.items() for _ in of_trial]
    chosen = done.trials[0].finding if done.trials else None  # not always the verdict
    sides = [side for name, trial in trials.items() if (side := _side(name, trial, chosen)) is not None]
    curves = figure_block(SPREAD_CURVES, every, "treatment", groups=groups) if every else None
    shown = _evidence(sides)
    headline = _CUT_SHORT if not done.helped and (ended_by is not None or not every) else done.headline
    return {
        "is_good": done.helped,
        "tone": _tone(sides, helped=done.helped),
        "words": [(side.screen.tone, side.screen.word) for side in (sides if done.helped else sides[:1])],
        "headline": headline,
        "history": done.history,
        "measure": _measure(done),
        "changes": after.changes if done.helped and after is not None else (),
        "remedy": done.remedy if done.helped else "",
        "warnings": [
            *_cut_short(ended_by),
            *(f"{short(run.name)}: {text}" for run in every for text in run_warnings(run)),
        ],
        "tiles": [*_tiles(done, sides, trials)][:_MOST_TILES],
        "strips": [*_strips(sides)],
        "figure": shown or curves,
        "curves": curves if shown else None,
        "seeds": comparison_table(every, "treatment-seeds") if every else None,
        "sides": sides,
        "manual_fixes": tuple(one for one in done.manual_fixes if not CAUSES[one.code].is_symptom),
        "has_to_be_fixed": not done.helped and headline not in (_CUT_SHORT, NOTHING),
        "folders": [str(of_trial[0].folder) for of_trial in runs.values() if of_trial],
    }


def _named(run: Run, name: str) -> Run:
    """The run under the name of its side, with its seed."""
    _, comma, seed = run.name.partition(", ")
    return Labeled(run.folder, f"{name.lower()}, {seed}") if comma else run


def _side(name: str, trial: Trial, treated: Finding | None) -> Side | None:
    """The run of the seed that the verdict is of; None if none was diagnosed."""
    known = [pair for pair in zip(trial.runs, trial.diagnoses, strict=False) if not is_empty(pair[0])]
    verdict = trial.verdict
    if verdict is None or not known:
        return None
    run, diagnosis = next((pair for pair in known if pair[1].verdict.code == verdict.code), known[0])
    finding = treated if name == "Before" and treated is not None else verdict
    judged = diagnosis if treated is None else replace(diagnosis, findings=(treated,))
    return Side(name, run, finding, judged, screen(run, diagnosis))


def _tone(sides: Sequence[Side], *, helped: bool) -> Tone:
    """How the training goes now: with the remedy if it helped, which is good even where it is too early to say more."""
    tone: Tone = next((side.screen.tone for side in (sides[::-1] if helped else sides)), "unknown")
    return "healthy" if helped and tone == "unknown" else tone


def _measure(done: Treatment) -> str:
    """What the values in the history are; "" if there are none."""
    if done.metric is None or not done.before.values:
        return ""
    spread = ", mean ± standard deviation over seeds" if len(done.seeds) > 1 else ""
    return f"In parentheses: median {short(in_words(done.metric.name))} over the last tenth of a training{spread}."


def _cut_short(error: BaseException | None) -> Iterator[str]:
    if error is not None:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        reason = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else one_line(reason).rstrip(".")
        yield f"Cut short: {reason}. What was recorded until then is kept and shown here."


def _tiles(done: Treatment, sides: Sequence[Side], trials: dict[str, Trial]) -> Iterator[Tile]:
    """What was reached before and after, and facts of the training as it is now."""
    if done.metric is not None and done.before.values:
        reached = [trial.value_text for trial in trials.values() if trial.values]
        label, detail = short(in_words(done.metric.name), 24), "over the last tenth of a training"
        yield Tile(label, _ARROW.join(reached), f"{detail}, {len(done.seeds)} seeds" if len(done.seeds) > 1 else detail)
    facts = [training_facts(side.run) for side in sides]
    if facts and facts[0].loss is not None and (done.metric is None or done.metric.name != loss_name(sides[0].run)):
        last = _ARROW.join(number(one.last_loss, 3) for one in facts)
        yield Tile(short(f"last {in_words(facts[0].loss)}", 24), last, f"{number(facts[0].first_loss, 3)} at the start")
    if sides:
        yield from (tile for tile in sides[-1].screen.tiles if not tile.is_result)


def _strips(sides: Sequence[Side]) -> Iterator[tuple[str, Strip]]:
    """The layers before and after, by the quantity that the finding is about."""
    about = _about(sides)
    for side in sides if about else ():
        if (strip := layer_strip(side.run, side.judged, about)) is not None:
            yield side.name, strip


def _about(sides: Sequence[Side]) -> str:
    return shown_column(sides[0].run, sides[0].judged.verdict) if sides else ""


def _evidence(sides: Sequence[Side]) -> FigureBlock | None:
    """The quantity by layer that the finding is about, before and after, beside healthy trainings and the threshold."""
    about = _about(sides)
    if not about:
        return None
    names = [side.name.lower() for side in sides]

    def data(*runs: Run, **options: Any) -> pd.DataFrame:
        parts = [BY_LAYER.data(run, **options) for run in runs]
        last = [part[part["curve"] == part["curve"].iloc[-1]].assign(curve=name)
                for name, part in zip(names, parts, strict=True) if len(part)]  # fmt: skip
        layers = list(dict.fromkeys(layer for part in last for layer in part["layer"].cat.categories))
        joined = pd.concat(last, ignore_index=True) if last else parts[0]
        return joined.assign(layer=pd.Categorical(joined["layer"], layers)) if last else joined

    before_and_after = replace(BY_LAYER, group="comparison", data=data, caption=_CAPTIONS[len(sides)])
    _, options = evidence_figure(sides[0].judged, about)
    return figure_block(before_and_after, [side.run for side in sides], "treatment", **options)


_CAPTIONS: Final = {1: f"By layer. {GREEN}", 2: f"By layer, before (dashed) and after (solid). {GREEN}"}
