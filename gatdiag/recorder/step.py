"""The step that is being made: what happens between two updates of the weights, in order.

A `Sample` is made when a step begins. It is filled while layers run forward and backward, before the weights move and
after; then it goes to the `SampleBuffer`. Only here is decided whether a step is recorded. Of a step that is not,
nothing is measured, and only the first call of the model is noticed.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gatdiag.recorder.budget import StepCounter, Stopwatch
from gatdiag.recorder.buffer import Observer, SampleBuffer
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks.backward import BackwardPasses, find_losses, is_in_backward_pass
from gatdiag.recorder.hooks.modules import ModuleHooks
from gatdiag.recorder.hooks.optimizers import OptimizerHooks, find_calling_scaler, output_unscale, parameter_unscale
from gatdiag.recorder.hooks.outside import Outside, run_as_is
from gatdiag.recorder.hooks.threads import TrainingThread
from gatdiag.recorder.inspection import Inspection, Output
from gatdiag.recorder.measure.layers import LayerMeasurer, LayerRun
from gatdiag.recorder.measure.parameters import are_equal, are_finite, measure_pieces
from gatdiag.recorder.measure.steps import loss_columns
from gatdiag.recorder.plan import Binding, RecordingPlan, find_static_layers, first_replaced, make_plan
from gatdiag.recorder.recurrence import MIN_RUNS, input_over_time, time_steps
from gatdiag.recorder.samples import Flat, FlatParameters, Sample
from gatdiag.recorder.scalars import ScalarLog
from gatdiag.recorder.settings import Settings
from gatdiag.recorder.shards import distributed_parameters
from gatdiag.recorder.writer import Writer
from gatdiag.structure.adapters import EXPLAINER_MASK
from gatdiag.structure.identity import IdentityTable
from gatdiag.structure.modules import is_training, named_parameters
from gatdiag.structure.optimizers import parameters_of
from gatdiag.structure.tensors import first_tensor

_UNKNOWN_SCALER: Final = (
    "layers return float16, but no torch.amp.GradScaler was found: if the loss is scaled, the recorded gradients of "
    "layer outputs are scaled, too. Pass the scaler to watch(..., scaler=...)"
)

_OF_BROKEN: Final = frozenset({"weights", "health"})  # groups that show where the first NaN is

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _contained(
    what: str,
) -> Callable[[Callable[Concatenate["StepRecorder", _P], _T]], Callable[Concatenate["StepRecorder", _P], _T | None]]:
    """Make a method that hooks call: its errors become a warning, its time is counted, and no mode sees what it does.

    Args:
        what: What it records, for the warning.
    """

    def decorate(
        method: Callable[Concatenate["StepRecorder", _P], _T],
    ) -> Callable[Concatenate["StepRecorder", _P], _T | None]:
        @run_as_is
        @wraps(method)
        def contained(self: "StepRecorder", *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            if self._is_of_other_process():
                return None
            self.is_autocast = torch._C._is_any_autocast_enabled()
            outside = Outside()
            try:
                with self.lock, self.stopwatch, outside:
                    found: _T | None = self.guard(what, method, self, *args, **kwargs)
                    return found
            except BaseException:  # an interrupt, which may have come when `__exit__` was called
                outside.__exit__()
                raise

        return cast("Callable[Concatenate[StepRecorder, _P], _T | None]", contained)

    return decorate


class StepRecorder:
    """Follows the steps of one training; a `Listener` of the hooks.

    Args:
        root: The model.
        settings: What is recorded.
        guard: Contains failures.
        open_writer: Called before the first step; returns None if another process records.
        after_step: Called after each step.
        observer: Called with the status of the training after each measurement.

    Attributes:
        counter: Counts steps, and decides which are recorded.
        modules: The hooks of the model and its layers.
        optimizers: The hooks of optimizers.
        layers: Measures layers.
        inspection: Inspects inputs, output and loss.
        scalars: Logged values.
        plan: What is recorded; None until the first step, and after parameters were replaced.
        buffer: Samples that wait to be measured; None as long as there is no plan.
        has_begun_step: Whether the forward pass of the coming step has begun.
        has_ended: Nothing is recorded here: another process does, or the run could not be opened.
        lock: Held while anything is measured or written, as another thread may ask for a diagnosis.
    """

    def __init__(
        self,
        root: nn.Module,
        settings: Settings,
        guard: Guard,
        open_writer: Callable[[], Writer | None],
        after_step: Callable[[], None],
        observer: Observer | None,
    ) -> None:
        self._root, self._settings, self.guard = root, settings, guard
        self._open_writer, self._after_step, self._observer = open_writer, after_step, observer
        self.stopwatch = Stopwatch()
        self.counter = StepCounter(settings.every, settings.budget_share, self.stopwatch, guard)
        self.modules = ModuleHooks(root, self)
        self.optimizers = OptimizerHooks(self.find_parameters, self, guard, settings.optimizers)
        self.layers = LayerMeasurer(settings.selection, guard)
        self.inspection = Inspection(root)
        self.scalars = ScalarLog(root, guard, settings.best)
        self.plan: RecordingPlan | None = None
        self.buffer: SampleBuffer | None = None
        self.has_begun_step = False
        self.lock = threading.RLock()
        self._process: int | None = None  # that records; None until the first step
        self.has_ended = False
        self.is_autocast = False  # whether the hook was called under autocast
        self._writer: Writer | None = None
        self._has_planned = False  # even if it failed
        self._binding = Binding(root)
        self._sample: Sample | None = None  # of the coming or the open step, if it is recorded
        self._thread = TrainingThread()
        self._backward_passes = BackwardPasses(self._on_backward_end)
        self._flat: FlatParameters | None = None  # of all parameters, until there is a plan
        self._raw: Flat | None = None  # gradients after the last backward pass
        self._raw_norms: Any = None  # instead, their norms
        self._scaler = settings.scaler
        # optimizers described in meta.json -> the first parameter of the model that each holds, and the number of all
        self._known_optimizers = IdentityTable[tuple[str, int]]()
        self._step_optimizers: Sequence[Optimizer] = ()  # of the open step

    def find_parameters(self) -> list[nn.Parameter]:
        """The parameters of the model."""
        return [parameter for name, parameter in named_parameters(self._root) if not name.endswith(EXPLAINER_MASK)]

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self, first_step: int) -> None:
        """Register the hooks, and begin the first step."""
        self.counter.start(first_step)
        self.modules.set_layers(find_static_layers(self._root, self._settings.layer_filter))
        if "balance" in self._settings.selection.every and self._settings.laws is None:
            self.modules.start_trace()
        self.modules.attach()
        self.optimizers.attach()
        self._start_step()

    def decide(self) -> None:
        """Open the run if it is this process that records it. Called when the first step is seen, or none was made."""
        if self._process is not None or self.has_ended:
            return
        self._process = os.getpid()
        self._writer = self.guard("all measurements", self._open_writer)
        if self._writer is None:
            self.has_ended = True
            self.detach()
        else:
            self.scalars.open(self._writer)

    def _is_of_other_process(self) -> bool:
        return self.has_ended or (self._process is not None and self._process != os.getpid())

    def detach(self) -> None:
        """Remove all hooks. May be called twice."""
        self.modules.detach()
        self.optimizers.detach()
        self.layers.release()

    def finish(self) -> None:
        """Close the open step, and measure and write what waits."""
        if self.optimizers.is_open:
            self.guard("the last step", self.optimizers.close)
        self.scalars.log_trainer(self.counter.last_step)
        if self.counter.steps and self._writer is not None:
            self._writer.row(self.counter.last_step)  # a resumed run continues after it, even if it was not recorded
        self.write_waiting(sys.maxsize)

    def release(self) -> None:
        """Drop all references to the plan, after the end."""
        self.plan = self.buffer = self._sample = self._flat = None

    @property
    def notes(self) -> list[str]:
        """What could not be recorded."""
        found = [*self.layers.notes.values()]
        if self.plan is not None and self.plan.law_measurer is not None:
            error = self.plan.law_measurer.prediction_error
            found += [f"predicted c: {error}"] if error else []
        return found

    @property
    def step_of_log(self) -> int:
        """The step that logged values belong to: the coming one once its forward pass has begun, else the last."""
        is_coming = self.has_begun_step or self.optimizers.is_open
        return self.counter.step if is_coming else self.counter.last_step

    @_contained("this step")
    def announce(self, number: int | None) -> None:
        """Begin a step of an optimizer that is not a `torch.optim.Optimizer`."""
        if number is not None:
            self.optimizers.close()
            self.guard("the number of the step", self.counter.skip_to, number)
        self.has_begun_step = False
        self.optimizers.open()

    # --- forward and backward -----------------------------------------------------------------------------------------

    def _is_elsewhere(self) -> bool:
        """True in another thread than the one that trains the model."""
        return not (is_in_backward_pass() or self._thread.is_current)

    def on_training(self) -> None:
        """A pass begins that may be training."""
        if self.optimizers.is_open or not self.has_begun_step:  # asked here, because all layers call this
            self._begin_training()

    @_contained("this step")
    def _begin_training(self) -> None:
        if self._is_elsewhere():
            return
        if self.optimizers.is_open:
            self.optimizers.on_forward_start()
        if not self.has_begun_step and is_training(self._root):
            if not self.optimizers.is_open:
                self.scalars.log_trainer(self.counter.last_step)
            self.has_begun_step = True

    @_contained("layer outputs")
    def on_model_start(self) -> None:
        """The model is called."""
        if not self._is_elsewhere():
            self.layers.end_pass()

    @_contained("layer outputs")
    def on_layer_start(self, layer: str, module: nn.Module) -> None:
        """A layer is called."""
        if self._sample is not None and not self._is_elsewhere():
            self.layers.on_start(layer, module)

    @_contained("layer outputs")
    def on_layer_end(
        self, layer: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any
    ) -> LayerRun | None:
        """A layer has run."""
        if self._is_elsewhere() or (self._sample is None and self.has_begun_step):
            return None
        is_recorded = self._sample is not None and is_training(self._root) and not is_in_backward_pass()
        is_inspected = is_recorded and self.inspection.is_due
        if is_inspected:
            self.guard("signals", self.inspection.on_layer, layer, module, args, kwargs)
        inputs = (*args, *kwargs.values())
        run = self.layers.on_end(layer, module, inputs, returned, is_autocast=self.is_autocast)
        if is_inspected and run is not None:
            self.guard("gradients of time steps", self._watch_time, layer, module, inputs, returned, run[0].number)
        return run

    def _watch_time(self, layer: str, module: nn.Module, inputs: Sequence[Any], returned: Any, of_pass: int) -> None:
        steps, given = time_steps(module, returned), input_over_time(module, inputs)
        for is_first in (False, True) if len(steps) >= MIN_RUNS else ():
            watch = partial(self.on_time_step, layer, of_pass, len(steps), is_first)
            steps[0 if is_first else -1].register_prehook(watch)
        if not steps and given is not None:
            given[0].register_hook(partial(self.on_time, layer, of_pass, given[1]))

    @_contained("gradients of time steps")
    def on_time(self, layer: str, of_pass: int, axis: int, gradient: Tensor) -> None:
        """The gradient of the whole input of a recurrent module has been computed."""
        ends, runs = gradient.movedim(axis, 0), gradient.shape[axis]
        is_recorded = self._sample is not None and self.modules.is_attached
        for is_first in (False, True) if is_recorded and runs >= MIN_RUNS else ():
            self.inspection.on_repeated_run(layer, of_pass, runs, ends[0 if is_first else -1], is_first=is_first)

    @_contained("gradients of time steps")
    def on_time_step(self, layer: str, of_pass: int, runs: int, is_first: bool, gradients: Sequence[Any]) -> None:
        """The gradient of the output of a time step of a recurrent module has been computed."""
        if self._sample is not None and self.modules.is_attached and gradients[0] is not None:
            self.inspection.on_repeated_run(layer, of_pass, runs, gradients[0], is_first=is_first)

    @_contained("signals")
    def on_model_end(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """The model has run."""
        if self._is_elsewhere():
            return
        self.layers.on_return()
        if self._sample is None or not is_training(self._root) or is_in_backward_pass():
            return
        self.guard("this step", self._add_unfrozen)
        found = self.inspection.on_forward(args, kwargs, output, is_autocast=self.is_autocast)
        o = first_tensor(output)
        if o is not None and found is not None and o.requires_grad and not o.is_leaf:
            o.register_hook(partial(self.on_model_gradient, found))

    @_contained("signals")
    def on_batch_norm(self, name: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """A batch normalization has run."""
        trains = self._sample is not None and is_training(self._root) and not is_in_backward_pass()
        if trains and self.inspection.is_due and not self._is_elsewhere():
            self.inspection.on_batch_norm(name, module, inputs)

    @_contained("signals")
    def on_repeated_model(self) -> None:
        """The model is called by a backward pass."""
        self.inspection.evaluations.note_repeated()

    @property
    def counts_evaluations(self) -> bool:
        """Whether calls of the model without gradients are of interest: the first ones after the first step."""
        return self._process is not None and not self.inspection.evaluations.is_over

    @_contained("signals")
    def on_evaluation_start(self) -> None:
        """The model is called without gradients."""
        if not self._is_elsewhere():
            self.inspection.evaluations.start()

    @_contained("signals")
    def on_evaluation_end(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The model has run without gradients."""
        if not self._is_elsewhere():
            self.inspection.on_evaluation_end(args, kwargs)

    @_contained("signals")
    def on_model_gradient(self, output: Output, gradient: Tensor) -> None:
        """The gradient of the model's output has been computed: a backward pass has begun."""
        self._on_gradient()
        if self._sample is not None and self.modules.is_attached:
            self.inspection.on_output_gradient(output, gradient)

    @_contained("gradients of layer outputs")
    def on_output_gradient(self, layer: str, run: LayerRun, gradient: Tensor) -> None:
        """The gradient of a layer's output has been computed."""
        self.layers.on_gradient(layer, run, gradient)
        if self._sample is not None and self.inspection.is_due:
            self._note_repeated_run(layer, run, gradient)
        self._on_gradient()

    def _note_repeated_run(self, layer: str, run: LayerRun, gradient: Tensor) -> None:
        seen, number = run
        first, last = seen.first_runs.get(layer), seen.runs.get(layer)
        if seen.counts[layer] >= MIN_RUNS and number in (first, last):
            runs = seen.counts[layer]
            self.inspection.on_repeated_run(layer, seen.number, runs, gradient, is_first=number == first)

    def _on_gradient(self) -> None:
        self.has_begun_step = True
        sample, flat = self._sample, self._sampled()
        if sample is None or not self._backward_passes.begin(flat.tensors):
            return
        if self.inspection.on_backward_start(flat.tensors):
            sample.loss = []
        elif self._backward_passes.is_surprised and all(tensor.is_cpu for tensor in flat.tensors):
            sample.loss.append(None)
        losses = find_losses()
        sample.loss += [None if loss is None else loss.detach().reshape(()).clone() for loss in losses]
        self.guard("signals", self.inspection.on_loss, [loss for loss in losses if loss is not None])

    def _sampled(self) -> FlatParameters:
        """The parameters that samples are taken of; all, as long as there is no plan."""
        if self.plan is not None:
            return self.plan.parameters.flat
        if self._flat is None:
            names = distributed_parameters(self._root)
            own = [p for name, p in named_parameters(self._root) if name not in names and not is_lazy(p)]
            self._flat = FlatParameters(own)
        return self._flat

    @_contained("gradient norms before clipping")
    def _on_backward_end(self) -> None:
        if self._sample is None:
            return
        flat = self._sampled()
        if flat.is_large:
            self._raw_norms = measure_pieces(flat, [flat.gradients()])[0]
        else:
            self._raw = flat.gradients()

    # --- steps --------------------------------------------------------------------------------------------------------

    def on_step(self, optimizers: Sequence[Optimizer]) -> None:
        """The weights are about to move."""
        if self.modules.trace is not None:
            self.modules.trace.abandon()  # here, because `Outside` would hide a mode that an interrupt has left entered
        self._open_step(optimizers)

    @_contained("this step")
    def _open_step(self, optimizers: Sequence[Optimizer]) -> None:
        self._step_optimizers = optimizers
        self._thread.become()
        self.decide()
        if self.counter.record is None:
            self.modules.wait()  # if an exception prevents the end of this step, the next training pass closes it
        self.guard("all measurements", self._prepare_plan)
        buffer = self.buffer
        if buffer is None:
            return
        self._add_unfrozen()
        for optimizer in optimizers:
            self._describe_optimizer(optimizer)
        if self._sample is None and self._has_broken_gradient(buffer):
            self._sample = Sample(self.counter.step, self.counter.records, _OF_BROKEN)
        predicts = bool(optimizers) and buffer.plan.needs_prediction(self.counter.next_record)
        if self._sample is None and predicts:
            self._sample = Sample(self.counter.step, None, frozenset())
        if self._sample is not None:
            self._fill_before(self._sample, buffer, optimizers, predicts=predicts)

    def _has_broken_gradient(self, buffer: SampleBuffer) -> bool:
        """True at the first NaN or infinity, which is recorded whatever step it is in; on an accelerator, never."""
        if buffer.writer.first_non_finite is not None:
            return False
        gradients = [found for tensor in buffer.plan.parameters.flat.tensors if (found := tensor.grad) is not None]
        return all(gradient.is_cpu for gradient in gradients) and not are_finite(gradients)

    def _fill_before(
        self, sample: Sample, buffer: SampleBuffer, optimizers: Sequence[Optimizer], *, predicts: bool
    ) -> None:
        plan, flat = buffer.plan, buffer.plan.parameters.flat
        sample.step = self.counter.step
        unscale = parameter_unscale(optimizers)
        sample.gradients = flat.gradients(unscale)
        sample.has_gradient = flat.has_gradient()
        if sample.record is not None:
            buffer.writer.row(sample.step)
            sample.forward_pass, sample.unscale_outputs = self.layers.take_pass(), output_unscale(self._scaler)
            if self.layers.saw_float16 and self._scaler is None:
                self.guard.warn("gradients of float16 outputs", _UNKNOWN_SCALER)
            sample.unscale_raw = unscale if sample.unscale_outputs is None else sample.unscale_outputs
            sample.raw_gradients, sample.raw_norms = self._raw, self._raw_norms
            if self._raw is not None and sample.unscale_raw is None and are_equal(self._raw, sample.gradients):
                sample.raw_gradients = sample.gradients
            self._raw = self._raw_norms = None
            if sample.loss and self._backward_passes.has_missed(flat.tensors):
                sample.loss.append(None)
            self.scalars.add_measured(loss_columns(sample), sample.step)
            self.guard("signals", self.inspection.before_step, optimizers, sample)
        if predicts and plan.law_measurer is not None:
            sample.updates = {}
            for optimizer in optimizers:
                plan.law_measurer.predict(sample, optimizer)
        buffer.take_weights(sample)

    @_contained("this step")
    def on_optimizer_joined(self, optimizer: Optimizer) -> None:
        """Another optimizer takes part in the step: its gradients may have changed since the step began."""
        buffer, sample = self.buffer, self._sample
        if buffer is None:
            return
        self._describe_optimizer(optimizer)
        if sample is None:
            return
        self.guard("signals", self.inspection.on_optimizer_joined, optimizer)
        flat = buffer.plan.parameters.flat
        flat.join(sample, {*parameters_of(optimizer)}, parameter_unscale([optimizer]))
        if buffer.plan.law_measurer is not None:
            buffer.plan.law_measurer.predict(sample, optimizer)

    @_contained("this step")
    def on_closure_loss(self, loss: Any) -> None:
        """A closure has returned its loss."""
        self.scalars.log_closure_loss(loss, self.counter.step)

    def on_step_end(self) -> None:
        """The weights have moved."""
        if self._is_of_other_process():
            return
        with self.lock:
            self._close_step()
            self._sample, self._step_optimizers = None, ()
            self.has_begun_step = False
            self.counter.advance()
            self._after_step()
            self._start_step()

    @_contained("this step")
    def _close_step(self) -> None:
        self.scalars.log_trainer(self.counter.step)
        buffer, sample = self.buffer, self._sample
        if buffer is None:
            return
        self._warn_if_misdirected()
        if sample is not None:
            if sample.record is not None:
                buffer.take_weights_after(sample)
                self.guard("signals", self.inspection.after_step, sample, buffer.plan.parameters.flat)
            self._sample = None  # before `add`: after an interrupt, the step is closed once more
            buffer.add(sample)
            if sample.record is not None:
                self._write_inspection()
        if buffer.is_due:
            buffer.measure(self.counter.step)

    @_contained("this step")
    def _start_step(self) -> None:
        """Begin the coming step."""
        record = self.counter.record
        due_groups = frozenset[str]() if record is None else self._settings.selection.groups_due(record)
        self._sample = None if record is None else Sample(self.counter.step, record, due_groups)
        self._raw = self._raw_norms = None
        self.layers.start_step(due_groups)
        self.inspection.start_step(self.counter.steps, record)
        if record is None:
            self.modules.wait()
        else:
            self._backward_passes.start(self._sampled().tensors)
            self.modules.listen()

    def _write_inspection(self, *, at_once: bool = False) -> None:
        signals = self.inspection.take_update(at_once=at_once)
        if self._writer is not None and signals is not None:
            self._writer.update_meta(signals=signals)

    @_contained("this step")
    def write_waiting(self, before: int) -> None:
        """Measure and write what waits, and the rows of `steps` before this step."""
        if self.buffer is not None:
            self.buffer.measure(before)
        self.guard("signals", self._write_inspection, at_once=True)

    # --- optimizers ---------------------------------------------------------------------------------------------------

    def _describe_optimizer(self, optimizer: Optimizer, *, always: bool = False) -> None:
        """Describe a new or extended optimizer of the model, and write its learning rates in this step.

        Args:
            optimizer: Ignored if it holds no parameters of the model.
            always: Describe the optimizer in any case.
        """
        if (writer := self._writer) is None:
            return
        first, known = self._known_optimizers.get(optimizer) or ("", 0)
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count > known:
            if not always and not self.optimizers.holds_model_parameters(optimizer):
                return
            names = {id(parameter): name for name, parameter in named_parameters(self._root)}
            first = first or next((names[key] for key in parameters_of(optimizer) if key in names), "")
            self._known_optimizers[optimizer] = first, count
            step = self.counter.step
            self.guard("descriptions of the run", writer.add_optimizer, optimizer, names, step, is_known=bool(known))
            if self._scaler is None:
                self._scaler = find_calling_scaler()
        if self.counter.record is not None:
            groups = enumerate(optimizer.param_groups)
            rates = {(first, number): group["lr"] for number, group in groups if "lr" in group}
            writer.write_learning_rates(self.counter.step, rates)

    def _warn_if_misdirected(self) -> None:
        """Warn if no optimizer of the step holds a parameter of the model."""
        if self._step_optimizers and not any(
            optimizer in self._known_optimizers for optimizer in self._step_optimizers
        ):
            kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in self._step_optimizers}))
            self.guard.warn(
                "replaced parameters",  # the same warning as where the replacement is noticed
                f"the optimizer of step {self.counter.step} ({kinds}) holds none of the model's parameters, so the "
                "model is not trained: create the optimizer from model.parameters() after the model was created or "
                "replaced",
            )
            for optimizer in self._step_optimizers:
                self._describe_optimizer(optimizer, always=True)

    # --- the plan -----------------------------------------------------------------------------------------------------

    def _prepare_plan(self) -> None:
        """Make the plan before the first step; afterwards, notice replaced parameters."""
        if not self._has_planned:
            self._has_planned = True
            self._make_plan()
        elif not self._binding.is_intact():
            self._rebind()

    def _make_plan(self) -> None:
        trace = self.modules.trace
        if trace is not None:
            self.guard("signals", self.inspection.note_plain_tensors, trace.read_attributes)
            self.guard("signals", self.inspection.note_mixing, trace.mixing)
        self.modules.end_trace()
        self._binding = Binding(self._root)
        is_on_accelerator = any(parameter.device.type != "cpu" for _, parameter in named_parameters(self._root))
        is_low_precision = self.layers.saw_low_precision or is_on_accelerator  # which may use TF32
        plan, message = make_plan(
            self._root, trace, self._settings, self._gradients_after_backward(), is_low_precision=is_low_precision
        )
        self.modules.set_layers(plan.layers)
        if (writer := self._writer) is None:
            return
        writer.write_plan(plan)
        self.guard("changes since the beginning", writer.save_initial, plan.parameters)
        if self._flat is not None:
            flat = plan.parameters.flat
            self._raw, self._raw_norms = flat.reorder(self._flat, self._raw, self._raw_norms)
            self._flat = None
        self._set_plan(plan)
        if message is not None:
            has_none = plan.laws is not None and not len(plan.laws) and plan.error != message  # no failure, and usual
            (self.guard.note if has_none and not plan.can_be_passed else self.guard.warn)("laws", message)

    def _gradients_after_backward(self) -> dict[int, Tensor]:
        """id of each parameter with a gradient -> the gradient, before it can have been clipped, if that is known."""
        flat = self._sampled()
        kept = [*flat.tensors] if self._raw is None else flat.split(self._raw)
        gradients = zip(flat.tensors, kept, strict=True)
        return {
            id(tensor): tensor.grad if self._raw is None else gradient
            for tensor, gradient in gradients
            if tensor.grad is not None
        }

    def _rebind(self) -> None:
        """Modules or parameters were replaced or removed."""
        before, self._binding = self._binding, Binding(self._root)
        self.optimizers.refresh()
        if (plan := self.plan) is None or self.buffer is None:
            return
        if gone := first_replaced(before, self._root, plan.parameters.flat.tensors):
            self.buffer.measure(self.counter.step)
            self.plan = self.buffer = None
            text = f"recording of the model stopped before step {self.counter.step} because {gone} was replaced"
            self.guard.warn("replaced parameters", f"{text}; call gatdiag.watch again")
        else:
            self.modules.set_layers(plan.layers)

    def _add_unfrozen(self) -> None:
        """Take samples, too, of parameters that have become trainable since the plan was made."""
        plan, buffer = self.plan, self.buffer
        if plan is None or buffer is None or not any(p.requires_grad for p in plan.parameters.others):
            return
        if self._sample is not None and self._sample.gradients:
            return
        buffer.measure(self.counter.step)
        plan.parameters.add_unfrozen()
        self._raw = self._raw_norms = None  # these parameters are not in it
        self._set_plan(plan)

    def _set_plan(self, plan: RecordingPlan) -> None:
        if self._writer is None:
            return
        self.plan = plan
        self.scalars.parameters = plan.parameters
        self.inspection.parameters = plan.parameters.flat.tensors
        self.buffer = SampleBuffer(plan, self._settings.selection.columns, self.guard, self._writer, self._observer)
