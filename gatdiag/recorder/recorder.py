"""The recorder: a training loop runs inside it, and the run folder fills."""

import atexit
import os
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
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
from gatdiag.recorder.backward import BackwardPass, in_backward_pass
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.layers import LayerRecorder
from gatdiag.recorder.model import RecordingPlan, WatchedModel, static_layers
from gatdiag.recorder.optimizers import (
    OptimizerHooks,
    calling_scaler,
    unscale_of_outputs,
    unscale_of_parameters,
)
from gatdiag.recorder.scalars import TrainerMetrics, are_plain, flattened, scalar, training_loss
from gatdiag.recorder.schedule import Pace, StepCounter, Stopwatch
from gatdiag.recorder.settings import Settings
from gatdiag.recorder.signals import Signals
from gatdiag.recorder.weights import are_equal, are_finite
from gatdiag.recorder.writer import Writer
from gatdiag.structure.replica import unwrap

if TYPE_CHECKING:
    from gatdiag.diagnosis import Diagnosis

DISABLED = "GATDIAG_DISABLE"

_SHOWN = 0.1  # seconds after which an observer sees a step

_PERHAPS_SCALED = (
    "layers return float16, and no torch.amp.GradScaler is known: if the loss is scaled, so are the recorded gradients "
    "of layer outputs. Give the scaler to watch(..., scaler=...)"
)


_recording: list["Recorder"] = []  # those of this process that have begun and not ended


