"""The outcome of a treatment: the trainings before and with each remedy, and the metric by which they are compared."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import numpy as np

from gatdiag.card import Tone, card
from gatdiag.diagnosis import CAUSES, SEVERITIES, UNDETERMINED, UNEXPLAINED, Action, Diagnosis, Finding
from gatdiag.diagnosis.finding import Part
from gatdiag.diagnosis.wording import number, plain
from gatdiag.run import Run
from gatdiag.summary import in_words, logged_series, loss_name, score_names, split

NOTHING: Final = "There is nothing to treat"
NO_CAUSE: Final = "No cause was found"
POINTS: Final = 0.05  # least improvement of a score: five points
SHARE: Final = 0.1  # least improvement of a loss, relative


@dataclass(frozen=True)
class Metric:
    """The logged scalar by which trainings are compared.

    Attributes:
        name: The name of the scalar.
        is_score: Higher is better; otherwise it is a loss.
    """

    name: str
    is_score: bool

    def value(self, run: Run) -> float:
        """Value at the end of a run: median of the last tenth of logged values, NaN if the last one is not finite."""
        values = logged_series(run, self.name).to_numpy(float)
        if not len(values) or not math.isfinite(values[-1]):
            return math.nan
        return float(np.nanmedian(values[-max(3, len(values) // 10) :]))

    def gain(self, before: float, after: float) -> float:
        """Improvement: difference of scores, or relative decrease of the loss; NaN counts as the worst value."""
        if self.is_score:
            low, high = (0.0 if math.isnan(value) else value for value in (before, after))
            return (high - low) / (100 if max(abs(low), abs(high)) > 1.5 else 1)  # percentages
        if math.isnan(before) or math.isnan(after):
            return float(math.isnan(before)) - float(math.isnan(after))
        return (before - after) / max(abs(before), 1e-12)

    def helped(self, gains: Sequence[float]) -> bool:
        """Whether the mean gain is at least 0.05 (a tenth of a loss), and no seed lost as much."""
        least = POINTS if self.is_score else SHARE
        return bool(gains) and sum(gains) / len(gains) >= least and min(gains) > -least


def choose_metric(run: Run) -> Metric | None:
    """The validation score, else another score, else the validation loss, else the loss; None if nothing was logged.

    Scores that are always NaN are ignored.
    """
    known = {
        of: name for of, name in score_names(run).items() if np.isfinite(logged_series(run, name).to_numpy(float)).any()
    }
    name = next((known[of] for of in ("val", "test", "train") if of in known), None)
    if name is not None:
        return Metric(name, True)
    losses = [one for one in run.logged_names if "loss" in one.lower() and split(one) == "val"]
    name = next(iter(losses), loss_name(run))
    return None if name is None else Metric(name, False)


@dataclass(frozen=True, repr=False)
class Trial:
    """One training from each seed: unchanged, or with a remedy.

    Attributes:
        name: "before", "after-1" and so on; also the subfolder of its runs.
        finding: The finding whose remedy was applied; None if unchanged, or if the caller gave the remedy.
        actions: All actions that were applied, in order, including those kept from earlier trials.
        remedy: The code to paste that does the same.
        changes: A description of each change.
        runs: The recorded run of each seed.
        diagnoses: The diagnosis of each run.
        values: The metric at the end of each run.
        gains: The improvement of each seed over the same seed without this remedy; empty for "before".
        helped: Better on average, and worse for no seed.
        failure: Why the remedy could not be applied, or what training raised with it; "" if it worked.
    """

    name: str
    finding: Finding | None = None
    actions: tuple[Action, ...] = ()
    remedy: str = ""
    changes: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    values: tuple[float, ...] = ()
    gains: tuple[float, ...] = ()
    helped: bool = False
    failure: str = ""

    def __repr__(self) -> str:
        """For example ``Trial(after-1, it helped)``."""
        return f"Trial({self.name}{f', {self.result}' if self.actions else ''})"

    @property
    def result(self) -> str:
        """Whether the remedy helped, or why it could not be tried."""
        return self.failure or ("it helped" if self.helped else "it did not help")

    @property
    def verdict(self) -> Finding | None:
        """The most frequent verdict over the seeds; of equally frequent ones, the most severe."""
        verdicts = [diagnosis.verdict for diagnosis in self.diagnoses]
        often = Counter(verdict.code for verdict in verdicts)
        return min(
            verdicts,
            key=lambda one: (-often[one.code], not one.is_cause, SEVERITIES.index(one.severity)),
            default=None,
        )

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if one is NaN."""
        return fmean(self.values) if self.values else math.nan

    @property
    def value_text(self) -> str:
        """Mean of the values, and standard deviation over seeds."""
        has_spread = len(self.values) > 1 and math.isfinite(self.mean)
        return plain(f"{number(self.mean)} ± {number(stdev(self.values))}" if has_spread else number(self.mean))


