"""The recorder: a training loop runs inside it, and the run folder fills."""

import atexit
import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.hooks import Hooks, in_backward_pass
from gatdiag.recorder import description, scaling
from gatdiag.recorder.binding import holds_none_of
from gatdiag.recorder.clipping import BeforeClipping
from gatdiag.recorder.clock import Clock
from gatdiag.recorder.groups import Metrics, select
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.measurement import StepMeasurement
from gatdiag.recorder.passes import Passes
from gatdiag.recorder.plan import Patterns, Plan, filter_of, static_layers
from gatdiag.recorder.scalars import best_of, flattened, scalar
from gatdiag.recorder.schedule import Budget, Every, schedule
from gatdiag.recorder.status import Observer, Status
from gatdiag.recorder.steps import Moving, Steps
from gatdiag.recorder.subject import Subject
from gatdiag.recorder.trainer import TrainerMetrics, training_loss
from gatdiag.recorder.writer import Writer
from gatdiag.structure import Layer, Structure
from gatdiag.structure.replica import unwrapped

DISABLED = "GATDIAG_DISABLE"

_PIECEWISE = (
    "the optimizer steps inside the backward pass, so that gradients never exist together: each is measured when its "
    "own weights move, and delta, predicted c and the norm before clipping are not recorded"
)
_PERHAPS_SCALED = (
    "layers return float16, and no torch.amp.GradScaler is known: if the loss is scaled, so are the recorded gradients "
    "of layer outputs. Give the scaler to watch(..., scaler=...)"
)


_recording: list["Recorder"] = []  # those of this process that have begun and not ended