class Recorder:
    """Records a training loop; `gatdiag.watch` makes one, and says what can be set.

    A step is opened by the optimizer (or by `step()`), measured, and closed when the weights have moved; rows are
    written then. Layers are measured while they run, if the step that is coming is recorded. Nothing that fails in
    here reaches the loop, and nothing that is raised in the loop is touched.

    Args:
        model: The model.
        folder: Where the run is written.
        settings: What is recorded.
        enabled: False makes all of it a no-op.
        observer: Called with the state of the training after each record.

    Attributes:
        folder: Where the run is.
        enabled: Whether it records at all.
        is_ahead: Whether training has begun to compute the coming step.

    Raises:
        InputError: The model or the budget is not one.
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
            raise InputError(f"watch() expects the folder of the run, such as 'runs/gat10', got {folder!r}")
        settings = settings or Settings()
        self.folder = Path(folder).absolute()
        self.enabled = enabled and not _disabled() and _is_first_process()
        self.is_ahead = False
        self._root = unwrap(model)
        self._settings, self._selection, self._observer = settings, settings.selection, observer
        self._scaler = settings.scaler
        self._guard, self._stopwatch = Guard(), Stopwatch()
        self._pace = Pace(settings.share, self._stopwatch)
        self._counter = StepCounter(settings.every, self._pace, self._guard)
        self._model = WatchedModel(self._root, settings, self._guard, self._begin_recording, self._follow)
        self._layers = LayerRecorder(self._root, self._model.tape, self._selection, self._guard, self._stopwatch, self)
        self._steps = OptimizerHooks(lambda: list(self._root.parameters()), self, self._guard, settings.optimizers)
        self._writer: Writer | None = None
        self._backlog: Backlog | None = None  # of the plan that is recorded, as long as there is one
        self._sample: Sample | None = None  # of the step that is open, if one is taken
        self._count = -1  # parameters that had a gradient in the last step
        self._backward_pass = BackwardPass()
        self._signals = Signals(self._root, self._guard)
        self._trainer = TrainerMetrics(self._root)
        self._logs_loss = self._has_loss = False  # whether the user logs a loss, and whether closures return it
        self._alarm: Alarm | None = None
        self._has_ended = False
        self._is_entered = False  # leaving the context ends it; else the exit of the interpreter does
        # optimizers that meta.json tells of -> the first parameter of the model that each holds
        self._known = weakref.WeakKeyDictionary[Optimizer, str]()
        self._members: Sequence[Optimizer] = ()  # those that make the step that is open
        self._process = os.getpid()

    def __repr__(self) -> str:
        """Where the run is, and how many steps were made."""
        return f"<Recorder of {self.folder}: {self._counter.step} steps>"

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to record; harmless if it has begun, as it has where `gatdiag.watch` returned it.

        Raises:
            InputError: The folder holds something, or is being recorded; or the run to be resumed is of another model;
                or no layer is left to record; or this recorder has ended.
            ModelError: The model has no parameters.
        """
        if not self.enabled or self._layers.is_attached:
            return self
        if self._has_ended:
            raise InputError("A recorder records once; call gatdiag.watch again for another run")
        settings = self._settings
        layers = static_layers(self._root, settings.keeps)
        about = {**meta.of_model(self._root), "cadence": settings.cadence, **meta.fixed(self._selection)}
        about |= {} if settings.name is None else {"name": settings.name}
        self._free_folder()
        self._writer = Writer(
            self.folder, about, self._guard, overwrite=settings.overwrite, resume=settings.resume, layers=layers
        )
        if settings.warn:
            self._alarm = Alarm(self._diagnosis, self._guard, self._writer.first_non_finite)
        self._free_model()
        self._counter.start(self._writer.next_step)
        self._layers.start_step(self._counter.record)
        self._layers.listen_to(layers)
        self._layers.attach()
        self._steps.attach()
        _recording.append(self)
        atexit.register(self._end_at_exit)
        return self

    def __enter__(self) -> Self:
        """Begin to record, if it has not begun; leaving the context ends it."""
        self._is_entered = True
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the recording; an exception goes on as it came."""
        self._end(error)

    def finish(self) -> None:
        """End the recording, as leaving the context and the exit of the interpreter do. May be called twice."""
        self._end(None)

    close = finish

    def _free_folder(self) -> None:
        """End an earlier recording in this folder that was to go on until the exit, if it is to be replaced."""
        for other in [other for other in _recording if other._goes_on_until_exit and other.folder == self.folder]:
            if not self._settings.overwrite and self._settings.resume is False:
                raise InputError(
                    f"{self.folder} is being recorded since an earlier call of watch(): call finish() on the recorder "
                    "that it returned, give another folder, or say overwrite=True to delete that run or resume=True "
                    "to continue it"
                )
            other.finish()

    def _free_model(self) -> None:
        """End an earlier recording of this model that was to go on until the exit: its training is over."""
        for other in [other for other in _recording if other._goes_on_until_exit and other._root is self._root]:
            other._guard.warn(
                "another recording",
                f"the recording in {other.folder} has ended, for the model is watched again, in {self.folder}; call "
                "finish() on a recorder when its training is over",
            )
            other.finish()

    @property
    def _goes_on_until_exit(self) -> bool:
        return not self._is_entered and self._process == os.getpid()

    def _end_at_exit(self) -> None:
        """The interpreter exits; where it is not interactive, the last exception that nobody caught is why."""
        self._end(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))

    def _end(self, error: BaseException | None) -> None:
        if self not in _recording or self._writer is None or self._process != os.getpid():
            return
        writer, self._has_ended = self._writer, True
        _recording.remove(self)
        atexit.unregister(self._end_at_exit)
        notes: list[str] = []
        try:
            self._stop_listening()
            self._write_the_rest(writer, error)
            notes += self._layers.notes
            if (plan := self._model.plan) is not None:
                self._guard("final parameters", writer.save_snapshot, "final", plan.weights)
                if plan.neurons is not None and plan.neurons.unpredictable:
                    notes.append(f"predicted c: {plan.neurons.unpredictable}")
        finally:  # an interrupt may come while all that is going on
            self._stop_listening()
            writer.end(error, notes)
            if self._observer is not None:
                self._guard("the progress line", self._observer, None)
            self._model.forget()

    def _stop_listening(self) -> None:
        self._layers.stop()
        self._steps.remove()

    def _write_the_rest(self, writer: Writer, error: BaseException | None) -> None:
        if self._steps.is_open:
            self._guard("the last step", self._steps.close)
        self._log_what_a_trainer_knows(self._counter.last_step)
        if self._counter.steps:
            writer.row(self._counter.last_step)  # from which a resumed run goes on, though nothing was recorded of it
        self._measure(sys.maxsize)
        self._warn_of_nothing_seen(writer, error)
        self._guard("signals", self._tell_signals, at_once=True)
        self._model.warn_of_missing_laws()

    def _warn_of_nothing_seen(self, writer: Writer, error: BaseException | None) -> None:
        if not (self._counter.steps or self._steps.stepped_inside) and error is None:
            self._guard.warn(
                "steps",
                "no step of an optimizer that holds parameters of this model was seen, so nothing was recorded. "
                "If your optimizer is not one of torch's, call recorder.step() before it moves the weights",
            )
        elif self._counter.records and not writer.saw_layers and "outputs" in self._selection.every:
            self._guard.warn(
                "layers",
                "no output of a layer was seen: inside compiled code, and where layers are not called as modules, "
                "nothing can be read without changing the computation. Parameters and laws are recorded",
            )

    # --- what the user calls ------------------------------------------------------------------------------------------

    def log(self, /, *mappings: Mapping[Any, Any], **scalars: Any) -> None:
        """Note numbers of a step: losses, accuracies, anything; `log(loss=loss)` or `log({"loss": loss})`.

        They belong to the last step that was made; or to the one that is coming, if its forward pass has been seen
        already. Any forward pass of the model in training mode with gradients enabled counts as one of the coming
        step: so evaluate with `model.eval()` or under `torch.no_grad()`, or log before, for what is logged after such
        a pass and before the step belongs to the step that is coming. Tensors on an accelerator are not waited for.
        What cannot be logged raises one warning that names it, and no exception; all else is kept.

        Args:
            mappings: As `scalars`; nested ones are flattened: `{"train": {"loss": loss}}` gives "train/loss".
            scalars: Name -> number, tensor or array with one element, or torchmetrics metric. "loss" is what the
                figures draw.
        """
        if self._writer is None or not self._layers.is_attached:
            return
        begin = self._stopwatch.clock()
        given = scalars
        if mappings or not are_plain(scalars.values()):
            given = {}
            for mapping in (*mappings, scalars):
                self._guard(f"logged values ({type(mapping).__name__})", given.update, flattened(mapping))
        self._logs_loss |= "loss" in given
        self._keep(given, self._counter.step if self.is_ahead or self._steps.is_open else self._counter.last_step)
        self._stopwatch.add_since(begin)

    def _keep(self, given: Mapping[str, Any], step: int) -> None:
        """Write what was logged, or found to be logged, of a step."""
        if self._writer is None or not given:
            return
        values: dict[str, float | Tensor] = {}
        for name, value in given.items():
            if self._writer.can_be_logged(name):
                number = self._guard(f"values of {name!r}", scalar, name, value)
                if number is not None:
                    values[name] = number
        self._writer.row(step).update(values)
        best, backlog = self._settings.best, self._backlog
        if best is not None and best[0] in values and backlog is not None:
            weights = backlog.plan.weights
            self._guard("best parameters", self._writer.offer_best, *best, float(values[best[0]]), step, weights)

    def diagnosis(self) -> "Diagnosis":
        """Diagnose the training as it is now: what `gatdiag.diagnose` says of all steps made so far.

        It may be called at any time, in the middle of a step and after the end, too, and changes nothing. Whatever
        keeps it from an answer raises one warning, and no exception. It reads all that was recorded: after 100 steps
        of 10 layers this takes about 0.05 s, after 5,000 steps of 40 layers about 1 s, and 0.2 s more at the first
        call, which loads pandas. That is not part of what `budget` limits.

        Returns:
            The diagnosis; one without findings where nothing is recorded.

        Example::

            for epoch in range(100):
                train_one_epoch()
                if recorder.diagnosis().verdict.severity == "error":
                    break
        """
        from gatdiag.diagnosis import Diagnosis  # loads pandas, which recording does without

        found: Diagnosis | None = self._guard("the diagnosis", self._diagnosis)
        return Diagnosis() if found is None else found

    def _diagnosis(self, codes: Collection[str] = ()) -> "Diagnosis":
        """As it is now; without findings where codes are given and none of these is found."""
        from gatdiag.diagnosis import Diagnosis, diagnose, has_finding, run_checks
        from gatdiag.diagnosis.facts import Facts

        if self._writer is None:
            return Diagnosis()
        if self not in _recording or self._process != os.getpid():
            return diagnose(self.folder)
        with self._stopwatch, torch.inference_mode(mode=False), torch.no_grad():
            self._measure(self._counter.last_step)
            if self._backlog is not None:
                self._tell_signals(at_once=True)
        facts = Facts(self._writer.run(self._counter.step))
        return run_checks(facts) if not codes or has_finding(facts, codes) else Diagnosis()

    def note(self, text: str) -> None:
        """Keep a remark with the run; the report shows it among the run's notes."""
        self._guard.failures.setdefault(text, text)

    def step(self, number: int | None = None) -> AbstractContextManager[Any]:
        """Say that a step is about to be made by something that is not an optimizer of torch's.

        Gradients must be there, and the weights must not have moved. The weights after the step are read when the
        context that this returns is left, or, if it is not used as one, at the next forward pass.

        Args:
            number: Which step it is, if steps were made that were not seen; else it is the one after the last. A
                number that was there already is warned of, and not used.

        Example::

            loss.backward()
            with recorder.step():
                my_update(model)
        """
        if self._writer is not None and self._layers.is_attached:
            if number is not None:
                self._steps.close()
                self._guard("numbers of steps", self._counter.skip_to, number)
            self.is_ahead = False
            self._guard("this step", self._steps.open)
            self.await_training()
        moving = ExitStack()
        moving.callback(self._guard, "this step", self._steps.close)
        return moving

    # --- what passes tell ---------------------------------------------------------------------------------------------

    def on_layer_begins(self) -> None:
        """A layer is about to run, outside of a backward pass."""
        if self._steps.is_open:
            self._guard("this step", self._steps.forward_begins)
        if not self.is_ahead and self._root.training:
            if not self._steps.is_open:
                self._log_what_a_trainer_knows(self._counter.last_step)
            self.is_ahead = True

    def on_layer_ends(self, layer: str, inputs: tuple[Any, ...]) -> None:
        """A layer has run."""
        if self._signals.is_chosen and self._looks_closely:
            self._guard("signals", self._signals.on_layer, layer, inputs)

    def on_gradient(self) -> None:
        """The gradient of a layer's output has been computed; the backward pass goes on."""
        self.is_ahead = True
        if self._backward_pass.is_another and self._backlog is not None and self._counter.record is not None:
            self._guard("gradient norms before clipping", self._await_the_end, self._backlog)

    def _await_the_end(self, backlog: Backlog) -> None:
        self._backward_pass.begin(backlog.plan.weights.flat.tensors)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._guard("gradient norms before clipping", self._on_backward_ended))

    def _on_backward_ended(self) -> None:
        if self._backlog is None:
            return
        with self._stopwatch, torch.no_grad():
            self._backward_pass.on_end(self._backlog.plan.weights.flat)
            if not (self._counter.steps or self._steps.is_open or self._steps.stepped_inside):
                is_away = any(parameter.device.type != "cpu" for parameter in self._root.parameters())
                is_rough = self._layers.saw_rough or is_away
                self._guard("checks of laws", self._model.check_laws, is_rough=is_rough)

    def on_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """The model's forward pass has ended."""
        if self._process == os.getpid():
            self._model.on_forward((args, kwargs))
            if self._looks_closely:
                self._guard("signals", self._signals.on_forward, args, kwargs, output)

    # --- what optimizers tell -----------------------------------------------------------------------------------------

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Gradients are there, and weights have not moved."""
        self._members = optimizers  # grows with those that join
        with self._stopwatch:
            self._model.on_step(self._counter.step, optimizers)
            self._guard("this step", self._open, optimizers)
            if self._counter.record is not None:
                self._guard("signals", self._signals.before_step, optimizers, self._sample)
        self.await_training()  # which ends the step where an exception keeps it from its end

    def await_training(self) -> None:
        """Until a step is recorded, listen for the next training pass alone, with which an open step ends, too."""
        if self._counter.record is None and not self._model.wants_inputs:
            self._layers.await_training()

    def on_loss(self, loss: Any) -> None:
        """A closure has returned its loss."""
        if isinstance(loss, Tensor | float) and not self._logs_loss:
            self._has_loss = True
            self._keep({"loss": loss * self._trainer.batches_per_step}, self._counter.step)

    def on_joined(self, optimizer: Optimizer) -> None:
        """A further optimizer takes part in the step."""
        with self._stopwatch, torch.no_grad():
            self._guard("this step", self._join, optimizer)

    def on_done(self) -> None:
        """The step is over."""
        with self._stopwatch:
            self._guard("this step", self._close)
            self._guard("signals", self._take_signals)
            self._log_what_a_trainer_knows(self._counter.step)
        self._sample, self._members = None, ()
        self.is_ahead = False
        self._counter.advance()
        if self._counter.record is None:
            self._backward_pass.give()  # of a pass that came before the last step was over, as of another loss
        with self._stopwatch:
            self._look_for_errors()
            self._layers.start_step(self._counter.record)
            self.await_training()

    def may_pass(self) -> bool:
        """Before a step that is like the last one: True if it is only to be counted."""
        backlog = self._backlog
        if self._counter.record is not None or not self._layers.rests or backlog is None:
            return False
        begin = self._stopwatch.clock()
        self.await_training()
        is_alike = self._guard("this step", self._is_alike, backlog.plan)
        self._stopwatch.add_since(begin)
        return is_alike is True

    def _is_alike(self, plan: RecordingPlan) -> bool:
        """True if as many gradients are there as at the last step, all finite, and c is not to be foreseen of them."""
        if (record := self._counter.next_record) is not None and plan.foresees(record):
            return False
        gradients = _gradients(plan)
        return len(gradients) == self._count and are_finite(gradients)

    def on_passed(self) -> None:
        """A step that is only counted was made."""
        begin = self._stopwatch.clock()
        self._signals.after_step(is_recorded=False)
        self._log_what_a_trainer_knows(self._counter.step)
        is_due = self._backlog is not None and self._backlog.is_due
        self._stopwatch.add_since(begin)
        if is_due:
            with self._stopwatch:
                self._guard("this step", self._measure, self._counter.step)
                self._look_for_errors()
        self.is_ahead = False
        self._counter.advance()
        if self._counter.record is not None:
            self._layers.start_step(self._counter.record)

    def _look_for_errors(self) -> None:
        if self._alarm is not None and self._writer is not None:
            first, counter = self._writer.first_non_finite, self._counter
            self._guard("errors of the training", self._alarm.look, counter.last_step, counter.records, first)

    @property
    def _looks_closely(self) -> bool:
        """True in a training pass of a step that is recorded."""
        return self._counter.record is not None and self._root.training and not in_backward_pass()

    def _take_signals(self) -> None:
        is_recorded = self._counter.record is not None
        self._signals.after_step(is_recorded=is_recorded)
        if is_recorded and self._backlog is not None:
            self._tell_signals()

    def _tell_signals(self, *, at_once: bool = False) -> None:
        news = self._signals.news(at_once=at_once)
        if self._writer is not None and news is not None:
            self._writer.describe(signals=news)

    def _log_what_a_trainer_knows(self, step: int) -> None:
        if "_trainer" not in vars(self._root):
            return
        values = self._guard("metrics of the trainer", self._trainer.news)
        if not values:
            return
        loss = None if self._has_loss or self._logs_loss else training_loss(values)
        self._keep(values if loss is None else {**values, "loss": values[loss]}, step)

    def _open(self, optimizers: Sequence[Optimizer]) -> None:
        backlog, counter = self._backlog, self._counter
        if backlog is None:
            return
        plan = backlog.plan
        if counter.record is not None:
            backlog.writer.row(counter.step)
        for optimizer in optimizers:
            self._meet(optimizer, backlog.writer)
        gradients = _gradients(plan)
        self._count = len(gradients)
        if counter.record is None and not are_finite(gradients):
            backlog.watch(counter.step, plan.weights.gradient_norms())
        foresees = bool(optimizers) and plan.foresees(counter.next_record)
        if counter.record is not None or foresees:
            self._sample = self._take(backlog, optimizers, foresees=foresees)

    @torch.no_grad()
    def _take(self, backlog: Backlog, optimizers: Sequence[Optimizer], *, foresees: bool) -> Sample:
        """A sample of the step before its weights move."""
        unscale = unscale_of_parameters(optimizers)
        sample = backlog.take(self._counter.step, self._counter.record, self._layers.due, unscale)
        neurons = backlog.plan.neurons
        if foresees and neurons is not None:
            sample.moves = {}
            for optimizer in optimizers:
                neurons.foresee(sample, optimizer)
        if sample.record is not None:
            sample.layers, sample.unscale = self._layers.take(), unscale_of_outputs(self._scaler)
            if self._layers.saw_half and self._scaler is None:
                self._guard.warn("gradients of float16 outputs", _PERHAPS_SCALED)
            sample.unscale_raw = unscale if sample.unscale is None else sample.unscale
            sample.raw = self._backward_pass.give()
            if sample.raw is not None and sample.unscale_raw is None and are_equal(sample.raw, sample.gradients):
                sample.raw = sample.gradients
        return sample

    def _join(self, optimizer: Optimizer) -> None:
        backlog, sample = self._backlog, self._sample
        if backlog is None:
            return
        self._meet(optimizer, backlog.writer)
        if sample is not None:
            backlog.join(sample, optimizer, unscale_of_parameters([optimizer]))
            if backlog.plan.neurons is not None:
                backlog.plan.neurons.foresee(sample, optimizer)

    def _close(self) -> None:
        backlog, sample = self._backlog, self._sample
        if backlog is None:
            return
        self._meet_misdirected(backlog.writer)
        if sample is not None:
            if sample.record is not None and (self._signals.is_close or "update_ratio" in self._selection.columns):
                with torch.no_grad():
                    backlog.take_moved(sample)
            self._sample = None  # if an interrupt comes now, the step is closed once more
            backlog.add(sample)
        if backlog.is_due:
            self._measure(self._counter.step)

    def _measure(self, before: int) -> None:
        """Measure and write what waits; to the steps before this one nothing is logged any more."""
        backlog = self._backlog
        if backlog is None:
            return
        begin, records = self._stopwatch.clock(), len(backlog)
        backlog.measure(before)
        self._pace.add_measuring(self._stopwatch.clock() - begin, records)
        if self._observer is not None and (status := backlog.status()) is not None:
            self._guard("the progress line", self._observer, status)

    def _meet(self, optimizer: Optimizer, writer: Writer, *, own: bool = False) -> None:
        """Describe an optimizer that holds parameters of the model, once, and its learning rates in this step."""
        if optimizer not in self._known:
            if not own and not self._steps.holds_own(optimizer):
                return
            names = {id(parameter): name for name, parameter in self._root.named_parameters()}
            self._known[optimizer] = next((names[key] for key in held_by(optimizer) if key in names), "")
            self._guard("descriptions of the run", writer.add_optimizer, optimizer, names, self._counter.step)
            if self._scaler is None:
                self._scaler = calling_scaler()
        if self._counter.record is not None:
            groups = enumerate(optimizer.param_groups)
            rates = {(self._known[optimizer], number): group["lr"] for number, group in groups if "lr" in group}
            writer.step_rates(self._counter.step, rates)

    def _meet_misdirected(self, writer: Writer) -> None:
        """Say so if none of those that made the step holds a parameter of the model; else they only went along."""
        if self._members and not any(optimizer in self._known for optimizer in self._members):
            kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in self._members}))
            self._guard.warn(
                "replaced parameters",  # of which the same is said where it is seen to happen
                f"the optimizer of step {self._counter.step} ({kinds}) holds none of the model's parameters, so that "
                "the model does not move: make it from model.parameters(), after the model was made or replaced",
            )
            for optimizer in self._members:
                self._meet(optimizer, writer, own=True)

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _begin_recording(self, plan: RecordingPlan) -> bool:
        """Say what is recorded, and keep the initial weights."""
        self._layers.listen_to(plan.layers)
        writer = self._writer
        if writer is None or self._guard("all measurements", writer.begin, plan) is not True:
            return False
        self._guard("changes since the beginning", writer.first_snapshot, plan.weights)
        self._start_backlog(plan, writer)
        return True

    def _follow(self) -> None:
        """Follow a plan that has changed."""
        self._steps.refresh()
        self._measure(self._counter.step)
        backlog, plan = self._backlog, self._model.plan
        if plan is None:
            self._backlog = None
        elif backlog is not None:
            self._layers.listen_to(plan.layers)
            backlog.writer.describe(laws=meta.of_laws(plan.recorded_laws, plan.excluded, plan.error))
            self._start_backlog(plan, backlog.writer)

    def _start_backlog(self, plan: RecordingPlan, writer: Writer) -> None:
        seconds = {} if self._observer is None else {"seconds": _SHOWN}
        self._signals.recorded = plan.weights.tensors
        self._backlog = Backlog(plan, self._selection.columns, self._guard, writer, **seconds)


def _gradients(plan: RecordingPlan) -> list[Tensor]:
    return [gradient for tensor in plan.weights.flat.tensors if (gradient := tensor.grad) is not None]


def _disabled() -> bool:
    return os.environ.get(DISABLED, "").strip().lower() not in ("", "0", "false", "no")


def _is_first_process() -> bool:
    """In distributed training only the first process writes."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
