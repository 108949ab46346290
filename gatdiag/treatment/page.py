"""The HTML page of a treatment: what was tried and whether it helped, then the runs before and after side by side."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gatdiag.diagnosis import CAUSES, Finding
from gatdiag.figures import figures_for
from gatdiag.figures.curves import SPREAD_CURVES
from gatdiag.names import one_line, short
from gatdiag.page.document import render, write
from gatdiag.page.plots import FigureBlock, figure_block
from gatdiag.page.sections import comparison_table
from gatdiag.page.story import run_warnings
from gatdiag.run import Run
from gatdiag.summary import is_empty
from gatdiag.treatment.outcome import NOTHING, Treatment

PAGE: Final = "treatment.html"

_CUT_SHORT: Final = "The treatment was cut short"


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
        "Results by run": ("treatment-seeds", section["seeds"]),
        **{name.capitalize(): (f"treatment-{name}", True) for name, *_ in section["sides"]},
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
    trials = [done.before] if after is None else [done.before, after]
    runs = {trial.name: [run for run in trial.runs if not is_empty(run)] for trial in trials}
    every = [run for of_trial in runs.values() for run in of_trial]
    groups = [name for name, of_trial in runs.items() for _ in of_trial]
    chosen = done.trials[0].finding if done.trials else None  # not always the verdict
    shown = {trial.name: trial.verdict for trial in trials} | ({done.before.name: chosen} if chosen else {})
    figures = _figures(runs, shown[done.before.name])
    headline = _CUT_SHORT if not done.helped and (ended_by is not None or not every) else done.headline
    return {
        "is_good": done.helped or headline == NOTHING,
        "headline": headline,
        "history": done.history,
        "measure": _measure(done),
        "remedy": done.remedy if done.helped else "",
        "warnings": [
            *_cut_short(ended_by),
            *(f"{short(run.name)}: {text}" for run in every for text in run_warnings(run)),
        ],
        "curves": figure_block(SPREAD_CURVES, every, "treatment", groups=groups) if every else None,
        "seeds": comparison_table(every, "treatment-seeds") if every else None,
        "sides": [(name, one, figures.get(name)) for name, one in shown.items() if one is not None],
        "manual_fixes": tuple(one for one in done.manual_fixes if not CAUSES[one.code].is_symptom),
        "folders": [str(run.folder) for of_trial in runs.values() for run in of_trial[:1]],
    }


def _measure(done: Treatment) -> str:
    """What the values in the history are; "" if there are none."""
    if done.metric is None or not done.before.values:
        return ""
    spread = ", mean ± standard deviation over seeds" if len(done.seeds) > 1 else ""
    return f"In parentheses: median {short(done.metric.name)} over the last tenth of a training{spread}."


def _cut_short(error: BaseException | None) -> Iterator[str]:
    if error is not None:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        reason = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else one_line(reason).rstrip(".")
        yield f"Cut short: {reason}. What was recorded until then is kept and shown here."


def _figures(runs: Mapping[str, Sequence[Run]], finding: Finding | None) -> dict[str, FigureBlock | None]:
    """The figure that shows the evidence, for the first seed before and after, on the same scales."""
    first = {name: of_trial[0] for name, of_trial in runs.items() if of_trial}
    wanted = finding.figure if finding is not None else ""
    figures = figures_for([next(iter(first.values()))]) if first else []
    if not figures:
        return {}
    figure = next((one for one in figures if one.name == wanted), figures[0])
    shared = figure.shared_options([*first.values()])
    return {name: figure_block(figure, [run], f"treatment-{name}", **shared) for name, run in first.items()}
