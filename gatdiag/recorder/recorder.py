"""The recorder: a training loop runs inside it, and the run folder fills."""

import atexit
import os
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
from gatdiag.recorder import description
from gatdiag.recorder.clipping import BeforeClipping
from gatdiag.recorder.clock import Clock
from gatdiag.recorder.groups import Metrics, select
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.measurement import StepMeasurement
from gatdiag.recorder.passes import Passes
from gatdiag.recorder.plan import Patterns, Plan, filter_of, settle, static_layers
from gatdiag.recorder.scalars import best_of, scalar
from gatdiag.recorder.schedule import Budget, Every, schedule
from gatdiag.recorder.status import Observer, Status
from gatdiag.recorder.steps import Moving, Steps
from gatdiag.recorder.writer import Writer
from gatdiag.structure import Structure
from gatdiag.structure.replica import unwrapped

DISABLED = "GATDIAG_DISABLE"


class Recorder:
    """Records a training loop; `gatdiag.watch` makes one, and says what the arguments are.

    A step is opened by the optimiser (or by `step()`), measured, and closed when the weights have moved; rows are
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
        enabled: bool = True,
        observer: Observer | None = None,
    ) -> None:
        """Checks the arguments; recording begins with `start`, or on entering."""
        if not isinstance(model, nn.Module):
            raise InputError(f"watch() expects a torch.nn.Module, got {type(model).__name__}")
        if overwrite and resume is not False:
            raise InputError("overwrite=True deletes the run that is there, resume=... continues it: choose one")
        self.folder = Path(folder).absolute()
        self.enabled = enabled and not _disabled() and _is_first_process()
        self._root = unwrapped(model)
        self._selection = select(metrics)
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
            "every": every if isinstance(every, str) else "function" if callable(every) else str(every),
            "budget": budget,
            "metrics": self._selection.name,
            "groups": dict(self._selection.every),
        }
        self._name, self._overwrite, self._resume = name, overwrite, resume
        self._writer: Writer | None = None
        self._plan: Plan | None = None
        self._is_settled = False  # whether the plan was made, or failed
        self._candidate: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
        self._measured: StepMeasurement | None = None
        self._is_ahead = False  # whether training has begun to compute the coming step
        self._clipping = BeforeClipping()
        self._process = os.getpid()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to record.

        Raises:
            InputError: The folder holds something, or no layer is left to record; or it was started before.
            ModelError: The model has no parameters.
        """
        if not self.enabled:
            return self
        if self._writer is not None:
            raise InputError("A recorder records once; call gatdiag.watch again for another run")
        layers = static_layers(self._root, self._keeps)
        about = {**description.of_model(self._root), "cadence": self._cadence, **description.fixed(self._selection)}
        about |= {} if self._name is None else {"name": self._name}
        self._writer = Writer(self.folder, about, self._guard, overwrite=self._overwrite, resume=self._resume)
        self._clock.start(self._writer.next_step)
        self._passes.start(self._clock.record)
        self._listen_to(layers)
        self._hooks.attach()
        self._steps.attach()
        atexit.register(self.close)
        return self

    def __enter__(self) -> Self:
        """Begin to record."""
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the recording; an exception goes on as it came."""
        self._end(error)

    def close(self) -> None:
        """End the recording, as leaving the context does. May be called twice."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self._writer is None or self._process != os.getpid():
            return
        writer = self._writer
        atexit.unregister(self.close)
        self._hooks.remove()
        self._steps.remove()
        if self._steps.is_open:
            self._guard("the last step", self._steps.close)
        self._passes.stop()
        self._candidate = None
        if not self._clock.steps and error is None:
            self._guard.tell(
                "steps",
                "no step of an optimiser that holds parameters of this model was seen, so nothing was recorded. "
                "If your optimiser is not one of torch's, call recorder.step() before it moves the weights",
            )
        elif self._clock.records and not writer.saw_layers and "outputs" in self._selection.every:
            self._guard.tell(
                "layers",
                "no output of a layer was seen: inside compiled code, and where layers are not called as modules, "
                "nothing can be read without changing the computation. Parameters and laws are recorded",
            )
        if self._plan is not None:
            self._guard("final parameters", writer.save_snapshot, "final", self._plan.weights)
        writer.end(error, self._notes())
        if self._observer is not None:
            self._guard("the progress line", self._observer, None)
        self._plan = None

    def _notes(self) -> list[str]:
        balance = None if self._plan is None else self._plan.balance
        unpredictable = (
            [] if balance is None or not balance.unpredictable else [f"predicted c: {balance.unpredictable}"]
        )
        return [*self._passes.notes.values(), *unpredictable]

    # --- what the user calls ------------------------------------------------------------------------------------------

    def log(self, /, **scalars: Any) -> None:
        """Note numbers of a step: losses, accuracies, anything.

        They belong to the last step that was made; or to the one that is coming, if its forward pass has been seen
        already. Tensors on an accelerator are not waited for.

        Args:
            scalars: Name -> number, tensor or array with one element, or torchmetrics metric. "loss" is what the
                figures draw.
        """
        if self._writer is None or not self._hooks.attached:
            return
        step = self._clock.step if self._is_ahead or self._steps.is_open else self._clock.last_step
        values = {name: self._guard(f"values of {name!r}", scalar, name, value) for name, value in scalars.items()}
        values = {name: value for name, value in values.items() if value is not None}
        self._guard("logged values", self._writer.log, step, values)
        if self._best is not None and self._best[0] in values and self._plan is not None:
            value = float(values[self._best[0]])
            self._guard("best parameters", self._writer.offer_best, *self._best, value, step, self._plan.weights)

    def step(self) -> AbstractContextManager[None]:
        """Say that a step is about to be made by something that is not an optimiser of torch's.

        Gradients must be there, and the weights must not have moved. The weights after the step are read when the
        context that this returns is left, or, if it is not used as one, at the next forward pass.

        Example::

            loss.backward()
            with recorder.step():
                my_update(model)
        """
        if self._writer is not None and self._hooks.attached:
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
            self._is_ahead |= self._root.training
            number: int | None = self._guard("layer outputs", self._passes.output, layer, inputs, output)
        return number

    def on_gradient(self, layer: str, number: int, gradient: Tensor) -> None:
        """The gradient of a layer's output has been computed."""
        with self._clock.recording():
            self._is_ahead = True
            if self._guard("gradients of layer outputs", self._passes.gradient, layer, number, gradient):
                self._guard("gradient norms before clipping", self._ask_for_the_end_of_the_backward_pass)

    def on_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model's forward pass has ended."""
        self._passes.bound()
        if self._is_settled or self._process != os.getpid():
            return
        if self._root.training:
            self._settle((args, kwargs))
        else:  # perhaps an evaluation with gradients enabled; a step will tell
            self._candidate = (args, kwargs)

    def _ask_for_the_end_of_the_backward_pass(self) -> None:
        if self._plan is not None:
            self._clipping.backward_began(self._plan.weights)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._guard("gradient norms before clipping", self._read_unclipped))

    def _read_unclipped(self) -> None:
        if self._plan is not None:
            with self._clock.recording():
                self._clipping.backward_ended(self._plan.weights)

    # --- what optimisers tell -----------------------------------------------------------------------------------------

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """Gradients are there, and weights have not moved."""
        if not self._is_settled:
            self._settle(self._candidate)
        with self._clock.recording(), torch.no_grad():
            self._guard("this step", self._open, optimizers)

    def on_moved(self, complete: bool) -> None:
        """Weights have moved."""
        if complete and self._measured is not None and self._plan is not None:
            with self._clock.recording(), torch.no_grad():
                self._guard("updates", self._measured.close, self._plan, self._selection)

    def on_done(self) -> None:
        """The step is over."""
        with self._clock.recording(), torch.no_grad():
            self._guard("this step", self._close)
        self._measured = None
        self._clipping.forget()
        self._is_ahead = False
        self._clock.advance()
        self._passes.start(self._clock.record)

    def _open(self, optimizers: Sequence[Optimizer]) -> None:
        plan, writer, clock = self._plan, self._writer, self._clock
        if plan is None or writer is None:
            return
        if not clock.steps:
            names = {id(parameter): name for name, parameter in self._root.named_parameters()}
            writer.describe(optimizers=description.of_optimizers(optimizers, names))
        fused = _fused_scale(optimizers)
        self._measured = StepMeasurement(clock.step, -1 if clock.record is None else clock.record)
        if clock.record is None:
            writer.watch(clock.step, plan.weights.gradient_norms())
        else:
            scale = _scale(self._scaler)
            self._measured.measure(plan, self._selection, self._guard, fused)
            self._measured.add_pass(self._passes.take(), plan.positions, self._selection, scale)
            norm = self._measured.gradient_norm
            unclipped = self._clipping.norm(plan.weights, norm)
            if unclipped is not None and unclipped is not norm and scale is not None:
                unclipped = unclipped * scale
            writer.step(clock.step, norm, unclipped, _rates(optimizers))
        self._measured.measure_laws(plan, self._selection, self._guard, optimizers, fused, clock.next_record)

    def _close(self) -> None:
        plan, writer, measured = self._plan, self._writer, self._measured
        if plan is None or writer is None or measured is None or measured.record < 0:
            return
        measured.close(plan, self._selection)
        writer.write(measured)
        if self._observer is not None:
            self._guard("the progress line", self._observer, self._status(plan, writer, measured))

    def _status(self, plan: Plan, writer: Writer, measured: StepMeasurement) -> Status:
        return Status(
            step=measured.step,
            scalars=writer.latest,
            layers=tuple(layer.name for layer in plan.layers),
            relative_gradient_norms=measured.largest_relative_gradients(plan),
            first_non_finite=writer.first_non_finite,
        )

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _settle(self, inputs: tuple[tuple[Any, ...], Mapping[str, Any]] | None) -> None:
        """Layers in order of execution, laws, initial weights: once, at the first training forward."""
        self._is_settled, self._candidate = True, None
        writer = self._writer
        if writer is None:
            return
        plan: Plan | None = self._guard("all measurements", settle, self._root, inputs, self._selection, self._keeps)
        if plan is None:
            return
        self._listen_to([layer.name for layer in plan.layers])
        if self._guard("all measurements", writer.begin, plan) is not True:
            return
        self._plan = plan
        if plan.error is not None:
            self._guard.tell("laws", f"no conservation laws are recorded: {plan.error}")
        self._guard("changes since the beginning", writer.first_snapshot, plan.weights)

    def _listen_to(self, names: Iterable[str]) -> None:
        modules = dict(self._root.named_modules())
        self._hooks.listen_to({name: modules["" if name == Structure.ROOT else name] for name in names})


def _listed(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer] | None:
    if optimizer is None:
        return None
    listed = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for item in listed:
        if not isinstance(item, Optimizer):
            raise InputError(
                f"optimizer= expects optimisers of torch, got {type(item).__name__}; for any other call "
                "recorder.step() before it moves the weights"
            )
    return listed


def _disabled() -> bool:
    return os.environ.get(DISABLED, "").strip().lower() not in ("", "0", "false", "no")


def _is_first_process() -> bool:
    """In distributed training only the first process writes."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)


def _fused_scale(optimizers: Sequence[Optimizer]) -> Tensor | None:
    """What the gradients of a fused optimiser are still to be multiplied by: it unscales them inside its step."""
    scales = [scale for optimizer in optimizers if (scale := getattr(optimizer, "grad_scale", None)) is not None]
    return 1.0 / scales[0].double() if scales else None


def _scale(scaler: Any) -> Tensor | float | None:
    """What gradients of layer outputs are to be multiplied by; a tensor where that spares waiting for the device."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale = getattr(scaler, "_scale", None)
    return 1.0 / (scale.double() if isinstance(scale, Tensor) else float(scaler.get_scale()))


def _rates(optimizers: Sequence[Optimizer]) -> list[Any]:
    return [group["lr"] for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
