"""The recorder: brings all parts of a recording together."""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.laws.prediction import held_by
from gatdiag.recorder import meta
from gatdiag.recorder.alarm import Alarm
from gatdiag.recorder.backlog import Backlog, Observer, Sample
from gatdiag.recorder.backward import BackwardPass, is_in_backward_pass
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks.outside import Outside, never_compiled, run_as_is
from gatdiag.recorder.layers import LayerRecorder
from gatdiag.recorder.model import RecordingPlan, WatchedModel, find_static_layers
from gatdiag.recorder.optimizers import (
    OptimizerHooks,
    find_calling_scaler,
    output_unscale,
    parameter_unscale,
)
from gatdiag.recorder.ranks import Claim, end_at_exit, is_first_process
from gatdiag.recorder.scalars import TrainerMetrics, are_plain, find_training_loss, flatten, to_scalar
from gatdiag.recorder.schedule import Pace, StepCounter, Stopwatch
from gatdiag.recorder.settings import Settings
from gatdiag.recorder.signals import Signals
from gatdiag.recorder.weights import are_equal, are_finite
from gatdiag.recorder.writer import Writer, check_folder
from gatdiag.structure.adapters import EXPLAINER_MASK
from gatdiag.structure.replica import unwrap

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis

DISABLED = "GATDIAG_DISABLE"

_OBSERVER_SECONDS = 0.1  # samples are measured this often if an observer is waiting for them
_UNKNOWN_SCALER = (
    "layers return float16, but no torch.amp.GradScaler was found: if the loss is scaled, the recorded gradients of "
    "layer outputs are scaled, too. Pass the scaler to watch(..., scaler=...)"
)


_active: list["Recorder"] = []  # in this process