class Recorder:
    """Records a training loop; `gatdiag.watch` makes one, and says what the arguments are.

    A step is opened by the optimizer (or by `step()`), measured, and closed when the weights have moved; rows are
    written then. Layers are measured while they run, if the step that is coming is recorded. Nothing that fails in
    here reaches the loop, and nothing that is raised in the loop is touched.

    Attributes:
        folder: Where the run is.
        enabled: Whether it records at all.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str],
        *,
        every: Every = 1,
        metrics: Metrics = "standard",
        budget: float | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        scaler: Any = None,
        best: str | None = None,
        overwrite: bool = False,
        resume: bool | int = False,
        include: Patterns = None,
        exclude: Patterns = None,
        name: str | None = None,
        law_search_seconds: float | None = 20.0,
        enabled: bool = True,
        observer: Observer | None = None,
    ) -> None:
        """Checks the arguments; recording begins with `start`."""
        if not isinstance(model, nn.Module):
            raise InputError(f"watch() expects a torch.nn.Module, got {type(model).__name__}")
        if overwrite and resume is not False:
            raise InputError("overwrite=True deletes the run that is there, resume=... continues it: choose one")
        self.folder = Path(folder).absolute()
        self.enabled = enabled and not _disabled() and _is_first_process()
        self._root = unwrapped(model)
        self._selection = select(metrics).searching_laws(law_search_seconds)
        self._keeps = filter_of(include, exclude)
        self._guard = Guard()
        self._clock = Clock(schedule(every), Budget(budget), self._guard)
        self._best = None if best is None else best_of(best)
        self._scaler = scaler
        self._observer = observer
        self._hooks = Hooks(model, self)
        self._passes = Passes(self._selection, self._guard)
        self._steps = Steps(lambda: list(self._root.parameters()), self, _listed(optimizer))
        self._cadence = {
            "every": getattr(every, "__name__", "function") if callable(every) else str(every),
            "budget": budget,
            "metrics": self._selection.name,
            "groups": dict(self._selection.every),
        }
        self._name, self._overwrite, self._resume = name, overwrite, resume
        self._writer: Writer | None = None
        self._subject = Subject(
            self._root, self._selection, self._keeps, self._guard, self._begin_recording, self._follow
        )
        self._measured: StepMeasurement | None = None
        self._is_ahead = False  # whether training has begun to compute the coming step
        self._clipping = BeforeClipping()
        self._trainer = TrainerMetrics(self._root)
        self._logs_loss = self._has_loss = False  # whether the user logs a loss, and whether closures return it
        self._has_ended = False
        self._is_entered = False  # leaving the context ends it; else the exit of the interpreter does
        # optimizers that meta.json tells of -> the first parameter of the model that each holds
        self._known = weakref.WeakKeyDictionary[Optimizer, str]()
        self._members: Sequence[Optimizer] = ()  # those that make the step that is open
        # optimizers that hold no parameter of the model -> gradients at their last steps, and versions of these
        self._others = weakref.WeakKeyDictionary[Optimizer, list[tuple[weakref.ref[Tensor], int]]]()
        self._process = os.getpid()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to record; harmless if it has begun, as it has where `gatdiag.watch` returned it.

        Raises:
            InputError: The folder holds something, or is being recorded; or the run to be resumed is of another model;
                or no layer is left to record; or this recorder has ended.
            ModelError: The model has no parameters.
        """
        if not self.enabled or self._hooks.attached:
            return self
        if self._has_ended:
            raise InputError("A recorder records once; call gatdiag.watch again for another run")
        layers = static_layers(self._root, self._keeps)
        about = {**description.of_model(self._root), "cadence": self._cadence, **description.fixed(self._selection)}
        about |= {} if self._name is None else {"name": self._name}
        self._free_folder()
        self._writer = Writer(
            self.folder, about, self._guard, overwrite=self._overwrite, resume=self._resume, layers=layers
        )
        self._free_model()
        self._clock.start(self._writer.next_step)
        self._passes.start(self._clock.record)
        self._listen_to(layers)
        self._hooks.follow(self._subject.tape)
        self._hooks.attach()
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
            if not self._overwrite and self._resume is False:
                raise InputError(
                    f"{self.folder} is being recorded since an earlier call of watch(): call finish() on the recorder "
                    "that it returned, give another folder, or say overwrite=True to delete that run or resume=True "
                    "to continue it"
                )
            other.finish()

    def _free_model(self) -> None:
        """End an earlier recording of this model that was to go on until the exit: its training is over."""
        for other in [other for other in _recording if other._goes_on_until_exit and other._root is self._root]:
            other._guard.tell(
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
        self._hooks.remove()
        self._steps.remove()
        if self._steps.is_open:
            self._guard("the last step", self._steps.close)
        self._log_what_a_trainer_knows(self._clock.last_step)
        self._passes.stop()
        if not self._clock.steps and error is None:
            self._guard.tell(
                "steps",
                "no step of an optimizer that holds parameters of this model was seen, so nothing was recorded. "
                "If your optimizer is not one of torch's, call recorder.step() before it moves the weights",
            )
        elif self._clock.records and not writer.saw_layers and "outputs" in self._selection.every:
            self._guard.tell(
                "layers",
                "no output of a layer was seen: inside compiled code, and where layers are not called as modules, "
                "nothing can be read without changing the computation. Parameters and laws are recorded",
            )
        self._subject.tell_of_laws()
        if self._plan is not None:
            self._guard("final parameters", writer.save_snapshot, "final", self._plan.weights)
        writer.end(error, self._notes())
        if self._observer is not None:
            self._guard("the progress line", self._observer, None)
        self._subject.forget()

    @property
    def _plan(self) -> Plan | None:
        return self._subject.plan

    def _notes(self) -> list[str]:
        balance = None if self._plan is None else self._plan.balance
        unpredictable = (
            [] if balance is None or not balance.unpredictable else [f"predicted c: {balance.unpredictable}"]
        )
        return [*self._passes.notes.values(), *self._hooks.parts.values(), *unpredictable]

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
        if self._writer is None or not self._hooks.attached:
            return
        given: dict[str, Any] = {}
        for mapping in (*mappings, scalars):
            what = f"logged values ({type(mapping).__name__})"
            self._guard(what, lambda of=mapping: given.update(flattened(of)))
        self._logs_loss |= "loss" in given
        self._keep(given, self._clock.step if self._is_ahead or self._steps.is_open else self._clock.last_step)

    def _keep(self, given: Mapping[str, Any], step: int) -> None:
        """Write what was logged, or found to be logged, of a step."""
        if self._writer is None or not given:
            return
        named = [name for name in given if self._writer.can_be_logged(name)]
        values = {name: self._guard(f"values of {name!r}", scalar, name, given[name]) for name in named}
        values = {name: value for name, value in values.items() if value is not None}
        self._writer.log(step, values)
        if self._best is not None and self._best[0] in values and self._plan is not None:
            value = float(values[self._best[0]])
            self._guard("best parameters", self._writer.offer_best, *self._best, value, step, self._plan.weights)

    def note(self, text: str) -> None:
        """Keep a remark with the run; the report shows it among the run's notes."""
        self._guard.note(text, text)

    def step(self, number: int | None = None) -> AbstractContextManager[None]:
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
        if self._writer is not None and self._hooks.attached:
            if number is not None:
                self._steps.close()
                self._guard("numbers of steps", self._clock.skip_to, number)
            self._is_ahead = False
            self._guard("this step", self._steps.open)
        return Moving(lambda: self._guard("this step", self._steps.close))

    # --- what layers tell ---------------------------------------------------------------------------------------------

    def on_forward_begins(self) -> None:
        """The model's forward pass begins, which may be repeated by activation checkpointing."""
        if not in_backward_pass():
            self._passes.bound()

    def on_call(self, layer: str, module: nn.Module) -> None:
        """A layer is about to run."""
        with self._clock.recording():
            if self._steps.is_open and not in_backward_pass():
                self._guard("this step", self._steps.forward_begins)
            self._guard("attention", self._passes.call, layer, module)

    def on_output(self, layer: str, inputs: tuple[Any, ...], output: Tensor | None) -> int | None:
        """A layer has run."""
        with self._clock.recording():
            if self._root.training and not self._is_ahead and not self._steps.is_open:
                self._log_what_a_trainer_knows(self._clock.last_step)
            self._is_ahead |= self._root.training
            number: int | None = self._guard("layer outputs", self._passes.output, layer, inputs, output)
        return number

    def on_gradient(self, layer: str, number: int, gradient: Tensor) -> None:
        """The gradient of a layer's output has been computed."""
        with self._clock.recording():
            self._is_ahead = True
            self._guard("gradients of layer outputs", self._passes.gradient, layer, number, gradient)
            self._guard("gradient norms before clipping", self._ask_for_the_end_of_the_backward_pass)

    def on_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model's forward pass has ended."""
        self._passes.bound()
        if self._process == os.getpid():
            self._subject.on_forward((args, kwargs))

    def _ask_for_the_end_of_the_backward_pass(self) -> None:
        if self._plan is None or self._clock.record is None or not self._clipping.backward_runs(self._plan.weights):
            return
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._guard("gradient norms before clipping", self._read_unclipped))

    def _read_unclipped(self) -> None:
        if self._plan is not None:
            with self._clock.recording(), torch.no_grad():
                self._clipping.backward_ended(self._plan.weights)
                if not self._clock.steps and not self._steps.is_open:
                    self._guard("checks of laws", self._subject.check_laws, is_rough=self._is_rough())

    def _is_rough(self) -> bool:
        """Whether gradients are of less than 32 bits, or may be."""
        return self._passes.saw_rough or any(parameter.device.type != "cpu" for parameter in self._root.parameters())

    # --- what optimizers tell -----------------------------------------------------------------------------------------

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Gradients are there, and weights have not moved."""
        self._members = optimizers  # grows with those that join
        self._subject.on_step(self._clock.step, optimizers)
        with self._clock.recording(), torch.no_grad():
            self._guard("this step", self._open, optimizers)

    def on_loss(self, loss: Any) -> None:
        """A closure has returned its loss."""
        if isinstance(loss, Tensor | float) and not self._logs_loss:
            self._has_loss = True
            self._keep({"loss": loss * self._trainer.batches_per_step}, self._clock.step)

    def _log_what_a_trainer_knows(self, step: int) -> None:
        values = self._guard("metrics of the trainer", self._trainer.news) or {}
        loss = None if self._has_loss or self._logs_loss else training_loss(values)
        self._keep(values if loss is None else {**values, "loss": values[loss]}, step)

    def on_joined(self, optimizer: Optimizer) -> None:
        """A further optimizer takes part in the step."""
        with self._clock.recording(), torch.no_grad():
            self._guard("this step", self._join, optimizer)

    def is_misdirected(self, optimizer: Optimizer) -> bool:
        """Whether training passes of the model come before this step, and gave its optimizer's parameters no gradient.

        The optimizer of another network that is trained beside this one, such as a critic, has gradients of its own.
        """
        return bool(self._guard("steps of optimizers of other parameters", self._is_misdirected, optimizer))

    def _is_misdirected(self, optimizer: Optimizer) -> bool:
        if not self._is_ahead or all(parameter.grad is None for parameter in self._root.parameters()):
            return False
        held = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [gradient for gradient in held if gradient is not None]
        before = [(gradient(), version) for gradient, version in self._others.get(optimizer, ())]
        old = {id(gradient): version for gradient, version in before}
        self._others[optimizer] = [(weakref.ref(gradient), gradient._version) for gradient in gradients]
        return not any(old.get(id(gradient)) != gradient._version and bool(gradient.any()) for gradient in gradients)

    def on_moved(self, complete: bool) -> None:
        """Weights have moved."""
        if complete and self._measured is not None and self._plan is not None:
            with self._clock.recording(), torch.no_grad():
                self._guard("updates", self._measured.close, self._plan, self._selection)

    def on_done(self) -> None:
        """The step is over."""
        with self._clock.recording(), torch.no_grad():
            self._guard("this step", self._close)
            self._log_what_a_trainer_knows(self._clock.step)
        self._measured, self._members = None, ()
        self._is_ahead = False
        self._clock.advance()
        self._passes.start(self._clock.record)

    def _open(self, optimizers: Sequence[Optimizer]) -> None:
        plan, writer, clock = self._plan, self._writer, self._clock
        if plan is None or writer is None:
            return
        for optimizer in optimizers:
            if self._is_own(optimizer):
                self._meet(optimizer, writer)
        fused = scaling.of_parameters(optimizers)
        record = -1 if clock.record is None else clock.record
        measured = self._measured = StepMeasurement(clock.step, record, is_piecewise=in_backward_pass())
        if clock.record is None:
            writer.watch(clock.step, plan.weights.gradient_norms())
        else:
            measured.measure(plan, self._selection, self._guard, fused)
            if measured.is_piecewise:
                self._guard.note("gradients", _PIECEWISE)
            else:
                self._add_gradients(plan, writer, measured, fused)
        measured.measure_laws(plan, self._selection, self._guard, optimizers, fused, clock.next_record)

    def _join(self, optimizer: Optimizer) -> None:
        plan, writer, measured = self._plan, self._writer, self._measured
        if plan is None or writer is None:
            return
        if self._is_own(optimizer):
            self._meet(optimizer, writer)
        if measured is None:
            return
        measured.measure_joined(plan, self._guard, optimizer, scaling.of_parameters([optimizer]))
        if measured.record >= 0:
            writer.step(measured.step, measured.gradient_norm)

    def _meet(self, optimizer: Optimizer, writer: Writer) -> None:
        """Describe an optimizer, once, and its learning rates in this step."""
        if optimizer not in self._known:
            names = {id(parameter): name for name, parameter in self._root.named_parameters()}
            held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
            self._known[optimizer] = next((names[key] for key in held if key in names), "")
            self._guard("descriptions of the run", writer.add_optimizer, optimizer, names, self._clock.step)
            if self._scaler is None:
                self._scaler = scaling.calling_scaler()
        if self._clock.record is not None:
            groups = enumerate(optimizer.param_groups)
            rates = {(self._known[optimizer], number): group["lr"] for number, group in groups if "lr" in group}
            writer.step_rates(self._clock.step, rates)

    def _is_own(self, optimizer: Optimizer) -> bool:
        return optimizer in self._known or not holds_none_of([optimizer], self._root.parameters())

    def _meet_misdirected(self, writer: Writer) -> None:
        """Say so if none of those that made the step holds a parameter of the model; else they only went along."""
        if self._members and not any(optimizer in self._known for optimizer in self._members):
            kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in self._members}))
            self._guard.tell(
                "replaced parameters",  # of which the same is said where it is seen to happen
                f"the optimizer of step {self._clock.step} ({kinds}) holds none of the model's parameters, so that the "
                "model does not move: make it from model.parameters(), after the model was made or replaced",
            )
            for optimizer in self._members:
                self._meet(optimizer, writer)

    def _add_gradients(self, plan: Plan, writer: Writer, measured: StepMeasurement, fused: Tensor | None) -> None:
        """What is known when the backward pass is over."""
        scale = scaling.of_outputs(self._scaler)
        measured.add_pass(self._passes.take(), plan.positions, self._selection, scale)
        if self._passes.saw_half and self._scaler is None:
            self._guard.tell("gradients of float16 outputs", _PERHAPS_SCALED)
        unclipped, scale = self._clipping.take(), fused if scale is None else scale
        if unclipped is not None and scale is not None:
            unclipped = unclipped * scale
        writer.step(measured.step, measured.gradient_norm, None if measured.is_piecewise else unclipped)

    def _close(self) -> None:
        plan, writer, measured = self._plan, self._writer, self._measured
        if plan is None or writer is None or measured is None:
            return
        self._meet_misdirected(writer)
        measured.finish_laws(plan, self._selection, self._guard)
        if measured.record < 0:
            return
        if measured.is_piecewise:
            self._add_gradients(plan, writer, measured, None)
        measured.close(plan, self._selection)
        writer.write(measured)
        if self._observer is not None:
            self._guard("the progress line", self._observer, self._status(plan, writer, measured))

    def _status(self, plan: Plan, writer: Writer, measured: StepMeasurement) -> Status:
        return Status(
            step=measured.step,
            scalars=writer.latest,
            layers=tuple(layer.name for layer in plan.layers),
            relative_gradient_norms=measured.relative_gradients_of_layers(plan),
            first_non_finite=writer.first_non_finite,
        )

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _begin_recording(self, plan: Plan) -> bool:
        """Say what is recorded, and keep the initial weights."""
        self._listen_to(plan.layers)
        writer = self._writer
        if writer is None or self._guard("all measurements", writer.begin, plan) is not True:
            return False
        self._guard("changes since the beginning", writer.first_snapshot, plan.weights)
        return True

    def _follow(self) -> None:
        """What is recorded of the model has changed."""
        self._steps.refresh()
        plan = self._plan
        if plan is not None and self._writer is not None:
            self._listen_to(plan.layers)
            self._writer.describe(laws=description.of_laws(plan.recorded_laws, plan.excluded, plan.error))

    def _listen_to(self, layers: Iterable[Layer]) -> None:
        modules = {name or Structure.ROOT: module for name, module in self._root.named_modules()}
        self._hooks.listen_to({layer.name: modules[layer.name] for layer in layers if layer.name in modules})


def _listed(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer] | None:
    if optimizer is None:
        return None
    listed = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for item in listed:
        if not isinstance(item, Optimizer):
            raise InputError(
                f"optimizer= expects optimizers of torch, got {type(item).__name__}; for any other call "
                "recorder.step() before it moves the weights"
            )
    return listed


def _disabled() -> bool:
    return os.environ.get(DISABLED, "").strip().lower() not in ("", "0", "false", "no")


def _is_first_process() -> bool:
    """In distributed training only the first process writes."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
