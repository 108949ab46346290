"""Layers -> the rows of the table `layers`, measured while the layers run.

The user's modules are not modified. The hooks are torch's global module hooks, which look a module up by its identity:
a watched model can be pickled, saved and deep-copied, and its copies are not recorded. Gradients are read by tensor
hooks on outputs, which live as long as the graph of one backward pass and, unlike full backward hooks, allow in-place
operations. No hook ever returns anything. Inside compiled code nothing is recorded: reading a tensor there would break
the graph.

Outputs on the CPU are measured at once, so that no activation is kept alive; those on an accelerator are copied and
measured together (`gatdiag.recorder.deferred`). The measurements of a forward pass live as long as its graph unless
they are recorded.

A step may run several forward passes (gradient accumulation, evaluation, a second loss). Its row belongs to the last
pass that received a gradient, or to the last pass if none did. If a layer runs several times in one pass, its last run
is recorded; the passes that activation checkpointing repeats during the backward pass do not count. If several backward
passes go through one forward pass, the gradients of the last one are recorded. A step without a forward pass of its own
(two losses share one, and each has its own step) has no row: those outputs were computed with other weights.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.metrics import smoothing
from gatdiag.quantities import GROUPS, columns, metric_functions, values_by_column
from gatdiag.recorder import attention
from gatdiag.recorder.backward import is_in_backward_pass
from gatdiag.recorder.channels import channel_axis
from gatdiag.recorder.deferred import Deferred, Row
from gatdiag.recorder.edges import Edges
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks.outside import Outside, is_measurable_call, run_as_is
from gatdiag.recorder.hooks.registry import listen_to_modules, stop_listening
from gatdiag.recorder.hooks.threads import TrainingThread
from gatdiag.recorder.schedule import Stopwatch
from gatdiag.recorder.settings import Selection
from gatdiag.recorder.tape import Tape
from gatdiag.structure import Layer, Structure

if TYPE_CHECKING:
    from gatdiag.recorder.recorder import Recorder

_GROUPS: Final = {each.group for each in columns("layers")}
_GROUPS_WITH_METRICS: Final = {each.group for each in columns("layers") if each.takes}
_OUTPUT_COLUMNS: Final = [e.name for e in columns("layers") if e.group == "outputs" and not e.is_of_gradient]
_GRADIENT_COLUMNS: Final = [e.name for e in columns("layers") if e.group == "outputs" and e.is_of_gradient]
_ATTENTION_COLUMNS: Final = GROUPS["attention"].columns
_METRICS: Final = metric_functions("layers")  # (function, its arguments, whether of the gradient) -> columns
_LOSS_POWERS: Final = {"(dL/dX)": 1, "(dL/dX)^2": 2}  # unit -> power of the loss scale
_LOSS_POWER: Final = {each.name: _LOSS_POWERS[each.unit] for each in columns("layers") if each.unit in _LOSS_POWERS}
_COMPILE_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
_SEVERAL_BACKWARD_PASSES = (
    "gradients of layer outputs: several backward passes went through one forward pass; those of the last backward "
    "pass are recorded, while gradients of parameters are the sum over all of them"
)


@dataclass
class ForwardPass:
    """Measurements of one forward pass and of the backward pass after it."""

    step: int = -1  # counted from the start of this recording
    number: int = 0  # among all passes
    runs: dict[str, int] = field(default_factory=dict)  # layer -> number of its last run
    channels: dict[str, int] = field(default_factory=dict)  # layer -> axis of its output
    edges: dict[str, Tensor | None] = field(default_factory=dict)  # between the rows of X
    outputs: dict[str, smoothing.Numbers | Row] = field(default_factory=dict)
    gradients: dict[str, smoothing.Numbers | Row] = field(default_factory=dict)
    attention: dict[str, tuple[float, ...] | Row] = field(default_factory=dict)
    metrics: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # layer -> column -> value
    runs_with_gradient: set[int] = field(default_factory=set)
    has_ended: bool = False
    is_taken: bool = False  # it is the row of a step
    is_suspect: bool = False  # some entry is known not to be finite


LayerRun: TypeAlias = tuple[ForwardPass, int]  # number of the run among the runs of all layers

_UNMEASURED: Final[LayerRun] = (ForwardPass(), 0)


class LayerRecorder:
    """Measures the layers of a model while they run, from `attach` to `detach`."""

    def __init__(
        self,
        root: nn.Module,
        tape: Tape,
        selection: Selection,
        guard: Guard,
        stopwatch: Stopwatch,
        recorder: "Recorder",
    ) -> None:
        self._root = root
        self._tape: Tape | None = tape
        self._selection, self._guard, self._stopwatch, self._recorder = selection, guard, stopwatch, recorder
        self._layers: dict[int, tuple[str, nn.Module]] = {}  # id -> name and module
        self._idle_listener = _IdleListener(self)
        self._waits = False  # for the next training pass, while idle
        self._thread = TrainingThread()
        self.is_idle = False  # only the next training pass is waited for
        self._warning_filter: Any = None
        self.due_groups: frozenset[str] = frozenset()  # measured at the coming step; empty if it is not recorded
        self._due_metrics: list[tuple[str, str, bool]] = []  # keys of `_METRICS`
        self._is_recorded = self._is_due = False  # whether the step is recorded, and any group of layers is due
        self._step = self._passes = self._runs = 0
        self._pass = ForwardPass()
        self._last_with_gradient: ForwardPass | None = None  # of this step
        self._deferred = Deferred(guard)
        self._edges = Edges()
        self._attention_hooks: dict[str, Any] = {}  # of running attention layers
        self._without_coefficients: set[str] = set()  # running attention layers that have computed none yet
        self.notes: dict[str, str] = {}  # what could not be recorded -> why
        self.saw_float16 = self.saw_low_precision = False

    @property
    def is_attached(self) -> bool:
        """True between `attach` and `detach`."""
        return self._warning_filter is not None

    def set_layers(self, layers: Iterable[Layer]) -> None:
        """Record these layers from now on, instead of those set before."""
        modules = {name or Structure.ROOT: module for name, module in self._root.named_modules()}
        named = {layer.name: modules[layer.name] for layer in layers if layer.name in modules}
        self._layers = {id(module): (name, module) for name, module in named.items()}

    def attach(self) -> None:
        """Register the hooks."""
        # torch warns at every call of a compiled model that global hooks fire once more for it; we allow for that
        warnings.filterwarnings("ignore", message=_COMPILE_WARNING, category=UserWarning)
        self._warning_filter = warnings.filters[0]
        self._register_hooks()

    def detach(self) -> None:
        """Remove all hooks, also those of a layer that an interrupt left running. May be called twice."""
        self._remove_hooks()
        for handle in self._attention_hooks.values():
            handle.remove()
        self._attention_hooks, self._layers = {}, {}
        self._deferred.clear()
        self._drop_tape()
        if self._warning_filter in warnings.filters:
            warnings.filters.remove(self._warning_filter)  # type: ignore[attr-defined]
        self._warning_filter = None

    def _register_hooks(self) -> None:
        self._remove_hooks()
        listen_to_modules(self)
        self.is_idle = False

    def go_idle(self) -> None:
        """Until a step is recorded, notice only the next training pass, which is all that logging needs.

        In a small step, hooks on every module call take longer than recording may. Once something has been compiled
        the hooks stay, because removing them would cause recompilation.
        """
        is_done = self._waits if self.is_idle else self._tape is not None
        if is_done or not self.is_attached or _has_compiled():
            return
        if not self.is_idle:
            self._remove_hooks()
            self.is_idle = True
        listen_to_modules(self._idle_listener)
        self._waits = True

    def _remove_hooks(self) -> None:
        stop_listening(self)
        stop_listening(self._idle_listener)
        self._waits = False

    def start_step(self, record: int | None) -> None:
        """Begin a new step.

        Args:
            record: Number of the record that the step will be; None if it is not recorded.
        """
        if record is not None and self.is_idle and self.is_attached:
            self._register_hooks()
        self._is_recorded = record is not None
        self.due_groups = frozenset() if record is None else self._selection.groups_due(record)
        self._is_due = not self.due_groups.isdisjoint(_GROUPS)
        has_metrics = not self.due_groups.isdisjoint(_GROUPS_WITH_METRICS)
        self._due_metrics = [*filter(self._is_metric_due, _METRICS)] if has_metrics else []
        self._step += 1
        self._last_with_gradient = None
        self._begin_pass()

    def _is_metric_due(self, key: tuple[str, str, bool]) -> bool:
        found = _METRICS[key]
        return found[0].group in self.due_groups and any(each.name in self._selection.columns for each in found)

    def _begin_pass(self) -> None:
        self._passes += 1
        self._pass, self._edges = ForwardPass(self._step, self._passes), Edges()

    def _end_pass(self) -> None:
        self._pass.has_ended = bool(self._pass.runs)

    def _drop_tape(self) -> None:
        if self._tape is not None:
            self._tape.stop()
            self._tape = None

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_module_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before the forward pass of any module."""
        if self._tape is not None:
            self._tape.on_module_start(module, args)
            if self._tape.is_done:
                self._drop_tape()
        layer = self._layers.get(id(module))
        if (layer is None and module is not self._root) or self._is_ignored():
            return
        with self._stopwatch:
            if module is self._root and not is_in_backward_pass():
                self._recorder.on_layer_start()
                self._end_pass()
            if layer is not None:
                self._start_layer(*layer)

    def on_module_start_while_idle(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The only hook while steps are not recorded."""
        is_own = module is self._root or id(module) in self._layers
        if not (is_own and self.is_attached) or self._is_ignored():
            return
        begin = self._stopwatch.clock()
        if not is_in_backward_pass():
            self._recorder.on_layer_start()
        self._stopwatch.seconds += self._stopwatch.clock() - begin
        if self.is_idle and self._recorder.has_begun_step:
            stop_listening(self._idle_listener)
            self._waits = False
        else:  # a recorded step has begun, or only a gradient can show that this is training
            self._register_hooks()
            self.on_module_start(module, args)

    def _start_layer(self, layer: str, module: nn.Module) -> None:
        if not is_in_backward_pass():  # there, activation checkpointing repeats forward passes
            self._recorder.on_layer_start()
            if self._pass.has_ended or self._pass.is_taken:
                self._begin_pass()
        if "attention" in self.due_groups:
            self._guard("attention", self._hook_attention, layer, module)

    def on_module_end(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Called after the forward pass of any module.

        `rest` is the keyword arguments and the output; after a failed call torch leaves the keyword arguments out.
        """
        kwargs, output = rest if len(rest) == 2 else (None, None)
        layer = self._layers.get(id(module))
        is_model = module is self._root or (layer is None and self._is_compiled_model(module))
        if (layer is not None or is_model) and not self._is_ignored():
            with self._stopwatch:
                if layer is not None:
                    self._end_layer(*layer, (*args, *(kwargs or {}).values()), output)
                if is_model and kwargs is not None:
                    self._end_pass()
                    self._recorder.on_forward(args, kwargs, output)
        if self._tape is not None:
            self._tape.on_module_end(module, args, kwargs, output)

    def _is_ignored(self) -> bool:
        return _should_ignore_call() or not (is_in_backward_pass() or self._thread.is_current)

    def _is_compiled_model(self, module: nn.Module) -> bool:
        """True for the compiled model, whose own call cannot be seen; by name, because its class is slow to import."""
        return type(module).__name__ == "OptimizedModule" and getattr(module, "_orig_mod", None) is self._root

    def _end_layer(self, layer: str, module: nn.Module, inputs: tuple[Any, ...], returned: Any) -> None:
        self._recorder.on_layer_end(layer, module, inputs)
        if self._recorder.has_begun_step and not self._is_recorded:
            return
        output = self._guard("layer outputs", first_tensor, returned)
        if isinstance(returned, Mapping) and f"output of {layer}" not in self.notes:
            self._guard("layer outputs", self._note_dict_output, layer, returned)
        run = self._guard("layer outputs", self._measure_output, layer, module, inputs, output)
        # a leaf (the user's own tensor, returned as it is) would keep its hooks forever
        if run is not None and output is not None and output.requires_grad and not output.is_leaf:
            output.register_hook(partial(self._gradient_hook, layer, run))

    @run_as_is
    def _gradient_hook(self, layer: str, run: LayerRun, gradient: Tensor) -> None:
        """Called by autograd with the gradient of a layer output."""
        if self._warning_filter is None:
            return  # the graph outlived the recording
        with self._stopwatch, Outside():
            forward_pass, number = run
            if forward_pass.step == self._step and not forward_pass.is_taken:
                what = "gradients of layer outputs"
                self._guard(what, self._measure_gradient, layer, forward_pass, number, gradient)
            self._recorder.on_gradient()

    def _note_dict_output(self, layer: str, output: Mapping[Any, Any]) -> None:
        keys = [repr(key) for key, item in output.items() if first_tensor(item) is not None]
        if len(keys) > 1:
            text = f"{layer} returns {', '.join(keys)}; only {keys[0]} is recorded as its output"
            self.notes[f"output of {layer}"] = text

    # --- attention ----------------------------------------------------------------------------------------------------

    def _hook_attention(self, layer: str, module: nn.Module) -> None:
        reason = attention.unreadable_reason(module)
        if reason is None:
            return
        if reason:
            self._note_attention(layer, reason)
            return
        self._without_coefficients.add(layer)

        def on_coefficients(read: Callable[[], attention.Coefficients]) -> None:
            self._without_coefficients.discard(layer)
            with self._stopwatch, Outside():
                self._guard("attention entropy", self._measure_attention, layer, read)

        self._attention_hooks[layer] = attention.hook_coefficients(module, on_coefficients)

    def _measure_attention(self, layer: str, read: Callable[[], attention.Coefficients]) -> None:
        alpha, target = read()
        if alpha.is_cpu:
            self._pass.attention[layer] = (*(float(value) for value in metrics.attention_spread(alpha, target)),)
        else:
            self._pass.attention[layer] = self._deferred.add(metrics.spread_together, alpha, target)

    def _unhook_attention(self, layer: str) -> None:
        if layer in self._attention_hooks:
            self._attention_hooks.pop(layer).remove()
        if layer in self._without_coefficients:
            self._without_coefficients.discard(layer)
            self._note_attention(layer, "its coefficients could not be read, as with a sparse adjacency matrix")

    def _note_attention(self, layer: str, reason: str) -> None:
        self.notes.setdefault(f"attention of {layer}", f"attention entropy of {layer}: {reason}")

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _measure_output(
        self, layer: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor | None
    ) -> LayerRun | None:
        self._unhook_attention(layer)
        if output is None or not output.dim():
            return None
        if not self._is_due:
            return _UNMEASURED
        forward_pass = self._pass
        if layer in forward_pass.runs and is_in_backward_pass():
            return None
        forward_pass.channels[layer] = channel_axis(module, output)
        self.saw_float16 |= output.dtype is torch.float16
        self.saw_low_precision |= is_low_precision(output)
        with Outside():  # where autocast is off
            self._measure_matrix(layer, module, inputs, output)
        self._runs += 1
        forward_pass.runs[layer] = self._runs
        return forward_pass, self._runs

    def _measure_matrix(self, layer: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        forward_pass = self._pass
        matrix = smoothing.as_rows(output.detach(), forward_pass.channels[layer])
        if "outputs" in self.due_groups:
            self._measure(forward_pass, forward_pass.outputs, layer, matrix)
        if self._due_metrics:
            if any(takes == "x, edges" for _, takes, _ in self._due_metrics):
                edges, reason = self._edges.between_rows(module, inputs, output, forward_pass.channels[layer])
                forward_pass.edges[layer] = edges
                if reason:
                    self.notes.setdefault(f"edges of {layer}", f"what depends on edges, of {layer}: {reason}")
            self._measure_metrics(layer, matrix, forward_pass, is_gradient=False)

    def _measure(
        self, forward_pass: ForwardPass, into: dict[str, smoothing.Numbers | Row], layer: str, matrix: Tensor
    ) -> None:
        if not matrix.is_cpu and matrix.numel():
            into[layer] = self._deferred.add(smoothing.measure_together, matrix)
            return
        numbers: Any = smoothing.measure(matrix)
        into[layer] = numbers
        if numbers[-1]:
            forward_pass.is_suspect = True

    def _measure_gradient(self, layer: str, forward_pass: ForwardPass, number: int, gradient: Tensor) -> None:
        if number in forward_pass.runs_with_gradient:
            self.notes.setdefault("backward passes", _SEVERAL_BACKWARD_PASSES)
        forward_pass.runs_with_gradient.add(number)
        if self._last_with_gradient is None or self._last_with_gradient.number < forward_pass.number:
            self._last_with_gradient = forward_pass
        if forward_pass.runs.get(layer) != number:
            return
        matrix = smoothing.as_rows(gradient.detach(), forward_pass.channels[layer])
        if "outputs" in self.due_groups:
            self._measure(forward_pass, forward_pass.gradients, layer, matrix)
        if self._due_metrics:
            self._measure_metrics(layer, matrix, forward_pass, is_gradient=True)

    def _measure_metrics(self, layer: str, matrix: Tensor, forward_pass: ForwardPass, *, is_gradient: bool) -> None:
        edges, values = forward_pass.edges.get(layer), forward_pass.metrics.setdefault(layer, {})
        for key in self._due_metrics:
            metric, takes, is_of_gradient = key
            if is_of_gradient is not is_gradient or (takes == "x, edges" and edges is None):
                continue
            given = (matrix, edges) if takes == "x, edges" else (matrix,)
            label = " and ".join(each.label for each in _METRICS[key])
            found = self._guard(label, getattr(metrics, metric), *given)
            if found is not None:
                values |= values_by_column(_METRICS[key], found)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def take_pass(self) -> ForwardPass:
        """The forward pass whose row this step gets; it does not change afterwards."""
        self._thread.become()
        forward_pass = self._last_with_gradient or self._pass
        forward_pass.is_taken = True
        return forward_pass


class _IdleListener:
    """Hears of the next training pass while steps are not recorded."""

    def __init__(self, recorder: LayerRecorder) -> None:
        self._recorder = recorder

    def on_module_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before the forward pass of any module."""
        self._recorder.on_module_start_while_idle(module, args)

    def on_module_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Called after it."""


def is_low_precision(output: Tensor) -> bool:
    """True if a layer has just computed this in less than single precision."""
    return output.dtype.itemsize < 4 or torch.is_autocast_enabled(output.device.type)


def first_tensor(output: Any) -> Tensor | None:
    """The output itself, or the first floating-point tensor in a tuple, list or dict; None if there is none."""
    if isinstance(output, Tensor):
        is_plain = type(output) in (Tensor, nn.Parameter) and output.layout == torch.strided
        return output if is_plain and output.is_floating_point() else None
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for found in map(first_tensor, items) if found is not None), None)


