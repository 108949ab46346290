"""Writes rows, metadata and snapshots to the run folder."""

import time
from collections.abc import Mapping, Sequence
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
from gatdiag.recorder.measure.parameters import ParameterMeasurer
from gatdiag.recorder.non_finite import FirstNonFinite, first_non_finite
from gatdiag.recorder.plan import RecordingPlan
from gatdiag.recorder.settings import Settings
from gatdiag.recorder.tracking import Tracking
from gatdiag.run import Run, Store, load
from gatdiag.run.files import snapshot_path
from gatdiag.run.tables import is_logged
from gatdiag.structure import Layer
from gatdiag.structure.optimizers import plain_setting

_MAX_RATES = 100
_MAX_NAMES = 900
_MAX_OPTIMIZERS = 100  # a loop may create one at each step


def check_folder(folder: Path, settings: Settings, layers: Sequence[Layer]) -> tuple[Path, int]:
    """Where a run would be written, and its first step; creates nothing.

    Raises:
        InputError: It could not be written there.
    """
    try:
        if settings.resume is False:
            return Store.check(folder, overwrite=settings.overwrite, beside=settings.numbered), 0
        first = Store.check_resume(folder, None if settings.resume is True else settings.resume)
        meta.check_same_model(load(folder).meta["structure"], layers)
        return folder, first
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: Exception) -> InputError:
    return InputError(f"The run cannot be written to {folder}: {error}; use another folder")


