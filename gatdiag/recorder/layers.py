"""Layers, while they run -> the rows of the table `layers`.

The user's modules are not modified. The hooks are torch's global module hooks, which look a module up by its
identity: a watched model can be pickled, saved and deep-copied, and nothing is seen of its copies. Gradients are read
by tensor hooks on outputs, which live and die with the graph of one backward pass; they bear operations in place, as
full backward hooks do not. No hook ever returns anything. Inside compiled code nothing is seen: reading a tensor there
would break the graph.

Outputs are reduced at once, so that no activation outlives its own event: to copy one, and to measure it later together
with others, takes longer. What was measured of a pass lives as long as its graph, if it is not recorded. A step may see
several forward passes (gradient accumulation, evaluation, a second loss): its row is of the last one that a gradient
came back to, or simply of the last one if no gradient ever comes to a layer's output. Of a layer that runs several
times in one pass it is the last run; a pass that activation checkpointing repeats during the backward pass is not
one. Where several backward passes go through one forward pass, gradients are of the last. A step without a forward
pass of its own, as where two losses share one and each has its own step, has no row: the outputs were those of other
weights.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils.hooks import RemovableHandle

from gatdiag import metrics
from gatdiag.metrics import smoothing
from gatdiag.quantities import columns, metric_functions, values_by_column
from gatdiag.recorder import attention
from gatdiag.recorder.backward import in_backward_pass
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.schedule import Stopwatch
from gatdiag.recorder.settings import Selection
from gatdiag.recorder.tape import Tape
from gatdiag.structure import Layer, Structure

if TYPE_CHECKING:
    from gatdiag.recorder.recorder import Recorder

_GROUPS: Final = {each.group for each in columns("layers")}
_GROUPS_OF_OTHERS: Final = {each.group for each in columns("layers") if each.takes}
_OF_OUTPUTS: Final = [e.name for e in columns("layers") if e.group == "outputs" and not e.is_of_gradient]
_OF_GRADIENTS: Final = [e.name for e in columns("layers") if e.group == "outputs" and e.is_of_gradient]
_OTHERS: Final = metric_functions("layers")
_POWERS: Final = {"(dL/dX)": 1, "(dL/dX)^2": 2}  # of the loss's scale, by unit
_SCALED: Final = {each.name: _POWERS[each.unit] for each in columns("layers") if each.unit in _POWERS}
_GLOBAL_PRE_HOOKS: Final[dict[int, Any]] = module_hooks._global_forward_pre_hooks
_COMPILED = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
_OF_THE_LAST = (
    "gradients of layer outputs: several backward passes went through one forward pass, and those of the last are "
    "recorded; gradients of parameters are the sum of all"
)


@dataclass
class ForwardPass:
    """Measurements of one forward pass, and of the backward pass after it."""

    step: int = -1  # which of those that were started it belongs to
    number: int = 0  # among all passes
    runs: dict[str, int] = field(default_factory=dict)  # layer -> number of its last run
    edges: dict[str, Tensor | None] = field(default_factory=dict)
    outputs: dict[str, smoothing.Numbers | Tensor] = field(default_factory=dict)
    gradients: dict[str, smoothing.Numbers | Tensor] = field(default_factory=dict)
    others: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)  # runs whose gradient came back
    ended: bool = False
    taken: bool = False  # by a step, whose row it is
    is_suspect: bool = False  # whether an entry is not finite, where that is known


Run: TypeAlias = tuple[ForwardPass, int]  # of a layer: the pass it is in, and its number among all runs

_UNMEASURED: Final[Run] = (ForwardPass(), 0)


class LayerRecorder:
    """Listens to the layers of a model from `attach` until `stop`, and measures them while they run."""

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
        self._hooks: list[Any] = []
        self._first_hook = RemovableHandle(_GLOBAL_PRE_HOOKS)
        self.rests = False  # whether they await the next training pass, and no more
        self._filter: Any = None
        self.due: frozenset[str] = frozenset()  # groups that the coming record has; none if it is no record
        self._others: list[tuple[str, str, bool]] = []  # what it has besides, of `_OTHERS`
        self._is_recorded = self._is_due = False  # whether the step is a record, and anything of layers is due at it
        self._step = self._passes = self._runs = 0  # how many there were
        self._first = 0  # the first step of which something was measured
        self._pass = ForwardPass()
        self._came_back: ForwardPass | None = None  # the last pass of this step that a gradient came back to
        self._is_inside = False  # the model's own forward pass
        self._is_heard = False  # whether a hook on its first layer tells of backward passes, where that is enough
        self._edge_index: Tensor | None = None
        self._handles: dict[str, Any] = {}  # of hooks on attention layers that are running
        self._unseen: set[str] = set()  # of these, whose coefficients are still to come
        self._notes: dict[str, str] = {}
        self._parts: dict[str, str] = {}  # layers that return a dict -> what of it is recorded
        self.saw_half = self.saw_rough = False

    @property
    def is_attached(self) -> bool:
        """True while it listens."""
        return self._filter is not None

    @property
    def notes(self) -> list[str]:
        """Remarks on what could not be recorded."""
        return [*self._notes.values(), *self._parts.values()]

    def listen_to(self, layers: Iterable[Layer]) -> None:
        """Name the layers that are recorded; those named before are forgotten."""
        modules = {name or Structure.ROOT: module for name, module in self._root.named_modules()}
        named = {layer.name: modules[layer.name] for layer in layers if layer.name in modules}
        self._layers = {id(module): (name, module) for name, module in named.items()}

    def attach(self) -> None:
        """Start listening."""
        # Torch warns at every call of a compiled model that global hooks fire once more for it, which is allowed for.
        warnings.filterwarnings("ignore", message=_COMPILED, category=UserWarning)
        self._filter = warnings.filters[0]
        self._listen()

    def stop(self) -> None:
        """Take all hooks away, also those in the middle of a layer, as after an interrupt; may be called twice."""
        self._remove_hooks()
        for handle in self._handles.values():
            handle.remove()
        self._handles, self._layers = {}, {}
        self._drop_tape()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        self._filter = None

    def _listen(self) -> None:
        self._remove_hooks()
        self._hooks = [
            module_hooks.register_module_forward_pre_hook(self._before),
            module_hooks.register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]
        self.rests = False

    def await_training(self) -> None:
        """Until a step is recorded, hear of the next training pass alone, which is all that logging has to know.

        Hooks on each call of a module take longer than recording may in a small step. Where something was compiled they
        stay, or it would be compiled anew.
        """
        is_done = bool(self._hooks) if self.rests else self._tape is not None
        if is_done or not self.is_attached or _has_compiled():
            return
        if not self.rests:
            self._remove_hooks()
            self.rests = True
        _GLOBAL_PRE_HOOKS[self._first_hook.id] = self._before_first  # in half the time that torch's own way takes
        self._hooks = [self._first_hook]

    def _remove_hooks(self) -> None:
        """Found by what they are: an interrupt may have come before a handle was kept."""
        for hooks in (_GLOBAL_PRE_HOOKS, module_hooks._global_forward_hooks):
            for key in [key for key, hook in [*hooks.items()] if getattr(hook, "__self__", None) is self]:
                hooks.pop(key, None)
                # torch forgets to: what stays there makes it believe that there are global hooks
                module_hooks._global_forward_hooks_always_called.pop(key, None)
                module_hooks._global_forward_hooks_with_kwargs.pop(key, None)
        self._hooks = []

    def start_step(self, record: int | None) -> None:
        """A new step begins, which will be the record with this number, or none."""
        if record is not None and self.rests and self.is_attached:
            self._listen()
        self._is_recorded = record is not None
        self.due = frozenset() if record is None else self._selection.groups_due(record)
        self._is_due = not self.due.isdisjoint(_GROUPS)
        self._others = [] if self.due.isdisjoint(_GROUPS_OF_OTHERS) else [*filter(self._is_other_due, _OTHERS)]
        self._step += 1
        self._came_back = None
        self._begin_pass()

    def _is_other_due(self, key: tuple[str, str, bool]) -> bool:
        found = _OTHERS[key]
        return found[0].group in self.due and any(each.name in self._selection.columns for each in found)

    def _begin_pass(self) -> None:
        self._passes += 1
        self._pass, self._edge_index = ForwardPass(self._step, self._passes), None

    def _end_pass(self) -> None:
        """End the pass: what comes next belongs to another one."""
        self._pass.ended = bool(self._pass.runs)

    def _drop_tape(self) -> None:
        if self._tape is not None:
            self._tape.stop()
            self._tape = None

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module, any one, is about to run."""
        if torch.compiler.is_dynamo_compiling():
            return
        if self._tape is not None:
            self._tape.enters(module, args)
            if self._tape.is_over:
                self._drop_tape()
        known = self._layers.get(id(module))
        if (known is None and module is not self._root) or _is_unheard():
            return
        with self._stopwatch:
            if module is self._root and not in_backward_pass():
                self._recorder.on_layer_begins()
                self._end_pass()
                self._is_inside, self._is_heard = True, False
            if known is not None:
                self._layer_begins(*known)

    def _before_first(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module, any one, is about to run in a step of which nothing is recorded."""
        is_own = module is self._root or id(module) in self._layers
        if torch.compiler.is_dynamo_compiling() or not (is_own and self.is_attached) or _is_unheard():
            return
        begin = self._stopwatch.clock()
        if not in_backward_pass():
            self._recorder.on_layer_begins()
        self._stopwatch.add_since(begin)
        if self.rests and self._recorder.is_ahead:
            _GLOBAL_PRE_HOOKS.pop(self._first_hook.id, None)
            self._hooks = []
        else:  # a step that is recorded has begun, or only a gradient can tell that this is training
            self._listen()
            self._before(module, args)

    def _layer_begins(self, layer: str, module: nn.Module) -> None:
        if not in_backward_pass():  # where activation checkpointing repeats forward passes
            self._recorder.on_layer_begins()
            if self._pass.ended or self._pass.taken:
                self._begin_pass()
        if "attention" in self.due:
            self._guard("attention", self._listen_to_attention, layer, module)

    def _after(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """`rest` is the keyword inputs and the output; after a failed call torch leaves the keyword inputs out."""
        if torch.compiler.is_dynamo_compiling():
            return
        kwargs, output = rest if len(rest) == 2 else (None, None)
        known = self._layers.get(id(module))
        is_model = module is self._root or (known is None and self._is_compiled_model(module))
        is_heard = self._is_heard
        if is_model:
            self._is_inside = self._is_heard = False
        if (known is not None or is_model) and not _is_unheard():
            with self._stopwatch:
                if known is not None:
                    self._layer_ends(known[0], (*args, *(kwargs or {}).values()), output)
                if is_model and kwargs is not None:
                    self._end_pass()
                    self._recorder.on_forward(args, kwargs, output)
                    if is_heard:
                        self._guard("layer outputs", self._hear, output)
        if self._tape is not None:
            self._tape.leaves(module, args, kwargs, output)

    def _is_compiled_model(self, module: nn.Module) -> bool:
        """True if this is the model compiled, whose own call cannot be seen; by name: the class is slow to import."""
        return type(module).__name__ == "OptimizedModule" and getattr(module, "_orig_mod", None) is self._root

    def _layer_ends(self, layer: str, inputs: tuple[Any, ...], returned: Any) -> None:
        self._recorder.on_layer_ends(layer, inputs)
        if (
            self._recorder.is_ahead
            and not (self._is_due or self._handles)
            and (self._is_heard or not self._is_recorded)
        ):
            return
        output = _first_tensor_if_any(returned)
        if isinstance(returned, Mapping) and layer not in self._parts:
            self._guard("layer outputs", self._note_part, layer, returned)
        run = self._guard("layer outputs", self._measure_output, layer, inputs, output)
        # A leaf (the user's own tensor, handed through) would keep its hooks for ever.
        if run is not None and output is not None and output.requires_grad and not output.is_leaf:
            output.register_hook(partial(self._gradient_comes, layer, run))
            self._is_heard = run is _UNMEASURED and self._is_inside

    def _gradient_comes(self, layer: str, run: Run, gradient: Tensor) -> None:
        if self._filter is None:
            return  # from a graph that outlived the recording
        with self._stopwatch:
            seen, number = run
            if seen.step == self._step and not seen.taken:
                self._guard("gradients of layer outputs", self._measure_gradient, layer, seen, number, gradient)
            self._recorder.on_gradient()

    def _hear(self, output: Any) -> None:
        """Hear of backward passes that begin at the model's output, too: not all come to the layer that is heard."""
        for one in _floating_tensors(output):
            if one.requires_grad and not one.is_leaf:
                one.register_hook(partial(self._gradient_comes, "", _UNMEASURED))

    def _note_part(self, layer: str, output: Mapping[Any, Any]) -> None:
        found = [repr(key) for key, item in output.items() if first_tensor(item) is not None]
        if len(found) > 1:
            self._parts[layer] = f"{layer} returns {', '.join(found)}: its output is recorded for {found[0]} alone"

    # --- attention ----------------------------------------------------------------------------------------------------

    def _listen_to_attention(self, layer: str, module: nn.Module) -> None:
        obstacle = attention.obstacle(module)
        if obstacle is None:
            return
        if obstacle:
            self._note_attention(layer, obstacle)
            return
        self._unseen.add(layer)

        def tell(read: Callable[[], attention.Coefficients]) -> None:
            self._unseen.discard(layer)
            with self._stopwatch:
                entropies = self._guard("attention entropy", attention.spread, read)
            if entropies is not None:
                self._pass.others.setdefault(layer, {}).update(entropies)

        self._handles[layer] = attention.listen_once(module, tell)

    def _end_attention(self, layer: str) -> None:
        if layer in self._handles:
            self._handles.pop(layer).remove()
        if layer in self._unseen:
            self._unseen.discard(layer)
            self._note_attention(layer, "its coefficients were not seen, as with a sparse adjacency matrix")

    def _note_attention(self, layer: str, reason: str) -> None:
        self._notes.setdefault(layer, f"attention entropy of {layer}: {reason}")

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _measure_output(self, layer: str, inputs: tuple[Any, ...], output: Tensor | None) -> Run | None:
        self._end_attention(layer)
        if output is None or not output.dim():
            return None
        if not self._is_due:
            return _UNMEASURED
        matrix, seen = smoothing.as_rows(output.detach()), self._pass
        if layer in seen.runs and in_backward_pass():
            return None
        if self._first in (0, self._step):
            self._look_at_precision(matrix)
        if "outputs" in self.due:
            self._keep(seen, seen.outputs, layer, matrix)
        if self._others:
            seen.edges[layer] = self._edges(inputs, len(matrix))
            self._measure_others(layer, matrix, seen, is_gradient=False)
        self._runs += 1
        seen.runs[layer] = self._runs
        return seen, self._runs

    def _look_at_precision(self, matrix: Tensor) -> None:
        self._first = self._step
        self.saw_half |= matrix.dtype is torch.float16
        self.saw_rough |= is_rough(matrix)

    def _keep(self, seen: ForwardPass, kept: dict[str, smoothing.Numbers | Tensor], layer: str, matrix: Tensor) -> None:
        kept[layer] = found = smoothing.measure(matrix)
        if type(found) is tuple and found[-1]:
            seen.is_suspect = True

    def _measure_gradient(self, layer: str, seen: ForwardPass, number: int, gradient: Tensor) -> None:
        if number in seen.returned:
            self._notes.setdefault("backward passes", _OF_THE_LAST)
        seen.returned.add(number)
        if self._came_back is None or self._came_back.number < seen.number:
            self._came_back = seen
        if seen.runs.get(layer) != number:
            return
        matrix = smoothing.as_rows(gradient.detach())
        if "outputs" in self.due:
            self._keep(seen, seen.gradients, layer, matrix)
        if self._others:
            self._measure_others(layer, matrix, seen, is_gradient=True)

    def _measure_others(self, layer: str, matrix: Tensor, seen: ForwardPass, *, is_gradient: bool) -> None:
        edges, others = seen.edges.get(layer), seen.others.setdefault(layer, {})
        for key in self._others:
            metric, takes, is_of_gradient = key
            if is_of_gradient is not is_gradient or (takes == "x, edges" and edges is None):
                continue
            given = (matrix, edges) if takes == "x, edges" else (matrix,)
            label = " and ".join(each.label for each in _OTHERS[key])
            found = self._guard(label, getattr(metrics, metric), *given)
            if found is not None:
                others |= values_by_column(_OTHERS[key], found)

    def _edges(self, inputs: tuple[Any, ...], nodes: int) -> Tensor | None:
        """The edges a layer was given, or those that a layer before it was given, if they fit its output."""
        if any(isinstance(item, tuple | list | dict) for item in inputs):
            return None  # nodes of two kinds: the edges lead from one to the other
        self._edge_index = next((item for item in inputs if _is_edge_index(item)), self._edge_index)
        edges = self._edge_index
        return None if edges is None or (edges.numel() and int(edges.max()) >= nodes) else edges

    # --- rows ---------------------------------------------------------------------------------------------------------

    def take(self) -> ForwardPass:
        """The forward pass that the row of this step is of; nothing that comes later changes it."""
        seen = self._came_back or self._pass
        seen.taken = True
        return seen


def is_rough(output: Tensor) -> bool:
    """True if a layer computed this, just now, in less than single precision."""
    return output.dtype.itemsize < 4 or torch.is_autocast_enabled(output.device.type)


def first_tensor(output: Any) -> Tensor | None:
    """The floating tensor a layer returns: itself, or the first in a tuple, a list or a dict; None without one."""
    return next(_floating_tensors(output), None)


def _floating_tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        is_plain = type(output) in (Tensor, nn.Parameter) and output.layout == torch.strided
        if is_plain and output.is_floating_point():
            yield output
        return
    for item in output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ():
        yield from _floating_tensors(item)


def _first_tensor_if_any(output: Any) -> Tensor | None:
    """None also for containers that cannot be looked into: they are the user's, and so are their exceptions."""
    try:
        return first_tensor(output)
    except Exception:
        return None


def _is_unheard() -> bool:
    """True if nothing is trained by this call, or a tracer sees it, which as a compiler must see nothing of ours.

    Nor can values be read inside `torch.func.vmap` and its like.
    """
    is_traced = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return is_traced or torch._C._functorch.peek_interpreter_stack() is not None or not torch.is_grad_enabled()


def _has_compiled() -> bool:
    """True if anything was compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["frames"])


def measured(
    passes: Sequence[ForwardPass], unscales: Sequence[Any], positions: Mapping[str, int], wanted: frozenset[str]
) -> dict[str, Any]:
    """The columns of several steps, a row for each layer that ran in each of them."""
    rows = [(at, seen, name) for at, seen in enumerate(passes) for name in positions if name in seen.runs]
    found: dict[str, tuple[list[int], Any]] = {}  # column -> rows that have it, and their values
    for group, of_rows in (
        (_OF_OUTPUTS, [seen.outputs.get(name) for _, seen, name in rows]),
        (_OF_GRADIENTS, [seen.gradients.get(name) for _, seen, name in rows]),
    ):
        there = [row for row, item in enumerate(of_rows) if item is not None]
        if there:
            table = _table([item for item in of_rows if item is not None])
            found |= {column: (there, values) for column, values in zip(group, table.T, strict=True)}
    for column in dict.fromkeys(column for _, seen, name in rows for column in seen.others.get(name, ())):
        there = [row for row, (_, seen, name) in enumerate(rows) if column in seen.others.get(name, ())]
        values = [rows[row][1].others[rows[row][2]][column] for row in there]
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
            columns[column][there] = values * factors[there] ** _SCALED.get(column, 0)
    return columns


def _table(items: Sequence[smoothing.Numbers | Tensor]) -> NDArray[np.float64]:
    """A row of each; those of a device cross together."""
    device = next((item.device for item in items if isinstance(item, Tensor)), None)
    if device is None:
        return np.array(items)
    rows = [torch.as_tensor(item, dtype=torch.float64, device=device) for item in items]
    found: NDArray[np.float64] = torch.stack(rows).cpu().numpy()
    return found


def _is_edge_index(item: Any) -> bool:
    return (
        isinstance(item, Tensor)
        and item.layout == torch.strided
        and item.dim() == 2
        and len(item) == 2
        and item.dtype == torch.int64
    )