def _should_ignore_call() -> bool:
    """True if gradients are off, or if the call is traced, compiled or inside `torch.func` transforms such as `vmap`.

    A tracer must not see our operations, and `vmap` does not allow values to be read.
    """
    return not (torch.is_grad_enabled() and is_measurable_call())


def _has_compiled() -> bool:
    """True if anything was compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["frames"])


def build_columns(
    passes: Sequence[ForwardPass], unscales: Sequence[Any], positions: Mapping[str, int], wanted: frozenset[str]
) -> dict[str, Any]:
    """The columns of several steps, with a row for each layer that ran in each pass."""
    rows = [(at, seen, name) for at, seen in enumerate(passes) for name in positions if name in seen.runs]
    found: dict[str, tuple[list[int], Any]] = {}  # column -> rows that have it, and their values
    for names, of_rows in (
        (_OUTPUT_COLUMNS, [seen.outputs.get(name) for _, seen, name in rows]),
        (_GRADIENT_COLUMNS, [seen.gradients.get(name) for _, seen, name in rows]),
        (_ATTENTION_COLUMNS, [seen.attention.get(name) for _, seen, name in rows]),
    ):
        numbers = [item.read() if isinstance(item, Row) else item for item in of_rows]
        there = [row for row, item in enumerate(numbers) if item is not None]
        if there:
            table = np.array([item for item in numbers if item is not None])
            found |= {column: (there, values) for column, values in zip(names, table.T, strict=True)}
    for column in dict.fromkeys(column for _, seen, name in rows for column in seen.metrics.get(name, ())):
        there = [row for row, (_, seen, name) in enumerate(rows) if column in seen.metrics.get(name, ())]
        values = [rows[row][1].metrics[rows[row][2]][column] for row in there]
        found[column] = there, torch.stack(values).double().cpu().numpy()
    of_pass = np.array([at for at, _, _ in rows], dtype=np.int64)
    factors = np.array([1.0 if unscale is None else float(unscale) for unscale in unscales])[of_pass]
    columns: dict[str, Any] = {
        "pass": of_pass,
        "layer": np.array([positions[name] for _, _, name in rows], dtype=np.int32),
    }
    for column, (there, values) in found.items():
        if column in wanted:
            columns[column] = np.ma.masked_array(np.zeros(len(rows)), mask=True)
            columns[column][there] = values * factors[there] ** _LOSS_POWER.get(column, 0)
    return columns
