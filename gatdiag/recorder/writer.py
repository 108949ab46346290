"""Between what is measured and the run folder: rows in order, what is said of the run, snapshots, the first NaN."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.recorder import meta
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.model import RecordingPlan
from gatdiag.recorder.non_finite import FirstNonFinite, first_non_finite
from gatdiag.recorder.weights import Weights
from gatdiag.run import Run, Store, load
from gatdiag.run.streams import MAX_LOGGED_SCALARS
from gatdiag.run.tables import is_logged, is_valid_unicode
from gatdiag.structure import Layer

_MOST_RATES = 100
_MOST_NAMES = MAX_LOGGED_SCALARS - _MOST_RATES
_MOST_OPTIMIZERS = 100  # a loop may make a new one at each step


class Writer:
    """Writes one run."""

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        guard: Guard,
        *,
        overwrite: bool,
        resume: bool | int,
        layers: Sequence[Layer] = (),
    ) -> None:
        """Makes the folder, or opens it again."""
        self._guard = guard
        try:
            if resume is False:
                self._store = Store.create(folder, about, overwrite=overwrite)
            else:
                meta.check_same_model(load(folder).meta["structure"], layers)
                self._store = Store.resume(folder, None if resume is True else resume)
        except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
            raise InputError(f"The run cannot be written to {folder}: {error}; give another folder") from error
        self._resumed = resume is not False
        self.next_step = self._store.next_step
        self.latest: dict[str, float] = {}
        self.saw_layers = False
        self.first_non_finite = _read_first(self._store.meta.get("first_non_finite"))
        if self.first_non_finite is not None and self.first_non_finite.step >= self.next_step:  # superseded
            self.first_non_finite = None
            self._store.update_meta(first_non_finite=None)
        self._best: float | None = (self._store.meta.get("best") or {}).get("value")
        self._rows: dict[int, dict[str, Any]] = {}  # of the table `steps`, not written yet
        self._logged: set[str] = set()
        self._rates: dict[tuple[str, int], int] = {}  # parameter group -> number of its learning rate
        self._layers: tuple[str, ...] = ()
        self._parameters: list[tuple[str, str]] = []
        self._start = time.monotonic() - (_last_time(folder) if self._resumed else 0.0)

    def describe(self, **changes: Any) -> None:
        """Change what meta.json says."""
        self._guard("descriptions of the run", self._store.update_meta, **changes)

    def add_optimizer(self, optimizer: Optimizer, names: Mapping[int, str], step: int) -> None:
        """Say that an optimizer makes its first step."""
        known = self._store.meta["optimizers"]
        listed = meta.merge_optimizer(known, meta.describe_optimizer(optimizer, names, step))
        if listed != known and len(listed) <= _MOST_OPTIMIZERS:
            self._store.update_meta(optimizers=listed)

    def begin(self, plan: RecordingPlan) -> bool:
        """Say what is recorded."""
        if self._resumed:
            meta.check_same_model(self._store.meta["structure"], plan.layers)
        self._store.update_meta(
            structure=meta.describe_structure(plan.layers, plan.structure.order),
            laws=meta.describe_laws(plan.recorded_laws, plan.excluded, plan.error),
        )
        self._layers = tuple(layer.name for layer in plan.layers)
        self._parameters = plan.parameters
        return True

    def first_snapshot(self, weights: Weights) -> None:
        """Keep the initial parameters; of a run that is resumed, measure changes against those it began with."""
        initial = load(self._store.folder).snapshot("initial") if self._resumed else None
        if initial is None:
            self.save_snapshot("initial", weights)
        else:
            weights.set_initial({name: torch.from_numpy(values) for name, values in initial.items()})

    def save_snapshot(self, name: str, weights: Weights) -> None:
        """Write the parameters as they are."""
        self._store.save_snapshot(name, weights.arrays())

    def update_best(self, scalar: str, larger: bool, value: float, step: int, weights: Weights) -> None:
        """Keep the parameters if the scalar is better than it ever was."""
        if np.isnan(value) or (self._best is not None and (value <= self._best if larger else value >= self._best)):
            return
        self.save_snapshot("best", weights)
        self._best = value
        best = {"name": scalar, "mode": "max" if larger else "min", "value": value, "step": step}
        self._store.update_meta(best=best)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def can_be_logged(self, name: str) -> bool:
        """True if scalars may have this name: one that cannot be written must not cost the row that it is in."""
        if name in self._logged:
            return True
        if not is_logged(name):
            self._guard.warn(f"reserved {name}", f"{name} cannot be logged: gatdiag measures what has this name")
            return False
        if not is_valid_unicode(name):
            self._guard.warn(ascii(name), f"values of {name!a} are lost: the name is not valid Unicode")
            return False
        if len(self._logged) >= _MOST_NAMES:
            self._guard.warn("names", f"only {_MOST_NAMES} scalars can be logged; {name!a} and others are lost")
            return False
        self._logged.add(name)
        return True

    def row(self, step: int) -> dict[str, Any]:
        """The row of a step in the table `steps`, which begins with its time, to be filled in until it is written."""
        return self._rows.setdefault(step, {"step": step, "time": time.monotonic() - self._start})

    def step_rates(self, step: int, rates: Mapping[tuple[str, int], Any]) -> None:
        """Learning rates of a recorded step; each key has a column of its own, in the order in which they came."""
        row = self.row(step)
        for key, rate in rates.items():
            number = self._rates.setdefault(key, len(self._rates))
            if number < _MOST_RATES:
                row["learning_rate" if number == 0 else f"learning_rate_{number}"] = (
                    rate.detach().clone() if isinstance(rate, Tensor) else float(rate)
                )

    def write(self, tables: Mapping[Any, Mapping[str, Any]], watched: Mapping[str, Any], before: int) -> None:
        """The rows of a few steps."""
        if self.first_non_finite is None:
            self._guard("the place of the first NaN or infinity", self._look, tables, watched)
        for table, columns in tables.items():
            self._append(table, columns)
        self.saw_layers |= "layers" in tables
        complete = sorted(step for step in self._rows if step < before)
        rows = _to_host([self._rows.pop(step) for step in complete])
        for row in rows:
            self.latest |= {name: value for name, value in row.items() if isinstance(value, float)}
        if rows:
            self._append("steps", rows)

    def run(self, before: int) -> Run:
        """The run as it is now, with rows of `steps` before a step that wait for what may still be logged to them."""
        with suppress(OSError):  # of which the next rows tell
            self._store.flush()
        waiting = [dict(self._rows[step]) for step in sorted(self._rows) if step < before]
        return Run(self._store.folder, _to_host(waiting))

    def _append(self, table: Any, columns: Any) -> None:
        self._guard("rows that could not be written", self._store.append, table, columns)

    def _look(self, tables: Mapping[str, Mapping[str, Any]], watched: Mapping[str, Any]) -> None:
        self.first_non_finite = first_non_finite(tables, watched, self._layers, self._parameters)
        if self.first_non_finite is not None:
            self._store.update_meta(first_non_finite=asdict(self.first_non_finite))

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, error: BaseException | None, notes: Sequence[str]) -> None:
        """Write all that is left, and seal the run; interrupted, it is left as that of a process that was killed."""
        try:
            self.write({}, {}, np.iinfo(np.int64).max)
            every = dict.fromkeys([*self._store.meta["notes"], *notes, *self._guard.failures.values()])
            self._guard("notes on the run", self._store.update_meta, notes=list(every))
            ending: tuple[Any, str | None] = ("failed", type(error).__name__)
            status, message = self._guard("the reason why it ended", _ending, error) or ending
            self._store.seal(status, message)
        except Exception as failure:
            what = f"the run could not be sealed ({type(failure).__name__}: {failure})"
            self._guard.warn("sealing", f"{what}; what was written of it can be read, and resume=True seals it")
        finally:
            self._guard("rows that could not be written", self._store.close)


def _to_host(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with numbers for tensors; those of one device cross together."""
    away: dict[torch.device, list[tuple[int, str, Tensor]]] = {}
    for at, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, Tensor):
                away.setdefault(value.device, []).append((at, name, value))
    for cells in away.values():
        values = torch.stack([value.detach().double().reshape(()) for _, _, value in cells]).tolist()
        for (at, name, _), value in zip(cells, values, strict=True):
            rows[at][name] = value
    return rows


def _ending(error: BaseException | None) -> tuple[Any, str | None]:
    if error is None or isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return "finished", None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", None
    return "failed", " ".join(f"{type(error).__name__}: {error}".split())[:2000]


def _last_time(folder: Path) -> float:
    """Seconds since the start, at the last step that counts."""
    times = load(folder).steps["time"].dropna()
    return float(times.max()) if len(times) else 0.0


def _read_first(found: Any) -> FirstNonFinite | None:
    try:
        return None if found is None else FirstNonFinite(**found)
    except TypeError:  # written by a version that says more of it
        return None
