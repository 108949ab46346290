"""Cases -> treatments: does the remedy that the diagnosis names cure what was planted?

The faulty run of a case is diagnosed and treated as `gatdiag.treat` does it, and the training that it ends with is
compared with the repaired twin in the bank's own yardstick, the true labels and the usual loss. Good is what comes
within 5 points of the twin's accuracy or, where there are no classes, a tenth of the loss of a constant prediction.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from torch import nn

from gatdiag.experiments.faults.bank import ON_LAWS, counts, trained
from gatdiag.experiments.faults.cases import Case
from gatdiag.experiments.faults.network import Network
from gatdiag.experiments.faults.tables import markdown, save
from gatdiag.experiments.faults.tasks import make_task
from gatdiag.experiments.faults.training import Outcome, rehearsal
from gatdiag.experiments.pool import mapped
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.summary import logged
from gatdiag.treatment import Treatment, treat

POINTS: Final = 0.05  # of accuracy
SHARE: Final = 0.1  # of the loss of a constant prediction


@dataclass(frozen=True)
class Cure:
    """What came of treating the faulty training of a case.

    Attributes:
        case: Its name.
        planted: The cause that is right.
        held_out: It is not for calibration.
        verdict: Code of the first finding.
        remedy: What was changed in the end; "" if nothing was.
        faulty: Of the training that was treated: accuracy, or the share of loss removed where there are no classes.
        treated: Of the treated training; None where nothing was applied.
        twin: Of the repaired twin.
        is_accuracy: These three are accuracies.
        reason: Why nothing was applied.
        tried: How many remedies were.
    """

    case: str
    planted: str
    held_out: bool
    verdict: str
    remedy: str
    faulty: float
    treated: float | None
    twin: float
    is_accuracy: bool
    reason: str
    tried: int

    @property
    def is_good(self) -> bool:
        """It trains as well as the twin, nearly."""
        return self.treated is not None and self.treated >= self.twin - (POINTS if self.is_accuracy else SHARE)

    def row(self) -> dict[str, Any]:
        """It as a row of a table."""
        good = "" if self.treated is None else "yes" if self.is_good else "no"
        row = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**row, "good": good}


def treat_bank(
    chosen: Sequence[Case], folder: Path, jobs: int | None = None, on_done: Callable[[Case], None] | None = None
) -> list[Cure]:
    """Treat the faulty trainings that count; those that were not trained yet are trained first.

    Args:
        chosen: Cases; controls and remarks on laws are left out.
        folder: Where the runs are kept, as for `bank.run_bank`; the treatments are below ``treated`` beside them.
        jobs: Number of processes; None: one for each core.
        on_done: Called after each case.

    Returns:
        What came of each, in their order.
    """
    faulty = [case for case in chosen if case.repaired is not None]
    found: dict[str, Cure] = {}
    with mapped(partial(_treated, folder=folder), faulty, jobs) as done:
        for case, cure in done:
            found |= {} if cure is None else {case.name: cure}
            if on_done is not None:
                on_done(case)
    return [found[case.name] for case in chosen if case.name in found]


def _treated(case: Case, folder: Path) -> tuple[Case, Cure | None]:
    assert case.repaired is not None
    place = folder / case.name
    faulty, twin = trained(case.faulty, place / "faulty"), trained(case.repaired, place / "repaired")
    if case.cause in ON_LAWS or not counts(case.cause, faulty, twin):
        return case, None
    outcomes: list[Outcome] = []
    make, loop = rehearsal(case.faulty)

    def train(model: nn.Module, recorder: Recorder) -> None:
        outcomes.append(loop(cast("Network", model), recorder))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was planted
        done = treat(
            make,
            train,
            *make_task(case.faulty).whole(is_training=True).args,
            seeds=[case.faulty.seed],
            before=[place / "faulty"],
            folder=folder.parent / "treated" / case.name,
            overwrite=True,
        )
    return case, _cure(case, done, (faulty, twin, *outcomes), load(place / "repaired"))


def _cure(case: Case, done: Treatment, outcomes: Sequence[Outcome], twin: Run) -> Cure:
    """In accuracy, if it was logged."""
    split = "val" if case.cause == "overfitting" else "train"
    applied = [trial for trial in done.trials if trial.runs]
    verdict = done.before.diagnoses[0].verdict
    last = done.after if done.after in applied and verdict.actions else None
    runs = [done.before.runs[0], twin, *(trial.runs[0] for trial in applied)]
    is_accuracy = f"{split}_accuracy" in twin.logged
    scores = [
        float(logged(run, f"{split}_accuracy").iloc[-1]) if is_accuracy else getattr(outcome, split)
        for run, outcome in zip(runs, outcomes, strict=True)
    ]
    refused = [trial.refused for trial in done.trials if trial.refused]
    reason = "; ".join(refused) or (verdict.remedy.splitlines() or ["no cause was found"])[0]
    return Cure(
        case=case.name,
        planted=case.cause,
        held_out=case.is_held_out,
        verdict=verdict.code,
        remedy="; ".join(last.changes) if last else "",
        faulty=scores[0],
        treated=scores[2 + applied.index(last)] if last else None,
        twin=scores[1],
        is_accuracy=is_accuracy,
        reason="" if last else reason,
        tried=len(applied),
    )


def save_cures(cures: Sequence[Cure], folder: Path) -> str:
    """Write `treatment.csv`, a row a case, and `treatment.md`; the page."""
    rows = [cure.row() for cure in cures]
    applied = [cure for cure in cures if cure.treated is not None]
    good = sum(cure.is_good for cure in applied)
    share = f" ({good / len(applied):.0%})" if applied else ""
    heads = ("case", "verdict", "remedy", "faulty", "treated", "twin", "good")
    page = (
        "# Faults, treated with what the diagnosis itself names\n",
        "Written by `gatdiag faults --treat`; `gatdiag.experiments.faults.treated` says what is compared: accuracy on "
        "the examples for training (of overfitting: on the others); where there are no classes, the share of the loss "
        "of a constant prediction that was removed.\n",
        f"Cured: {good} of {len(applied)}{share}; {len(cures) - len(applied)} more are to be changed by hand.\n",
        markdown([{head: row[head] for head in heads} for row in rows if row["good"]]),
        "\n## To be changed by hand\n",
        markdown([{head: row[head] for head in ("case", "verdict", "reason")} for row in rows if not row["good"]]),
    )
    return save(folder, "treatment", rows, page)
