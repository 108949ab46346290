"""What came of a treatment: the trainings before and with each remedy, and by which number they are compared."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import numpy as np

from gatdiag.diagnosis import SEVERITIES, Action, Diagnosis, Finding
from gatdiag.run import Run
from gatdiag.summary import accuracies, logged, loss_name, split

NOTHING: Final = "There is nothing to treat"
POINTS: Final = 0.05  # of a score: five points
SHARE: Final = 0.1  # of a loss


@dataclass(frozen=True)
class Yardstick:
    """The logged number that says how well a training went.

    Attributes:
        name: Of the scalar.
        is_score: More is better; else it is a loss.
    """

    name: str
    is_score: bool

    def value(self, run: Run) -> float:
        """At the end of a run: the median of the last tenth of what was logged; NaN if the loss ended as NaN."""
        values = logged(run, self.name).to_numpy(float)
        if not len(values) or not math.isfinite(values[-1]):
            return math.nan
        return float(np.nanmedian(values[-max(3, len(values) // 10) :]))

    def gain(self, before: float, after: float) -> float:
        """How much better: points of a score, or the share of the loss that is gone; NaN counts as the worst."""
        if self.is_score:
            low, high = (0.0 if math.isnan(value) else value for value in (before, after))
            return (high - low) / (100 if max(abs(low), abs(high)) > 1.5 else 1)  # some log percentages
        if math.isnan(before) or math.isnan(after):
            return float(math.isnan(before)) - float(math.isnan(after))
        return (before - after) / max(abs(before), 1e-12)

    def helped(self, gains: Sequence[float]) -> bool:
        """Better by 5 points, or a tenth of the loss, on average, and worse by as much for no seed."""
        least = POINTS if self.is_score else SHARE
        return bool(gains) and sum(gains) / len(gains) >= least and min(gains) > -least


def yardstick(run: Run) -> Yardstick | None:
    """The validation score, else another score, else the validation loss, else the loss; None if nothing was logged.

    A score that is always NaN is none.
    """
    known = {of: name for of, name in accuracies(run).items() if np.isfinite(logged(run, name).to_numpy(float)).any()}
    name = next((known[of] for of in ("val", "test", "train") if of in known), None)
    if name is not None:
        return Yardstick(name, True)
    losses = [one for one in run.logged if "loss" in one.lower() and split(one) == "val"]
    name = next(iter(losses), loss_name(run))
    return None if name is None else Yardstick(name, False)


@dataclass(frozen=True)
class Trial:
    """The same training from each seed: as it was, or with a remedy.

    Attributes:
        name: "before", or "after-1" and so on; the folder of its runs below that of the treatment.
        finding: Whose remedy was applied; None for what was before, and for a remedy of the caller's own.
        actions: All that was applied, in order, what earlier remedies did and was kept included.
        remedy: The lines to paste that do the same.
        changes: What was changed, a line each.
        runs: As recorded, one for each seed that was trained.
        diagnoses: Of each run.
        values: The number by which trainings are compared, at the end of each run.
        gains: How much better each is than the same seed without this remedy; empty for what was before.
        helped: It is better on average, and for no seed worse.
        refused: Why the remedy could not be applied, or what it made the training raise; "" if it was applied.
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
    refused: str = ""

    @property
    def verdict(self) -> Finding | None:
        """The most frequent verdict over the seeds, as the first of them has it; of equals the more severe."""
        verdicts = [diagnosis.verdict for diagnosis in self.diagnoses]
        often = Counter(verdict.code for verdict in verdicts)
        return min(
            verdicts,
            key=lambda one: (-often[one.code], not one.is_problem, SEVERITIES.index(one.severity)),
            default=None,
        )

    @property
    def mean(self) -> float:
        """Of the values; NaN if one is."""
        return fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation of the values over seeds; NaN for one seed, or if one value is."""
        return stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else math.nan

    @property
    def told(self) -> str:
        """Mean and spread of the values in words; "" if there is none."""
        spread = "" if math.isnan(self.spread) else f" ± {self.spread:.3g}"
        return f"{self.mean:.3g}{spread}" if self.values else ""


@dataclass(frozen=True)
class Treatment:
    """What `treat` did, and what came of it.

    Attributes:
        folder: Where it is written: a run for each trial and seed, and the page.
        seeds: Those that were trained.
        yardstick: The logged number by which trainings are compared; None if nothing was logged.
        before: The training as it is.
        trials: With each remedy that was tried, in turn.
    """

    folder: Path
    seeds: tuple[int, ...]
    yardstick: Yardstick | None
    before: Trial
    trials: tuple[Trial, ...] = ()

    @property
    def helped(self) -> bool:
        """A remedy made the training better."""
        return any(trial.helped for trial in self.trials)

    @property
    def after(self) -> Trial | None:
        """The last trial that helped, else the one that went best; None if none was trained."""
        helped = [trial for trial in self.trials if trial.helped]
        trained = [trial for trial in self.trials if trial.gains]
        return helped[-1] if helped else max(trained, key=lambda trial: fmean(trial.gains), default=None)

    @property
    def headline(self) -> str:
        """What came of it, in a few words."""
        if self.helped:
            return "The remedy helped"
        if any(trial.runs for trial in self.trials):
            return "No remedy helped"
        return "The cause has to be removed in the code" if self.trials or self.by_hand else NOTHING

    @property
    def remedy(self) -> str:
        """The lines to paste that make `before` into `after`; "" if nothing was changed."""
        return self.after.remedy if self.after is not None else ""

    @property
    def verdict(self) -> Finding | None:
        """What is wrong with the training as it is."""
        return self.before.verdict

    @property
    def by_hand(self) -> tuple[Finding, ...]:
        """What is still wrong at the end and is in the user's code, the most frequent verdict first."""
        last = self.after if self.helped and self.after is not None else self.before
        found = [one for diagnosis in last.diagnoses for one in diagnosis if one.severity != "note"]
        verdict = [last.verdict] if last.verdict is not None and last.verdict.is_problem else []
        return tuple({one.code: one for one in (*verdict, *found) if one.remedy and not one.actions}.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in words, with what to change."""
        return tuple(f"{one.title}: to be changed by hand: {one.remedy}" for one in self.by_hand)

    @property
    def course(self) -> tuple[str, ...]:
        """What was tried and what came of it, a line each."""
        before = f"before: {self.verdict.title if self.verdict else 'not trained'}{self._numbers(self.before)}"
        return (before, *(f"{result(trial)}{self._numbers(trial)}{_now(trial)}" for trial in self.trials))

    def __str__(self) -> str:
        """What was tried and what came of it, a line each; the lines to paste; what is to be changed by hand."""
        paste = f" To paste:\n\n{self.remedy}\n" if self.helped else ""
        return "\n".join([*self.course, f"{self.headline}.{paste}", *self.notes])

    def _numbers(self, trial: Trial) -> str:
        return f" ({self.yardstick.name} {trial.told})" if self.yardstick is not None and trial.values else ""


def _now(trial: Trial) -> str:
    return f"; verdict: {trial.verdict.title}" if trial.verdict and not trial.refused else ""


def result(trial: Trial) -> str:
    """What was tried and what came of it, in a line."""
    what = "; ".join(trial.changes) or ", ".join(map(str, trial.actions))
    return f"{trial.name}: {what}: {trial.refused or ('it helped' if trial.helped else 'it did not help')}"