class Writer:
    """Writes one run."""

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        guard: Guard,
        settings: Settings,
        layers: Sequence[Layer] = (),
    ) -> None:
        """Create the folder, or open it again."""
        self._guard, resume = guard, settings.resume
        try:
            if resume is False and settings.numbered:
                self._store = Store.create_beside(folder, about)
            elif resume is False:
                self._store = Store.create(folder, about, overwrite=settings.overwrite)
            else:
                meta.check_same_model(load(folder).meta["structure"], layers)
                self._store = Store.resume(folder, None if resume is True else resume)
        except (OSError, ValueError) as error:  # ValueError: an invalid file name
            raise _cannot_write(folder, error) from error
        self.folder = self._store.folder
        self._resumed = resume is not False
        self.next_step = self._store.next_step
        self.latest: dict[str, float] = {}  # the last written scalars
        self.saw_layers = False
        entry = self._store.meta.get("first_non_finite")
        self.first_non_finite = None if entry is None else FirstNonFinite(**entry)
        if self.first_non_finite is not None and self.first_non_finite.step >= self.next_step:  # superseded
            self.first_non_finite = None
            self._store.update_meta(first_non_finite=None)
        best = self._store.meta.get("best") or {}
        if best.get("step", -1) >= self.next_step:
            best = {}
            self._store.update_meta(best=None)
        self._best: float | None = best.get("value")
        self._rows: dict[int, dict[str, Any]] = {}  # rows of `steps` that are not written yet
        self._logged: set[str] = set()
        self._rates: dict[tuple[str, int], int] = {}  # parameter group -> number of its learning rate column
        self._layers: tuple[str, ...] = ()
        self._parameters: list[tuple[str, str]] = []
        self.tracking = None if settings.tracker is None else Tracking(settings.tracker)
        self._start = time.monotonic() - (_last_time(folder) if self._resumed else 0.0)

    def update_meta(self, **changes: Any) -> None:
        """Change entries of meta.json."""
        self._guard("descriptions of the run", self._store.update_meta, **changes)

    def add_optimizer(self, optimizer: Optimizer, names: Mapping[int, str], step: int, *, is_known: bool) -> None:
        """Describe an optimizer at its first step, or after parameters were added to it."""
        known = self._store.meta["optimizers"]
        merge = meta.extend_optimizer if is_known else meta.merge_optimizer
        optimizers = merge(known, meta.describe_optimizer(optimizer, names, step))
        if optimizers != known and len(optimizers) <= _MAX_OPTIMIZERS:
            self._store.update_meta(optimizers=optimizers)

    def write_plan(self, plan: RecordingPlan) -> None:
        """Describe the recorded layers and laws.

        Raises:
            InputError: The run that is resumed is of another model.
        """
        if self._resumed:
            meta.check_same_model(self._store.meta["structure"], plan.layers)
        self._store.update_meta(
            structure=meta.describe_structure(plan.layers, plan.structure.order),
            laws=meta.describe_laws(plan.recorded_laws, plan.excluded, plan.error),
        )
        self._layers = tuple(layer.name for layer in plan.layers)
        self._parameters = plan.parameter_names
        if self.tracking is not None:
            self.tracking.set_parameters([info.role for layer in plan.layers for info in layer.parameters])

    def write_violations(self, violated: Sequence[Mapping[str, int]]) -> None:
        """Mark laws, by position, as violated from a step on."""
        self.update_meta(laws={**self._store.meta["laws"], "violated": list(violated)})

    def save_initial(self, parameters: ParameterMeasurer) -> None:
        """Save the initial parameters; in a resumed run, measure changes against those that were saved."""
        path = snapshot_path(self._store.folder, "initial")
        if not (self._resumed and path.is_file()):
            self.save_snapshot("initial", parameters)
        parameters.set_initial(path)

    def save_snapshot(self, name: str, parameters: ParameterMeasurer) -> None:
        """Save the current parameters."""
        self._store.save_snapshot(name, parameters.arrays())

    def update_best(self, scalar: str, larger: bool, value: float, step: int, parameters: ParameterMeasurer) -> None:
        """Save the parameters if the scalar is better than ever before."""
        if np.isnan(value) or (self._best is not None and (value <= self._best if larger else value >= self._best)):
            return
        self.save_snapshot("best", parameters)
        self._best = value
        best = {"name": scalar, "mode": "max" if larger else "min", "value": value, "step": step}
        self._store.update_meta(best=best)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def can_log(self, name: str) -> bool:
        """True if scalars may have this name; otherwise warns."""
        if name in self._logged:
            return True
        if not is_logged(name):
            self._guard.warn(f"reserved {name}", f"{name} cannot be logged: gatdiag has a column of this name")
            return False
        if name.encode(errors="ignore").decode() != name:
            self._guard.warn(ascii(name), f"{name!a} cannot be logged: the name is not valid Unicode")
            return False
        if len(self._logged) >= _MAX_NAMES:
            self._guard.warn("names", f"only {_MAX_NAMES} scalars can be logged; {name!a} and others are not recorded")
            return False
        self._logged.add(name)
        return True

    def row(self, step: int) -> dict[str, Any]:
        """The row of a step in the table `steps`, to be filled in until it is written."""
        return self._rows.setdefault(step, {"step": step, "time": time.monotonic() - self._start})

    def write_learning_rates(self, step: int, rates: Mapping[tuple[str, int], Any]) -> None:
        """Add learning rates to the row of a step; columns are numbered in the order in which the keys first came."""
        row = self.row(step)
        for key, rate in rates.items():
            number = self._rates.setdefault(key, len(self._rates))
            value = rate.detach().clone() if issubclass(type(rate), Tensor) else plain_setting(rate)
            if not issubclass(type(value), Tensor | float | int):
                self._guard.note("learning rates", f"not recorded: learning rates of type {type(rate).__qualname__}")
            elif number < _MAX_RATES:
                name = "learning_rate" if number == 0 else f"learning_rate_{number}"
                row[name] = float(value) if type(value) is int else value

    def write(self, tables: Mapping[Any, Mapping[str, Any]], before: int) -> None:
        """Write the rows of several steps.

        Args:
            tables: Name -> columns.
            before: The rows of `steps` before this step are complete.
        """
        if self.first_non_finite is None:
            self._guard("the place of the first NaN or infinity", self._find_first_non_finite, tables)
        for table, columns in tables.items():
            self._append(table, columns)
        self.saw_layers |= "layers" in tables
        complete = sorted(step for step in self._rows if step < before)
        rows = _to_host([self._rows.pop(step) for step in complete])
        for row in rows:
            self.latest |= {name: value for name, value in row.items() if isinstance(value, float)}
        if rows:
            self._append("steps", rows)
        if self.tracking is not None:
            self._guard("the tracker", self.tracking.add, tables, rows)

    def read_run(self, before: int) -> Run:
        """The run so far, including rows of `steps` before this step that are not written yet."""
        waiting = [dict(self._rows[step]) for step in sorted(self._rows) if step < before]
        return Run(self._store.folder, _to_host(waiting))

    def _append(self, table: Any, columns: Any) -> None:
        self._guard("new rows", self._store.append, table, columns)

    def _find_first_non_finite(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.first_non_finite = first_non_finite(tables, self._layers, self._parameters)
        if self.first_non_finite is not None:
            self._store.update_meta(first_non_finite=asdict(self.first_non_finite))

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, error: BaseException | None, notes: Sequence[str]) -> None:
        """Write the remaining rows and seal the run; after an interrupt it is left like that of a killed process."""
        try:
            self.write({}, np.iinfo(np.int64).max)
            every = dict.fromkeys([*self._store.meta["notes"], *notes, *self._guard.messages.values()])
            self._guard("notes on the run", self._store.update_meta, notes=list(every))
            default: tuple[Any, str | None] = ("failed", type(error).__name__)
            status, reason = self._guard("the reason for the end", _describe_end, error) or default
            if lost := self._store.seal(status, reason):
                self._guard.warn("lost rows", lost)
        except Exception as failure:
            message = f"the run could not be sealed ({type(failure).__name__}: {failure}); what was written can be read"
            if isinstance(failure, OSError):
                self._guard.warn_of_files(message, failure)
            else:
                self._guard.warn("sealing", message)
        finally:
            self._guard("new rows", self._store.close)


def _to_host(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace tensors by numbers, with one transfer for each device."""
    by_device: dict[torch.device, list[tuple[int, str, Tensor]]] = {}
    for at, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append((at, name, value))
    for cells in by_device.values():
        values = torch.stack([value.detach().double().reshape(()) for _, _, value in cells]).tolist()
        for (at, name, _), value in zip(cells, values, strict=True):
            rows[at][name] = value
    return rows


def _describe_end(error: BaseException | None) -> tuple[Any, str | None]:
    """Status and message of the run."""
    if error is None or isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return "finished", None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", None
    return "failed", " ".join(f"{type(error).__name__}: {error}".split())[:2000]


def _last_time(folder: Path) -> float:
    """Seconds from the start to the last step."""
    times = load(folder).steps["time"].dropna()
    return float(times.max()) if len(times) else 0.0
