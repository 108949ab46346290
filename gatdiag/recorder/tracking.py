"""Sends what is recorded to a tracker, in batches, as the rows are written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gatdiag.roles import FEATURE

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis
    from gatdiag.run import Run
    from gatdiag.summary import Scalars


@dataclass(frozen=True)
class Update:
    """What a tracker is called with.

    Attributes:
        scalars: Step -> name -> value, for steps that were written since the last call; `gatdiag.summary.SCALARS` says
            what each name is. A step may come twice, with other names.
        diagnosis: That of the whole run, in the last call; None before.
    """

    scalars: "Scalars"
    diagnosis: "Diagnosis | None" = None


Tracker: TypeAlias = Callable[[Update], object]


def update_of_run(run: "Run", *, is_whole: bool = True) -> Update:
    """What a tracker is called with at the end of a run: the severity of the verdict, after all scalars or alone."""
    from gatdiag.diagnosis import SEVERITIES, diagnose
    from gatdiag.summary import SEVERITY_SCALAR, run_scalars

    diagnosis, steps = diagnose(run), run.steps["step"]
    scalars = run_scalars(run) if is_whole else {}
    if len(steps):
        severity = SEVERITIES[::-1].index(diagnosis.verdict.severity)
        scalars.setdefault(int(steps.iloc[-1]), {})[SEVERITY_SCALAR] = float(severity)
    return Update(scalars, diagnosis)


class Tracking:
    """Computes the scalars of rows as they are written, and calls a tracker with them.

    It is called in the training's own thread, about once in two seconds and at the end. A
    tracker that has failed is not called again.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._has_failed = tracker, False
        self._is_feature = np.empty(0, bool)  # of each recorded parameter

    def set_parameters(self, roles: Sequence[str]) -> None:
        """The roles of the recorded parameters, in the order of their positions."""
        self._is_feature = np.array([role == FEATURE for role in roles], bool)

    def add(self, tables: Mapping[Any, Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the scalars of rows that were written: columns of tables, and rows of the table `steps`."""
        from gatdiag.summary.scalars import scalars_of

        names = dict.fromkeys(name for row in rows for name in row)
        steps = {name: [row.get(name, np.nan) for row in rows] for name in names}
        found: dict[Any, Mapping[str, Any]] = {**tables, "steps": steps}
        if "parameters" in tables:
            is_feature = self._is_feature[tables["parameters"]["parameter"]]
            found["parameters"] = {**tables["parameters"], "is_feature": is_feature}
        if scalars := scalars_of(found):
            self._send(Update(scalars))

    def finish(self, folder: Path) -> None:
        """Send the diagnosis of the run."""
        from gatdiag.run import load

        if not self._has_failed:
            self._send(update_of_run(load(folder), is_whole=False))

    def _send(self, update: Update) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._tracker(update)
            self._has_failed = False
