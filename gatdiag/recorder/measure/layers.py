"""Layers -> the rows of the table `layers`, measured while the layers run.

On the CPU the numbers of an output are read at once; on an accelerator they stay on the device until the rows are
written. No activation is kept alive. The measurements of a forward pass live as long as its graph unless they are
recorded.

A step may run several forward passes (gradient accumulation, evaluation, a second loss). Its row belongs to the last
pass that received a gradient, or to the last pass if none did. If a layer runs several times in one pass, its last run
is recorded; the passes that activation checkpointing repeats during the backward pass do not count. If several backward
passes go through one forward pass, the gradients of the last one are recorded. A step without a forward pass of its own
(two losses share one, and each has its own step) has no row: those outputs were computed with other weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.metrics import smoothing
from gatdiag.quantities import Metric, columns, metric_functions
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.hooks import attention
from gatdiag.recorder.hooks.backward import is_in_backward_pass
from gatdiag.recorder.hooks.outside import Outside
from gatdiag.recorder.measure.channels import channel_axis
from gatdiag.recorder.measure.edges import Edges
from gatdiag.recorder.samples import ForwardPass
from gatdiag.recorder.settings import Selection
from gatdiag.structure.tensors import first_tensor, spell

_GROUPS: Final = {each.group for each in columns("layers")}
_METRICS: Final = {(metric.function, metric.of): metric for metric in metric_functions("layers")}
_OUTPUTS: Final = _METRICS.pop(("output_statistics", "output"))
_GRADIENTS: Final = _METRICS.pop(("output_statistics", "output gradient"))
_ATTENTION: Final = _METRICS.pop(("attention_spread", "attention"))
_LOSS_POWERS: Final = {"(dL/dX)": 1, "(dL/dX)^2": 2}  # unit -> power of the loss scale
_LOSS_POWER: Final = {each.name: _LOSS_POWERS[each.unit] for each in columns("layers") if each.unit in _LOSS_POWERS}
_SEVERAL_BACKWARD_PASSES: Final = (
    "gradients of layer outputs: several backward passes went through one forward pass; those of the last backward "
    "pass are recorded, while gradients of parameters are the sum over all of them"
)

LayerRun: TypeAlias = tuple[ForwardPass, int]  # number of the run among the runs of all layers

_UNMEASURED: Final[LayerRun] = (ForwardPass(), 0)


class LayerMeasurer:
    """Measures outputs of layers, their gradients, and attention.

    Attributes:
        notes: What could not be recorded -> why.
        saw_float16: Some output had this precision.
        saw_low_precision: Some output was computed in less than single precision.
    """

    def __init__(self, selection: Selection, guard: Guard) -> None:
        self._selection, self._guard = selection, guard
        self._due_groups: frozenset[str] = frozenset()
        self._due_metrics: list[Metric] = []
        self._is_due = False
        self._step = self._passes = self._runs = 0
        self._pass, self._edges = ForwardPass(), Edges()
        self._last_with_gradient: ForwardPass | None = None  # of this step
        self._attention_hooks: dict[str, Any] = {}  # of running attention layers
        self._without_coefficients: set[str] = set()  # running attention layers that have computed none yet
        self.notes: dict[str, str] = {}
        self.saw_float16 = self.saw_low_precision = False

    def release(self) -> None:
        """Remove the hooks of a layer that an interrupt left running."""
        for handle in self._attention_hooks.values():
            handle.remove()
        self._attention_hooks = {}

    # --- passes -------------------------------------------------------------------------------------------------------

    def start_step(self, due_groups: frozenset[str]) -> None:
        """Begin a step, in which these groups are measured."""
        self._due_groups = due_groups
        self._is_due = not due_groups.isdisjoint(_GROUPS)
        self._due_metrics = [*filter(self._is_metric_due, _METRICS.values())] if self._is_due else []
        self._last_with_gradient = None
        self._step += 1
        self._begin_pass()

    def _is_metric_due(self, metric: Metric) -> bool:
        is_wanted = any(each.name in self._selection.columns for each in metric.quantities)
        return is_wanted and metric.group in self._due_groups

    def _begin_pass(self) -> None:
        self._passes += 1
        self._pass, self._edges = ForwardPass(self._step, self._passes), Edges()

    def end_pass(self) -> None:
        """What runs next is of another forward pass."""
        self._pass.has_ended = bool(self._pass.runs)

    def on_return(self) -> None:
        """Called when the model has returned."""
        self._pass.has_returned = bool(self._pass.runs)

    def take_pass(self) -> ForwardPass:
        """The forward pass whose row this step gets; it does not change afterwards."""
        forward_pass = self._last_with_gradient or self._pass
        forward_pass.is_taken = True
        return forward_pass

    # --- layers -------------------------------------------------------------------------------------------------------

    def on_start(self, layer: str, module: nn.Module) -> None:
        """Called before a layer runs."""
        seen = self._pass
        runs_again = seen.has_returned and (layer in seen.runs or bool(seen.runs_with_gradient))
        if not is_in_backward_pass() and (seen.has_ended or seen.is_taken or runs_again):
            self._begin_pass()
        if "attention" in self._due_groups:
            self._guard("attention", self._hook_attention, layer, module)

    def on_end(
        self, layer: str, module: nn.Module, inputs: Sequence[Any], returned: Any, *, is_autocast: bool
    ) -> LayerRun | None:
        """Measure an output; returns what `on_gradient` needs, None if its gradient is not wanted."""
        output = first_tensor(returned)
        if issubclass(type(returned), dict) and f"output of {layer}" not in self.notes:
            self._note_dict_output(layer, returned)
        if output is not None:
            self.saw_float16 |= output.dtype is torch.float16
            self.saw_low_precision |= is_low_precision(output, is_autocast=is_autocast)
        return self._measure_output(layer, module, inputs, output)

    def on_gradient(self, layer: str, run: LayerRun, gradient: Tensor) -> None:
        """Measure the gradient of an output."""
        forward_pass, number = run
        if forward_pass.step != self._step or forward_pass.is_taken:
            return
        if number in forward_pass.runs_with_gradient:
            self.notes.setdefault("backward passes", _SEVERAL_BACKWARD_PASSES)
        forward_pass.runs_with_gradient.add(number)
        if self._last_with_gradient is None or self._last_with_gradient.number < forward_pass.number:
            self._last_with_gradient = forward_pass
        if forward_pass.runs.get(layer) != number:
            return
        matrix = smoothing.as_rows(gradient.detach(), forward_pass.channels[layer])
        if "outputs" in self._due_groups:
            self._measure(forward_pass, forward_pass.gradients, layer, matrix)
        if self._due_metrics:
            self._measure_metrics(layer, matrix, forward_pass, "output gradient")

    def _note_dict_output(self, layer: str, output: dict[Any, Any]) -> None:
        keys = [spell(key) for key, item in dict.items(output) if first_tensor(item) is not None]
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
            with Outside():
                self._guard("attention entropy", self._measure_attention, layer, read)

        self._attention_hooks[layer] = attention.hook_coefficients(module, on_coefficients)

    def _measure_attention(self, layer: str, read: Callable[[], attention.Coefficients]) -> None:
        self._pass.attention[layer] = metrics.attention_spread(*read())

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
        self, layer: str, module: nn.Module, inputs: Sequence[Any], output: Tensor | None
    ) -> LayerRun | None:
        self._unhook_attention(layer)
        if output is None or not output.dim():
            return None
        if not self._is_due:
            return _UNMEASURED
        forward_pass = self._pass
        if layer in forward_pass.runs and is_in_backward_pass():
            return None
        channels = forward_pass.channels[layer] = channel_axis(module, output)
        matrix = smoothing.as_rows(output.detach(), channels)
        if "outputs" in self._due_groups:
            self._measure(forward_pass, forward_pass.outputs, layer, matrix)
            forward_pass.norms.setdefault(layer, []).append(forward_pass.outputs[layer].output_norm)
        if self._due_metrics:
            if any(metric.needs == "edges" for metric in self._due_metrics):
                edges, reason = self._edges.between_rows(module, inputs, output, channels)
                forward_pass.edges[layer] = edges
                if reason:
                    self.notes.setdefault(f"edges of {layer}", f"what depends on edges, of {layer}: {reason}")
            self._measure_metrics(layer, matrix, forward_pass, "output")
        self._runs += 1
        forward_pass.runs[layer] = self._runs
        forward_pass.first_runs.setdefault(layer, self._runs)
        forward_pass.counts[layer] += 1
        return forward_pass, self._runs

    def _measure(
        self, forward_pass: ForwardPass, into: dict[str, smoothing.OutputStatistics], layer: str, matrix: Tensor
    ) -> None:
        statistics = into[layer] = smoothing.output_statistics(matrix)
        forward_pass.is_suspect |= matrix.is_cpu and bool(statistics.non_finite)

    def _measure_metrics(self, layer: str, matrix: Tensor, forward_pass: ForwardPass, of: str) -> None:
        edges, values = forward_pass.edges.get(layer), forward_pass.metrics.setdefault(layer, {})
        for metric in self._due_metrics:
            if metric.of != of or (metric.needs == "edges" and edges is None):
                continue
            given = (matrix, edges) if metric.needs == "edges" else (matrix,)
            found = self._guard(metric.label, getattr(metrics, metric.function), *given)
            if found is not None:
                values |= metric.by_column(found)


def is_low_precision(output: Tensor, *, is_autocast: bool) -> bool:
    """True if a layer has just computed this in less than single precision."""
    return output.dtype.itemsize < 4 or is_autocast


def build_columns(
    passes: Sequence[ForwardPass], unscales: Sequence[Any], positions: Mapping[str, int], wanted: frozenset[str]
) -> dict[str, Any]:
    """The columns of several steps, with a row for each layer that ran in each pass."""
    rows = [(at, seen, name) for at, seen in enumerate(passes) for name in positions if name in seen.runs]
    found: dict[str, tuple[list[int], Any]] = {}  # column -> rows that have it, and their values
    for metric, of_rows in (
        (_OUTPUTS, [seen.outputs.get(name) for _, seen, name in rows]),
        (_GRADIENTS, [seen.gradients.get(name) for _, seen, name in rows]),
        (_ATTENTION, [seen.attention.get(name) for _, seen, name in rows]),
    ):
        there = [row for row, item in enumerate(of_rows) if item is not None]
        measured = [metric.by_column(item) for item in of_rows if item is not None]
        if there:
            found |= {name: (there, _to_host([each[name] for each in measured])) for name in measured[0]}
    for column in dict.fromkeys(column for _, seen, name in rows for column in seen.metrics.get(name, ())):
        there = [row for row, (_, seen, name) in enumerate(rows) if column in seen.metrics.get(name, ())]
        values = [rows[row][1].metrics[rows[row][2]][column] for row in there]
        found[column] = there, _to_host(values)
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


def _to_host(numbers: Sequence[Any]) -> NDArray[np.float64]:
    """The numbers; those on an accelerator are read with one transfer."""
    if not isinstance(numbers[0], Tensor):
        return np.array(numbers, dtype=np.float64)
    found: NDArray[np.float64] = torch.stack([*numbers]).double().cpu().numpy()
    return found