class Recorder:
    """Records a training loop; created by `gatdiag.watch`, which documents the settings.

    The optimizer (or `step()`) opens a step before the weights move and closes it afterwards; rows are written then.
    Layers are measured while they run, if the coming step is recorded. Errors in the recorder never reach the training
    loop, and exceptions of the loop pass through unchanged.

    Args:
        model: The model.
        folder: Where the run is written.
        settings: What is recorded.
        enabled: False makes all methods no-ops.
        observer: Called with the status of the training after each measurement.

    Attributes:
        folder: Where the run is; not always the given folder (`Settings.numbered`).
        enabled: Whether anything is recorded.
        has_begun_step: Whether the forward pass of the coming step has begun.

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
        self.has_begun_step = False
        self._root = unwrap(model)
        self._settings, self._selection, self._observer = settings, settings.selection, observer
        self._scaler = settings.scaler
        self._guard, self._stopwatch = Guard(), Stopwatch()
        self._pace = Pace(settings.budget_share, self._stopwatch)
        self._counter = StepCounter(settings.every, self._pace, self._guard)
        self._model = WatchedModel(self._root, settings, self._guard, self._begin_plan, self._apply_plan)
        self._layers = LayerRecorder(self._root, self._model.tape, self._selection, self._guard, self._stopwatch, self)
        self._steps = OptimizerHooks(self._parameters, self, self._guard, settings.optimizers)
        self._writer: Writer | None = None  # None until the first step
        self._claim = Claim()
        self._is_undecided = False  # whether this process records, until the first step
        self._given_folder = self.folder
        self._logged_early: list[dict[str, Any]] = []  # before the first step
        self._backlog: Backlog | None = None  # None until the first training step, and after parameters were replaced
        self._sample: Sample | None = None  # of the open step
        self._gradient_count = -1  # parameters with a gradient in the last step
        self._unchecked_steps, self._check_interval = 0, 1  # steps since gradients were read, and from one to the next
        self._backward_pass = BackwardPass()
        self._signals = Signals(self._root, self._guard, self.on_gradient)
        self._trainer = TrainerMetrics(self._root)
        self._logs_loss = self._closure_returns_loss = False
        self._alarm: Alarm | None = None
        self._has_ended = False
        self._is_context = False  # used in a `with` statement; otherwise the recording ends when the interpreter exits
        # optimizers described in meta.json -> the first parameter of the model that each holds, and the number of all
        self._known_optimizers = weakref.WeakKeyDictionary[Optimizer, tuple[str, int]]()
        self._step_optimizers: Sequence[Optimizer] = ()  # of the open step
        self._process = os.getpid()

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self._root.named_parameters() if not name.endswith(EXPLAINER_MASK)]

    def __repr__(self) -> str:
        """The run's folder and the number of steps."""
        return f"<Recorder of {self.folder}: {self._counter.step} steps>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, is disabled."""
        return _make_disabled, (self.folder,)

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start recording, which `gatdiag.watch` does before it returns; calling it again does nothing.

        Raises:
            InputError: The folder is not empty or is being recorded, the run to resume is of another model, no layer is
                left to record, or this recorder has ended.
            ModelError: The model has no parameters.
        """
        if not self.enabled or self._layers.is_attached:
            return self
        if self._has_ended:
            raise InputError(
                "A recorder records once, and this one has ended; call gatdiag.watch again for another run"
            )
        settings = self._settings
        layers = find_static_layers(self._root, settings.layer_filter)
        about = {
            **meta.describe_model(self._root),
            "cadence": settings.cadence,
            **meta.describe_recording(self._selection),
        }
        about |= {} if settings.name is None else {"name": settings.name}
        self._about, self._static_layers, self._is_undecided = about, layers, True
        self._finish_other_in_folder()
        if is_first_process():
            self.folder, first = check_folder(self._given_folder, settings, layers)
            self._counter.start(first)
        self._finish_other_of_model()
        self._start_step()
        self._layers.set_layers(layers)
        self._layers.attach()
        self._steps.attach()
        _active.append(self)
        atexit.register(self._end_at_exit)
        return self

    def _decide(self) -> None:
        """Called when the first step is seen: open the run, if it is this process that records it."""
        if not self._is_undecided:
            return
        self._is_undecided = False
        if not self._claim.take() or not self._guard("all measurements", self._open):
            self.enabled = False
            self._layers.detach()
            self._steps.detach()

    def _open(self) -> bool:
        settings = self._settings
        self._writer = writer = Writer(self._given_folder, self._about, self._guard, settings, self._static_layers)
        self.folder, self._process = writer.folder, os.getpid()
        if settings.warn:
            self._alarm = Alarm(self._diagnosis, self._guard, writer.first_non_finite)
        for given in self._logged_early:
            self._write_scalars(given, self._counter.step)
        self._logged_early = []
        end_at_exit(self._end_at_exit)
        return self._model.plan is None or self._write_plan(self._model.plan, writer)

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
            other._guard.warn(
                "another recording",
                f"the recording in {other.folder} has ended because the model is watched again, in {self.folder}; call "
                "finish() on a recorder when its training is over",
            )
            other.finish()

    @property
    def _runs_until_exit(self) -> bool:
        return not self._is_context and self._process == os.getpid()

    def _end_at_exit(self) -> None:
        is_interactive = hasattr(sys, "ps1")
        self._end(None if is_interactive else getattr(sys, "last_value", None))  # the uncaught exception

    def _end(self, error: BaseException | None) -> None:
        if self not in _active or self._process != os.getpid():
            return
        if self._is_undecided and not self._claim.is_taken:
            self._decide()  # no step was made
        self._has_ended, self._is_undecided = True, False
        _active.remove(self)
        atexit.unregister(self._end_at_exit)
        if self._writer is None:
            self._detach()
            self._model.release()
            return
        writer = self._writer
        notes: list[str] = []
        try:
            self._detach()
            self._write_remaining(writer, error)
            notes += self._layers.notes.values()
            if (plan := self._model.plan) is not None:
                self._guard("final parameters", writer.save_snapshot, "final", plan.weights)
                if plan.neurons is not None and plan.neurons.prediction_error:
                    notes.append(f"predicted c: {plan.neurons.prediction_error}")
        finally:  # also after an interrupt
            self._detach()
            writer.end(error, notes)
            if self._observer is not None:
                self._guard("the progress line", self._observer, None)
            self._model.release()

    def _detach(self) -> None:
        self._layers.detach()
        self._steps.detach()

    def _write_remaining(self, writer: Writer, error: BaseException | None) -> None:
        if self._steps.is_open:
            self._guard("the last step", self._steps.close)
        self._log_trainer_metrics(self._counter.last_step)
        if self._counter.steps:
            writer.row(self._counter.last_step)  # a resumed run continues after it, even if it was not recorded
        self._measure_backlog(sys.maxsize)
        self._warn_if_nothing_seen(writer, error)
        self._guard("signals", self._write_signals, at_once=True)

    def _warn_if_nothing_seen(self, writer: Writer, error: BaseException | None) -> None:
        if not (self._counter.steps or self._steps.stepped_in_backward) and error is None:
            self._guard.warn(
                "steps",
                "no step of an optimizer that holds parameters of this model was seen, so nothing was recorded. "
                "If your optimizer is not a torch.optim.Optimizer, or makes its steps inside of code compiled by "
                "torch.compile, call recorder.step() before it updates the weights, outside of compiled code",
            )
        elif (
            self._counter.records
            and self._model.plan is not None
            and self._model.plan.layers
            and not writer.saw_layers
            and "outputs" in self._selection.every
        ):
            self._guard.warn(
                "layers",
                "no layer output was seen: layers inside compiled code, or whose forward is not called through the "
                "module, cannot be recorded without changing the computation. Parameters and laws are recorded",
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
        if not self._layers.is_attached:
            return
        with self._stopwatch:
            self._log(mappings, scalars)

    def _log(self, mappings: Sequence[Mapping[Any, Any]], scalars: Mapping[str, Any]) -> None:
        given: Mapping[str, Any] = scalars
        if mappings or not are_plain(scalars.values()):
            given = merged = dict[str, Any]()
            for mapping in (*mappings, scalars):
                self._guard(f"logged values ({type(mapping).__name__})", merged.update, flatten(mapping))
        self._logs_loss |= "loss" in given
        self._write_scalars(
            given, self._counter.step if self.has_begun_step or self._steps.is_open else self._counter.last_step
        )

    def _write_scalars(self, given: Mapping[str, Any], step: int) -> None:
        """Add scalars to the row of a step."""
        if self._writer is None:
            found = {name: self._guard(f"values of {name!r}", to_scalar, name, value) for name, value in given.items()}
            self._logged_early.append({name: value for name, value in found.items() if value is not None})
            return
        values: dict[str, float | Tensor] = {}
        for name, value in given.items():
            if self._writer.can_log(name):
                number = self._guard(f"values of {name!r}", to_scalar, name, value)
                if number is not None:
                    values[name] = number
        self._writer.row(step).update(values)
        best, backlog = self._settings.best, self._backlog
        if best is not None and best[0] in values and backlog is not None:
            weights = backlog.plan.weights
            self._guard("best parameters", self._writer.update_best, *best, float(values[best[0]]), step, weights)

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

        with self._stopwatch:  # training waits meanwhile, if it runs in another thread
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
        with Outside():
            self._measure_backlog(self._counter.last_step)
            if self._backlog is not None:
                self._write_signals(at_once=True)
        facts = Facts(self._writer.read_run(self._counter.step))
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
        self._decide()
        if self._writer is not None and self._layers.is_attached:
            if number is not None:
                self._steps.close()
                self._guard("the number of the step", self._counter.skip_to, number)
            self.has_begun_step = False
            self._guard("this step", self._steps.open)
            self.go_idle()
        context = ExitStack()
        context.callback(self._guard, "this step", self._steps.close)
        return context

    # --- called by hooks of modules and tensors -----------------------------------------------------------------------

    def on_layer_start(self) -> None:
        """Called before a layer runs outside of a backward pass."""
        if self._steps.is_open:
            self._guard("this step", self._steps.on_forward_start)
        if not self.has_begun_step and self._root.training:
            if not self._steps.is_open:
                self._log_trainer_metrics(self._counter.last_step)
            self.has_begun_step = True

    def on_layer_end(self, layer: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Called after a layer has run."""
        if self._signals.is_inspected and self._is_recorded_training:
            with Outside():
                self._guard("signals", self._signals.on_layer, layer, module, inputs)

    def on_gradient(self) -> None:
        """Called in the backward pass, with the gradient of a layer's or the model's output just computed."""
        self.has_begun_step = True
        self._decide()
        if self._backward_pass.is_new and self._backlog is not None and self._counter.record is not None:
            self._guard("gradient norms before clipping", self._watch_backward_pass, self._backlog)

    def _watch_backward_pass(self, backlog: Backlog) -> None:
        self._backward_pass.begin(backlog.plan.weights.flat.tensors)
        _call_after_backward_pass(partial(_call_after_backward_pass, self._on_last_gradient))

    @run_as_is
    def _on_last_gradient(self) -> None:
        self._guard("gradient norms before clipping", self._on_backward_end)

    def _on_backward_end(self) -> None:
        if self._backlog is None:
            return
        with self._stopwatch, Outside():
            self._backward_pass.on_end(self._backlog.plan.weights.flat)
            if not (self._counter.steps or self._steps.is_open or self._steps.stepped_in_backward):
                is_on_accelerator = any(parameter.device.type != "cpu" for parameter in self._root.parameters())
                is_low_precision = self._layers.saw_low_precision or is_on_accelerator  # which may use TF32
                self._guard("tests of laws", self._model.check_laws, is_low_precision=is_low_precision)

    def on_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Called after the model's forward pass."""
        if self._process == os.getpid() or self._is_undecided:
            self._model.on_forward((args, kwargs))
            if self._is_recorded_training:
                self._guard("this step", self._add_unfrozen)
                with Outside():
                    self._guard("signals", self._signals.on_forward, args, kwargs, output)

    # --- called by hooks of optimizers --------------------------------------------------------------------------------

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Called at the beginning of a step, before the weights move."""
        self._step_optimizers = optimizers  # optimizers that join are appended to this list
        with self._stopwatch:
            self._model.on_step(self._counter.step)
            with Outside():
                self._decide()
                self._guard("this step", self._open_step, optimizers)
                if self._counter.record is not None:
                    self._guard("signals", self._signals.before_step, optimizers, self._sample)
        self.go_idle()  # the next training pass closes the step if an exception prevents its end

    def go_idle(self) -> None:
        """If the step is not recorded, notice only the next training pass, which also closes an open step."""
        if self._counter.record is None and self._model.has_planned:
            self._layers.go_idle()

    def on_loss(self, loss: Any) -> None:
        """Called when a closure has returned its loss."""
        if isinstance(loss, Tensor | float) and not self._logs_loss:
            self._closure_returns_loss = True
            self._write_scalars({"loss": loss * self._trainer.batches_per_step}, self._counter.step)

    def on_optimizer_joined(self, optimizer: Optimizer) -> None:
        """Called when another optimizer takes part in the open step."""
        with self._stopwatch, Outside():
            self._guard("this step", self._join_step, optimizer)

    def on_step_end(self) -> None:
        """Called at the end of a step, after the weights have moved."""
        with self._stopwatch, Outside():
            self._guard("this step", self._close_step)
            if self._counter.record is not None and self._backlog is not None:
                self._guard("signals", self._write_signals)
            self._log_trainer_metrics(self._counter.step)
            self._sample, self._step_optimizers = None, ()
            self.has_begun_step = False
            self._counter.advance()
            if self._counter.record is None:
                self._backward_pass.take()  # drop it: another loss's backward pass may have run before this step ended
            self._check_for_errors()
            self._start_step()
            self.go_idle()

    def _start_step(self) -> None:
        """Begin the coming step."""
        self._layers.start_step(self._counter.record)
        self._signals.start_step(self._counter.steps, self._counter.record)

    # If steps are small, and most are not recorded, each function that is called in the next two slows training down.

    def can_skip_step(self) -> bool:
        """Called before a step of the optimizer that made the last one; True if this step need only be counted.

        So it is if it is not recorded, c need not be predicted, and as many parameters have gradients as at the last
        step, all finite.
        """
        backlog, counter = self._backlog, self._counter
        if counter.record is not None or not self._layers.is_idle or backlog is None or is_in_backward_pass():
            return False
        begin, record = self._stopwatch.clock(), counter.next_record
        self._unchecked_steps += 1
        can_skip = record is None or not backlog.plan.needs_prediction(record)
        if can_skip and self._unchecked_steps >= self._check_interval:
            can_skip = self._guard("this step", self._check_gradients, backlog.plan) is True
        self._layers.go_idle()
        self._stopwatch.seconds += self._stopwatch.clock() - begin
        return can_skip

    def on_step_skipped(self) -> None:
        """Called after a step that is only counted."""
        begin = self._stopwatch.clock()
        self._log_trainer_metrics(self._counter.step)
        self.has_begun_step = False
        self._counter.advance()
        if self._counter.record is not None:
            self._start_step()
        self._stopwatch.seconds += self._stopwatch.clock() - begin
        if self._backlog is not None and self._backlog.is_due:
            with self._stopwatch:
                self._guard("this step", self._measure_backlog, self._counter.last_step)
                self._check_for_errors()

    def _check_gradients(self, plan: RecordingPlan) -> bool:
        """True if as many parameters have gradients as at the last step, all finite."""
        begin = self._stopwatch.clock()
        gradients = _collect_gradients(plan)
        is_like_last = len(gradients) == self._gradient_count and are_finite(gradients)
        self._check_interval = self._pace.check_interval(self._stopwatch.clock() - begin)
        self._unchecked_steps = 0
        return is_like_last

    def _check_for_errors(self) -> None:
        if self._alarm is not None and self._writer is not None:
            first, counter = self._writer.first_non_finite, self._counter
            self._guard("checks for training errors", self._alarm.check, counter.last_step, counter.records, first)

    @property
    def _is_recorded_training(self) -> bool:
        """True in the training forward pass of a recorded step."""
        return self._counter.record is not None and self._root.training and not is_in_backward_pass()

    def _write_signals(self, *, at_once: bool = False) -> None:
        signals = self._signals.take_update(at_once=at_once)
        if self._writer is not None and signals is not None:
            self._writer.update_meta(signals=signals)

    def _log_trainer_metrics(self, step: int) -> None:
        if "_trainer" not in vars(self._root):
            return
        values = self._guard("metrics logged by the trainer", self._trainer.take_new)
        if not values:
            return
        loss = None if self._closure_returns_loss or self._logs_loss else find_training_loss(values)
        self._write_scalars(values if loss is None else {**values, "loss": values[loss]}, step)

    def _open_step(self, optimizers: Sequence[Optimizer]) -> None:
        self._add_unfrozen()
        backlog, counter = self._backlog, self._counter
        if backlog is None:
            return
        plan = backlog.plan
        if counter.record is not None:
            backlog.writer.row(counter.step)
        for optimizer in optimizers:
            self._describe_optimizer(optimizer, backlog.writer)
        gradients = _collect_gradients(plan)
        self._gradient_count = len(gradients)
        if counter.record is None and not are_finite(gradients):
            backlog.watch_gradients(counter.step, plan.weights.gradient_norms())
        predicts = bool(optimizers) and plan.needs_prediction(counter.next_record)
        if counter.record is not None or predicts:
            self._sample = self._take_sample(backlog, optimizers, predicts=predicts)

    @torch.no_grad()
    def _take_sample(self, backlog: Backlog, optimizers: Sequence[Optimizer], *, predicts: bool) -> Sample:
        """A sample of the step before the weights move."""
        unscale = parameter_unscale(optimizers)
        sample = backlog.take(self._counter.step, self._counter.record, self._layers.due_groups, unscale)
        neurons = backlog.plan.neurons
        if predicts and neurons is not None:
            sample.updates = {}
            for optimizer in optimizers:
                neurons.predict(sample, optimizer)
        if sample.record is not None:
            sample.forward_pass, sample.unscale_outputs = self._layers.take_pass(), output_unscale(self._scaler)
            if self._layers.saw_float16 and self._scaler is None:
                self._guard.warn("gradients of float16 outputs", _UNKNOWN_SCALER)
            sample.unscale_raw = unscale if sample.unscale_outputs is None else sample.unscale_outputs
            raw = sample.raw_gradients = self._backward_pass.take()
            if raw is not None and sample.unscale_raw is None and are_equal(raw, sample.gradients):
                sample.raw_gradients = sample.gradients
        return sample

    def _join_step(self, optimizer: Optimizer) -> None:
        backlog, sample = self._backlog, self._sample
        if backlog is None:
            return
        self._describe_optimizer(optimizer, backlog.writer)
        if sample is not None:
            backlog.join(sample, optimizer, parameter_unscale([optimizer]))
            if backlog.plan.neurons is not None:
                backlog.plan.neurons.predict(sample, optimizer)

    def _close_step(self) -> None:
        backlog, sample = self._backlog, self._sample
        if backlog is None:
            return
        self._warn_if_misdirected(backlog.writer)
        if sample is not None:
            if sample.record is not None:
                with torch.no_grad():
                    sample.weights_after = backlog.plan.weights.flat.weights()
            self._sample = None  # before `add`: after an interrupt, the step is closed once more
            backlog.add(sample)
        if backlog.is_due:
            self._measure_backlog(self._counter.step)

    def _measure_backlog(self, before: int) -> None:
        """Measure and write the samples that wait, and the rows of `steps` before this one."""
        backlog = self._backlog
        if backlog is None:
            return
        begin, records = self._stopwatch.clock(), len(backlog)
        backlog.measure(before)
        self._pace.add_measuring(self._stopwatch.clock() - begin, records)
        if self._observer is not None and (status := backlog.status()) is not None:
            self._guard("the progress line", self._observer, status)

    def _describe_optimizer(self, optimizer: Optimizer, writer: Writer, *, always: bool = False) -> None:
        """Describe a new or extended optimizer of the model, and write its learning rates in this step.

        Args:
            optimizer: Ignored if it holds no parameters of the model.
            writer: Where to.
            always: Describe the optimizer in any case.
        """
        first, known = self._known_optimizers.get(optimizer, ("", 0))
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count > known:
            if not always and not self._steps.holds_model_parameters(optimizer):
                return
            names = {id(parameter): name for name, parameter in self._root.named_parameters()}
            first = first or next((names[key] for key in held_by(optimizer) if key in names), "")
            self._known_optimizers[optimizer] = first, count
            step = self._counter.step
            self._guard("descriptions of the run", writer.add_optimizer, optimizer, names, step, is_known=bool(known))
            if self._scaler is None:
                self._scaler = find_calling_scaler()
        if self._counter.record is not None:
            groups = enumerate(optimizer.param_groups)
            rates = {(first, number): group["lr"] for number, group in groups if "lr" in group}
            writer.write_learning_rates(self._counter.step, rates)

    def _warn_if_misdirected(self, writer: Writer) -> None:
        """Warn if no optimizer of the step holds a parameter of the model."""
        if self._step_optimizers and not any(
            optimizer in self._known_optimizers for optimizer in self._step_optimizers
        ):
            kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in self._step_optimizers}))
            self._guard.warn(
                "replaced parameters",  # the same warning as where the replacement is noticed
                f"the optimizer of step {self._counter.step} ({kinds}) holds none of the model's parameters, so the "
                "model is not trained: create the optimizer from model.parameters() after the model was created or "
                "replaced",
            )
            for optimizer in self._step_optimizers:
                self._describe_optimizer(optimizer, writer, always=True)

    # --- the plan -----------------------------------------------------------------------------------------------------

    def _begin_plan(self, plan: RecordingPlan) -> bool:
        """Record what is planned."""
        self._layers.set_layers(plan.layers)
        return self._is_undecided or (self._writer is not None and self._write_plan(plan, self._writer))

    def _write_plan(self, plan: RecordingPlan, writer: Writer) -> bool:
        """Write the plan and the initial weights."""
        if self._guard("all measurements", writer.write_plan, plan) is not True:
            return False
        self._guard("changes since the beginning", writer.save_initial, plan.weights)
        self._start_backlog(plan, writer)
        return True

    def _apply_plan(self) -> None:
        """Apply the changed plan."""
        self._steps.refresh()
        self._measure_backlog(self._counter.step)
        backlog, plan = self._backlog, self._model.plan
        if plan is None:
            self._backlog = None
        elif backlog is not None:
            self._layers.set_layers(plan.layers)
            backlog.writer.update_meta(laws=meta.describe_laws(plan.recorded_laws, plan.excluded, plan.error))
            self._start_backlog(plan, backlog.writer)

    def _add_unfrozen(self) -> None:
        """Take samples, too, of parameters that have become trainable since the plan was made."""
        backlog = self._backlog
        if backlog is None or self._sample is not None or not any(p.requires_grad for p in backlog.plan.weights.others):
            return
        self._measure_backlog(self._counter.step)
        backlog.plan.weights.add_unfrozen()
        self._backward_pass.take()  # drop it: these parameters are not in it
        self._start_backlog(backlog.plan, backlog.writer)

    def _start_backlog(self, plan: RecordingPlan, writer: Writer) -> None:
        seconds = {} if self._observer is None else {"seconds": _OBSERVER_SECONDS}
        self._signals.parameters = plan.weights.flat.tensors
        self._backlog = Backlog(plan, self._selection.columns, self._guard, writer, **seconds)


def _collect_gradients(plan: RecordingPlan) -> list[Tensor]:
    return [gradient for tensor in plan.weights.flat.tensors if (gradient := tensor.grad) is not None]


@run_as_is
def _call_after_backward_pass(function: Callable[[], object]) -> None:
    """Call a function when the backward pass that runs now has ended.

    Data parallelism reduces gradients in such a call, too, which it asks for at the last gradient. A call that is asked
    for in a call comes after that.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def _make_disabled(folder: Path) -> Recorder:
    return Recorder(nn.Module(), folder, enabled=False)


def _is_disabled() -> bool:
    return os.environ.get(DISABLED, "").strip().lower() not in ("", "0", "false", "no")
