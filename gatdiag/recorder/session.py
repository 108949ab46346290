"""The recorder of a training: its start, its end, and what a loop calls meanwhile."""

import atexit
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from gatdiag.errors import InputError
from gatdiag.recorder import meta
from gatdiag.recorder.alarm import Alarm
from gatdiag.recorder.buffer import Observer
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks.outside import never_compiled
from gatdiag.recorder.plan import find_static_layers
from gatdiag.recorder.ranks import Claim, end_at_exit, is_first_process
from gatdiag.recorder.scalars import are_plain, flatten
from gatdiag.recorder.settings import Settings
from gatdiag.recorder.step import StepRecorder
from gatdiag.recorder.writer import Writer, check_folder
from gatdiag.structure.replica import unwrap

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis

DISABLED = "GATDIAG_DISABLE"

_active: list["Recorder"] = []  # in this process


class Recorder:
    """Records a training loop; created by `gatdiag.watch`, which documents the settings.

    What happens in a step is followed by a `StepRecorder`. Errors in the recorder never reach the training loop, and
    exceptions of the loop pass through unchanged.

    Args:
        model: The model.
        folder: Where the run is written.
        settings: What is recorded.
        enabled: False makes all methods no-ops.
        observer: Called with the status of the training after each measurement.

    Attributes:
        folder: Where the run is; not always the given folder (`Settings.numbered`).
        enabled: Whether anything is recorded.

    Raises:
        InputError: `model` is not a module, `folder` is not a path, or the budget is not between 0 and 1.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        enabled: bool = True,
        observer: Observer | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"watch() expects a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(folder, str | os.PathLike):
            raise InputError(f"watch() expects the folder of the run as a path, such as 'runs/gat10', got {folder!r}")
        settings = settings or Settings()
        self.folder = Path(folder).absolute()
        self.enabled = enabled and not _is_disabled()
        self._root, self._settings, self._observer, self._guard = unwrap(model), settings, observer, Guard()
        self._steps = StepRecorder(self._root, settings, self._guard, self._open, self._after_step, observer)
        self._writer: Writer | None = None  # None until the first step
        self._claim = Claim()
        self._given_folder = self.folder
        self._alarm: Alarm | None = None
        self._has_ended = False
        self._is_context = False  # used in a `with` statement; otherwise the recording ends when the interpreter exits
        self._process = os.getpid()

    def __repr__(self) -> str:
        """The run's folder and the number of steps."""
        return f"<Recorder of {self.folder}: {self._steps.counter.step} steps>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, is disabled."""
        return _make_disabled, (self.folder,)

    @property
    def unwritten(self) -> str:
        """Why something could not be written to the folder; "" if everything could."""
        return self._guard.unwritten

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start recording, which `gatdiag.watch` does before it returns; calling it again does nothing.

        Raises:
            InputError: The folder is not empty or is being recorded, the run to resume is of another model, no layer is
                left to record, or this recorder has ended.
            ModelError: The model has no parameters.
        """
        if not self.enabled or self in _active:
            return self
        if self._has_ended:
            raise InputError(
                "A recorder records once, and this one has ended; call gatdiag.watch again for another run"
            )
        layers, first_step = find_static_layers(self._root, self._settings.layer_filter), 0
        self._finish_other_in_folder()
        if is_first_process():
            self.folder, first_step = check_folder(self._given_folder, self._settings, layers)
        self._finish_other_of_model()
        self._steps.start(first_step)
        _active.append(self)
        atexit.register(self._end_at_exit)
        return self

    def _open(self) -> Writer | None:
        """Open the run if it is this process that records it; called when the first step is seen."""
        if not self._claim.take():
            return None
        settings = self._settings
        about = {
            **meta.describe_model(self._root),
            "cadence": settings.cadence,
            **meta.describe_recording(settings.selection),
        }
        about |= {} if settings.name is None else {"name": settings.name}
        layers = find_static_layers(self._root, settings.layer_filter)
        self._writer = writer = Writer(self._given_folder, about, self._guard, settings, layers)
        self.folder, self._process = writer.folder, os.getpid()
        if settings.warn:
            self._alarm = Alarm(self._diagnosis, self._guard, writer.first_non_finite)
        end_at_exit(self._end_at_exit)
        return writer

    def __enter__(self) -> Self:
        """Start recording, if it has not started, until the context is left."""
        self._is_context = True
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the recording; exceptions propagate."""
        self._end(error)

    def finish(self) -> None:
        """End the recording, as leaving the context and exiting the interpreter do. May be called twice."""
        self._end(None)

    def _finish_other_in_folder(self) -> None:
        """End an open recording in this folder if it is to be overwritten or resumed."""
        if self._settings.overwrite or self._settings.resume is not False:
            for other in [other for other in _active if other._runs_until_exit and other.folder == self.folder]:
                other.finish()

    def _finish_other_of_model(self) -> None:
        """End an open recording of this model."""
        for other in [other for other in _active if other._runs_until_exit and other._root is self._root]:
            if other._leaves_run:
                other._guard.warn(
                    "another recording",
                    f"the recording in {other.folder} has ended because the model is watched again, in {self.folder}; "
                    "call finish() on a recorder when its training is over",
                )
            other.finish()

    @property
    def _runs_until_exit(self) -> bool:
        return not self._is_context and self._process == os.getpid()

    @property
    def _leaves_run(self) -> bool:
        return self._claim.is_taken or not self._settings.needs_step

    def _end_at_exit(self) -> None:
        is_interactive = hasattr(sys, "ps1")
        self._end(None if is_interactive else getattr(sys, "last_value", None))  # the uncaught exception

    def _end(self, error: BaseException | None) -> None:
        if self not in _active or self._process != os.getpid():
            return
        steps = self._steps
        if self._leaves_run and not self._claim.is_taken:
            steps.decide()  # no step was made
        self._has_ended = True
        _active.remove(self)
        atexit.unregister(self._end_at_exit)
        if (writer := self._writer) is None:
            steps.detach()
            steps.release()
            return
        notes: list[str] = []
        try:
            steps.detach()
            steps.finish()
            self._warn_if_nothing_seen(writer, error)
            notes += steps.notes
            if steps.plan is not None:
                self._guard("final parameters", writer.save_snapshot, "final", steps.plan.parameters)
        finally:  # also after an interrupt
            steps.detach()
            writer.end(error, notes)
            if writer.tracking is not None:
                self._guard("the tracker", writer.tracking.finish, writer.folder)
            if self._observer is not None:
                self._guard("the progress line", self._observer, None)
            steps.release()

    def _warn_if_nothing_seen(self, writer: Writer, error: BaseException | None) -> None:
        steps = self._steps
        if not (steps.counter.steps or steps.optimizers.stepped_in_backward) and error is None:
            self._guard.warn(
                "steps",
                "no step of an optimizer that holds parameters of this model was seen, so nothing was recorded. "
                "If your optimizer is not a torch.optim.Optimizer, or makes its steps inside of code compiled by "
                "torch.compile, call recorder.step() before it updates the weights, outside of compiled code",
            )
        elif (
            steps.counter.records
            and steps.plan is not None
            and steps.plan.layers
            and not writer.saw_layers
            and "outputs" in self._settings.selection.every
        ):
            self._guard.warn(
                "layers",
                "no layer output was seen: layers inside compiled code, or whose forward is not called through the "
                "module, cannot be recorded without changing the computation, nor can nested tensors. Parameters and "
                "laws are recorded",
            )

    def _after_step(self) -> None:
        """Called after each step, when the next one has a number."""
        writer, counter = self._writer, self._steps.counter
        if writer is not None and self._alarm is not None:
            check = self._alarm.check
            self._guard(
                "checks for training errors", check, counter.last_step, counter.records, writer.first_non_finite
            )

    # --- public methods -----------------------------------------------------------------------------------------------

    @never_compiled
    def log(self, /, *mappings: Mapping[Any, Any], **scalars: Any) -> None:
        """Log scalars of a step, such as losses and accuracies: `log(loss=loss)` or `log({"loss": loss})`.

        They belong to the last step, or to the coming step if its forward pass has begun. Any forward pass of the model
        in training mode with gradients enabled counts as one of the coming step, so evaluate with `model.eval()` or
        under `torch.no_grad()`, or log before the pass. Tensors on an accelerator are not waited for. A value that
        cannot be logged raises one warning that names it, and no exception; the others are kept.

        Args:
            mappings: As `scalars`; nested mappings are flattened: `{"train": {"loss": loss}}` gives "train/loss".
            scalars: Name -> number, tensor or array with one element, or torchmetrics metric. The figures draw "loss".
        """
        steps = self._steps
        if self not in _active or steps.has_ended:
            return
        with steps.lock, steps.stopwatch:
            given = scalars
            if mappings or not are_plain(scalars.values()):
                given = {}
                for mapping in (*mappings, scalars):
                    self._guard(f"logged values ({type(mapping).__name__})", given.update, flatten(mapping))
            steps.scalars.log(given, steps.step_of_log)

    @never_compiled
    def diagnosis(self) -> "Diagnosis":
        """Diagnose the training so far, as `gatdiag.diagnose` does.

        It may be called at any time, also in the middle of a step and after the end, and changes nothing. An error
        raises one warning, and no exception. It reads everything that was recorded: about 0.05 s after 100 steps of 10
        layers, about 1 s after 5,000 steps of 40 layers, and 0.2 s more at the first call, which imports pandas. This
        time does not count towards `budget`.

        Returns:
            The diagnosis; without findings if nothing is recorded.

        Example::

            for epoch in range(100):
                train_one_epoch()
                if recorder.diagnosis().verdict.severity == "error":
                    break
        """
        from gatdiag.diagnosis import Diagnosis  # imports pandas, which recording does not need

        found: Diagnosis | None = self._guard("the diagnosis", self._diagnosis)
        return Diagnosis() if found is None else found

    def _diagnosis(self, codes: Collection[str] = ()) -> "Diagnosis":
        """The diagnosis so far; empty if codes are given and none of them is found, which is quicker."""
        from gatdiag.diagnosis import Diagnosis, diagnose, has_finding, run_checks
        from gatdiag.diagnosis.facts import Facts

        if self._writer is None:
            return Diagnosis()
        if self not in _active or self._process != os.getpid():
            return diagnose(self.folder)
        counter = self._steps.counter
        with self._steps.lock:
            self._steps.write_waiting(counter.last_step)
            facts = Facts(self._writer.read_run(counter.step))
        return run_checks(facts) if not codes or has_finding(facts, codes) else Diagnosis()

    @never_compiled
    def note(self, text: str) -> None:
        """Add a note to the run, which the report shows."""
        self._guard.messages.setdefault(text, text)

    @never_compiled
    def step(self, number: int | None = None) -> AbstractContextManager[Any]:
        """Announce a step of an optimizer that is not a `torch.optim.Optimizer`.

        Call it when the gradients have been computed and before the weights are updated. The updated weights are read
        when the returned context is left or, if it is not used as a context, at the next forward pass.

        Args:
            number: Number of the step, if steps were made that gatdiag did not see; by default one more than the last.
                A number that has been used raises a warning and is ignored.

        Example::

            loss.backward()
            with recorder.step():
                my_update(model)
        """
        if self in _active:
            self._steps.announce(number)
        context = ExitStack()
        context.callback(self._guard, "this step", self._steps.optimizers.close)
        return context


def _is_disabled() -> bool:
    return os.environ.get(DISABLED, "").strip().lower() not in ("", "0", "false", "no")


def _make_disabled(folder: Path) -> Recorder:
    return Recorder(nn.Module(), folder, enabled=False)