@dataclass(frozen=True, repr=False)
class Treatment:
    """The result of `treat`.

    Attributes:
        folder: The folder with a run for each trial and seed, and the page.
        seeds: The seeds that were trained.
        metric: The metric by which trainings are compared; None if nothing was logged.
        before: The unchanged training.
        trials: The training with each remedy that was tried, in order.
    """

    folder: Path
    seeds: tuple[int, ...]
    metric: Metric | None
    before: Trial
    trials: tuple[Trial, ...] = ()

    @property
    def helped(self) -> bool:
        """Whether a remedy made the training better."""
        return any(trial.helped for trial in self.trials)

    @property
    def after(self) -> Trial | None:
        """The last trial that helped, else the best one; None if none was trained."""
        helped = [trial for trial in self.trials if trial.helped]
        trained = [trial for trial in self.trials if trial.gains]
        return helped[-1] if helped else max(trained, key=lambda trial: fmean(trial.gains), default=None)

    @property
    def headline(self) -> str:
        """The outcome in a few words."""
        if self.helped:
            return "The remedy helped"
        if any(trial.runs for trial in self.trials):
            return "No remedy helped"
        if self.trials or any(not CAUSES[one.code].is_symptom for one in self.manual_fixes):
            return "The cause has to be fixed in your code"
        is_open = any(one.verdict.code in (UNEXPLAINED, UNDETERMINED) for one in self.before.diagnoses)
        return NO_CAUSE if is_open or self.manual_fixes else NOTHING

    @property
    def remedy(self) -> str:
        """The code to paste that turns `before` into `after`; "" if nothing was changed."""
        return self.after.remedy if self.after is not None else ""

    @property
    def verdict(self) -> Finding | None:
        """What is wrong with the unchanged training."""
        return self.before.verdict

    @property
    def manual_fixes(self) -> tuple[Finding, ...]:
        """What is still wrong at the end and can only be fixed in the user's code, the most frequent verdict first."""
        last = self.after if self.helped and self.after is not None else self.before
        found = [one for diagnosis in last.diagnoses for one in diagnosis if one.severity != "note"]
        verdict = [last.verdict] if last.verdict is not None and last.verdict.is_cause else []
        return tuple({one.code: one for one in (*verdict, *found) if one.remedy and not one.actions}.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """`manual_fixes` as text, with what to change."""
        return tuple(f"{one.title}: {_describe_fix(one)}" for one in self.manual_fixes)

    @property
    def history(self) -> tuple[str, ...]:
        """A line for each trial: what was changed, and whether it helped."""
        unknown = "cut short" if self.before.runs else "not trained"
        before = f"before: {self.verdict.title if self.verdict else unknown}{self._value(self.before)}"
        return (before, *(f"{describe_trial(trial)}{self._value(trial)}{_new_verdict(trial)}" for trial in self.trials))

    def __repr__(self) -> str:
        """For example ``Treatment('treatment', The remedy helped)``."""
        return f"Treatment({str(self.folder)!r}, {self.headline})"

    def _repr_html_(self) -> str:
        rows = [history.partition(": ")[::2] for history in self.history]
        tone: Tone = "healthy" if self.helped else "degraded"
        return card(self.headline, tone=tone, rows=[*rows, *(("still", note) for note in self.notes)], code=self.remedy)

    def __str__(self) -> str:
        """The history, the headline, the code to paste and the notes."""
        return "\n".join(line for _, line in self.parts())

    def parts(self) -> Iterator[tuple[Part, str]]:
        """Yield the lines of the text, each with what it is."""
        yield from (("detail", line) for line in self.history)
        yield "healthy" if self.helped or self.headline == NOTHING else "warning", f"{self.headline}."
        if self.helped:
            yield "heading", "  to paste:"
            yield from (("code", f"    {line}") for line in self.remedy.splitlines())
        yield from (("detail", note) for note in self.notes)

    def _value(self, trial: Trial) -> str:
        return f" ({in_words(self.metric.name)} {trial.value_text})" if self.metric is not None and trial.values else ""


def _new_verdict(trial: Trial) -> str:
    return f"; verdict: {trial.verdict.title}" if trial.verdict and not trial.failure else ""


def _describe_fix(fix: Finding) -> str:
    """What the user has to change or, of a symptom that nothing explains, what would tell its cause."""
    return fix.remedy.removeprefix("# ") if CAUSES[fix.code].is_symptom else f"change this in your code: {fix.remedy}"


def describe_trial(trial: Trial) -> str:
    """A line: what was changed, and whether it helped."""
    what = "; ".join(trial.changes) or ", ".join(map(str, trial.actions))
    return f"{trial.name}: {what}: {trial.result}"
