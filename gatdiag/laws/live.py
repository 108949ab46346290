"""Conservation laws from the forward passes of a training as it makes them: the model is never called for them.

The operations of each call are followed as `trace` does it, on the user's own tensors. What is different there:

- Gradients are recorded. A tensor that carries a gradient but comes from no operation that was seen (a compiled region,
  a custom kernel, a computation between two calls) is traced back through the graph of autograd, and what it was
  computed from must keep its scale.
- There are no other points to check a law at. So an operation that runs on nothing (no edges) fixes its arguments, for
  nothing tells what its result is added to; and what multiplies zeros must be seen to multiply something else, too.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo import eval_frame
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.law import Exclusion, Law
from gatdiag.laws.assembly import assemble
from gatdiag.laws.exponents import Exponents
from gatdiag.laws.find import (
    OUTPUT,
    exclude_channels,
    exclude_operations,
    find_shared_memory,
    places_of,
    require_constant_rows,
)
from gatdiag.laws.flow import has_scale
from gatdiag.laws.label import Label
from gatdiag.laws.laws import Laws
from gatdiag.laws.rules import Call, Labels, Rule
from gatdiag.laws.solver import solve
from gatdiag.laws.trace import Running, Trace, unobserved
from gatdiag.laws.zero_factors import only_times_zeros, split_unclear
from gatdiag.structure.discovery import order_layers, parameters_by_layer
from gatdiag.structure.layers import Structure
from gatdiag.structure.tensors import all_tensors, tensor_arguments, walk

_MOST_CALLS = 2  # of one module that are traced: in the first step of a recurrent cell the state is zero
_EMPTY = frozenset(["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"])
_COMPILED = "_functorch/_aot_autograd/runtime_wrappers.py"  # in which the results of torch.compile run
_INFRASTRUCTURE = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


class ForwardTrace:
    """Traces the calls of a model, or of its parts, as a training makes them, for their conservation laws.

    What a call returns is held fixed, and at most the first two calls of the same module from outside are traced. The
    training is not changed: operations run as they do without it, and no tensor is kept.

    Args:
        model: The model, without wrappers. Its parameters may be initialized by its first call.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> trace = ForwardTrace(model)
        >>> for module in model.modules():
        ...     _ = module.register_forward_pre_hook(lambda module, args: trace.enter(module))
        ...     _ = module.register_forward_hook(lambda module, args, out: trace.leave(module, out), always_call=True)
        >>> model(torch.randn(5, 4)).sum().backward()
        >>> from gatdiag.structure.discovery import discover_in_order
        >>> trace.order
        ['0', '2']
        >>> len(trace.find_laws(discover_in_order(model, trace.order)))
        3
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._exponents = Exponents()
        self._running = Running(model)
        self._trace: _LiveTrace | None = None
        self._calls = Counter[int]()  # id of a module -> its calls from outside that were traced
        self._cells = Counter[nn.RNNCellBase]()
        self._uses: dict[str, None] = {}  # parameters that were read and modules that were called, in order
        self._is_tracing = False
        self._thread: int | None = None  # that is in a call

    @property
    def order(self) -> list[str]:
        """The layers that were used, in the order of their first use."""
        return order_layers(parameters_by_layer(self._model), self._uses)

    def enter(self, module: nn.Module) -> None:
        """To be called before each call of one of the model's modules."""
        if self._thread not in (None, threading.get_ident()):
            return
        if not len(self._running):
            self._begin(module)
        self._running.enter(module)
        self._uses.setdefault(self._running.paths.get(id(module), ["?"])[0])
        if isinstance(module, nn.RNNCellBase) and self._is_tracing:
            self._cells[module] += 1

    def leave(self, module: nn.Module, output: Any) -> None:
        """To be called after each call of one of the model's modules, with None if it failed."""
        if self._thread != threading.get_ident():
            return
        if isinstance(module, nn.RNNBase) and self._is_tracing and _has_one_step(module, output):
            self._cells.update(dict.fromkeys([module], 1))  # type: ignore[list-item]
        self._running.leave()
        if not len(self._running):
            self._end(output)

    def abandon(self) -> None:
        """To be called after an interrupt, of which no hook is told: leaves the mode if it was left entered."""
        if self._is_tracing and self._trace is not None:
            _remove_mode(self._trace)
        while len(self._running):
            self._running.leave()
        self._is_tracing, self._thread = False, None

    def find_laws(self, structure: Structure) -> Laws:
        """The laws of what was traced; after the forward passes of the first step, before its update.

        Args:
            structure: Of the model, with the layers in this trace's `order`.

        Returns:
            The laws, bound to the model's parameters; their residuals are NaN.
        """
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad and not is_lazy(p)}
        if shared := find_shared_memory(trained):
            reason = "these two parameters share memory, so that each step moves it twice; no law is conserved"
            return Laws([], trained, [Exclusion(" and ".join(shared), reason)])
        if self._trace is None:
            return Laws([], trained, [Exclusion("the forward pass", "no call of the model could be traced")])
        if self._trace.error is not None:
            return Laws([], trained, [Exclusion("the forward pass", f"it cannot be traced: {self._trace.error}")])
        with torch.no_grad(), unobserved():
            return _solve(self._trace, self._exponents, structure, trained, self._cells)

    def _begin(self, module: nn.Module) -> None:
        self._thread = threading.get_ident()
        self._is_tracing = self._calls[id(module)] < _MOST_CALLS and _can_trace(module)
        if not self._is_tracing:
            return
        self._calls[id(module)] += 1
        if self._trace is None:
            self._trace = _LiveTrace(self._exponents, self._running, self._uses, self._model)
        self._trace.name_parameters()
        self._trace.__enter__()

    def _end(self, output: Any) -> None:
        if self._is_tracing and self._trace is not None:
            self._trace.__exit__(None, None, None)
        if self._trace is not None:
            with torch.no_grad(), unobserved():
                self._trace.finish(output, is_traced=self._is_tracing)
        self._is_tracing, self._thread = False, None


def _can_trace(module: nn.Module) -> bool:
    """Whether a call is part of training (no evaluation, no repetition in the backward pass), and plain."""
    return (
        (module.training or torch.is_grad_enabled())
        and not torch.is_inference_mode_enabled()
        and torch._C._current_graph_task_id() == -1
        and not torch.jit.is_tracing()
        and all(torch._C._get_dispatch_mode(key) is None for key in _INFRASTRUCTURE)
    )


def _remove_mode(mode: object) -> None:
    """Remove a mode from the stack, wherever it is."""
    above = []
    stack = [torch._C._get_dispatch_stack_at(at) for at in range(torch._C._len_torch_dispatch_stack())]
    if mode not in stack:
        return
    while (top := _get_top()) is not mode:
        above.append(top)
        _pop_mode()
    mode.__exit__(None, None, None)  # type: ignore[attr-defined]
    for other in reversed(above):
        _push_mode(other)


def _get_top() -> Any:
    return torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)


def _has_one_step(module: nn.RNNBase, output: Any) -> bool:
    """Whether a recurrent layer ran over one step only, which does not tell what its first state stands for."""
    if not isinstance(output, tuple):
        return False
    result = output[0]
    if isinstance(result, nn.utils.rnn.PackedSequence):
        return len(result.batch_sizes) == 1
    return isinstance(result, Tensor) and result.ndim > 1 and result.shape[-2 if module.batch_first else 0] == 1


class _LiveTrace(Trace):
    """Follows operations on the user's tensors, which run exactly as they do without it.

    Args:
        exponents: Where the equations are added.
        running: The path of the module that is running.
        uses: The names of the parameters are added that are read.
        model: The model.

    Attributes:
        labels: Name of a parameter -> its label, from its first use on.
        held: Name of a parameter -> why it must keep its scale.
        error: Why nothing can be said of the forward pass, if so.
    """

    def __init__(self, exponents: Exponents, running: Running, uses: dict[str, None], model: nn.Module) -> None:
        super().__init__(exponents, running, all_tensors(model))
        self._model, self._uses = model, uses
        self._names: dict[int, str] = {}
        self._known = WeakTensorKeyDictionary()  # whose label is complete, also if it has no terms
        self._unwritten: dict[int, Any] = {}  # storages of `empty` -> a weak reference
        self._hidden = WeakTensorKeyDictionary()  # written by kernels that were not seen, without a gradient so far
        self._mark = f"gatdiag {id(self)}"  # in the metadata of the nodes of autograd that made outputs
        self.labels: dict[str, Label] = {}
        self.held: dict[str, str] = {}
        self.emptied: dict[str, None] = {}
        self.error: str | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled."""
        return True

    def name_parameters(self) -> None:
        """Note the model's parameters, also those that have no shape yet."""
        self._names = {id(parameter): name for name, parameter in self._model.named_parameters()}

    def set_label(self, tensor: Tensor, label: Label) -> None:
        """Set the label of a tensor; a parameter keeps its own when it is initialized or clamped."""
        if self._names.get(id(tensor)) in self.labels and tensor.is_leaf and tensor in self._labels:
            return
        super().set_label(tensor, label)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then apply its rule; a parameter that has no shape yet is about to get one."""
        if any(map(is_lazy, args)):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _follow(self, func: Any, arguments: dict[str, Any], out: Any, shape: torch.Size) -> None:
        if self.error is not None:
            return
        try:
            tensors = tensor_arguments(list(arguments.values()), None)
            if _is_in_compiled_region():
                self._forget_written(func, arguments)
                return
            for tensor in tensors:
                self._admit(tensor)
            if self._is_hidden(func, arguments, tensors, out):
                return
            super()._follow(func, arguments, out, shape)
            if any(tensor.requires_grad for tensor in tensors):
                for tensor in tensor_arguments([out], None):
                    self._known[tensor] = True
        except Exception as error:  # never to end the user's training
            self.error = f"{type(error).__name__} in {func} in {self._current_module()}: {error}"

    def _apply_rule(self, rule: Rule, call: Call) -> Labels:
        """Apply a rule; an operation that runs on nothing, or joins something to nothing, fixes its arguments."""
        results = [result for result in call.results if isinstance(result, Tensor) and has_scale(result)]
        runs_on_nothing = bool(results) and not any(result.numel() for result in results)
        if not runs_on_nothing and not (call.name == "cat" and self._joins_nothing(call)):
            return super()._apply_rule(rule, call)
        self._exponents.cause = f"{call.name} in {self._current_module()}"
        self.emptied[self._exponents.cause] = None
        return call.fix_scale()

    def _joins_nothing(self, call: Call) -> bool:
        """Whether a piece without entries is data, or something that must keep its scale."""
        pieces = [tensor for tensor in call.tensors() if tensor.ndim == call.out.ndim and not tensor.numel()]
        return any(not self.label_of(piece).arrays for piece in pieces)

    def _admit(self, tensor: Tensor) -> None:
        """Label a parameter at its first use; trace back a tensor that comes from no operation that was seen."""
        name = self._names.get(id(tensor))
        if name is not None:
            self._uses.setdefault(name)
        if not tensor.requires_grad:
            return
        if not tensor.is_leaf and self._is_unwritten(tensor):  # an unseen kernel wrote it, and gave it a gradient
            self._unwritten.pop(tensor.untyped_storage()._cdata)
            self._hold_sources(tensor)
        elif tensor in self._known:
            return
        elif tensor.is_leaf:
            self._admit_leaf(tensor)
        elif tensor not in self._labels:
            self._hold_sources(tensor)

    def _admit_leaf(self, tensor: Tensor) -> None:
        if id(tensor) not in self._names and isinstance(tensor, nn.Parameter):
            self.name_parameters()  # a layer may have been made in this call
        name = self._names.get(id(tensor))
        self._known[tensor] = True
        if name is not None and name not in self.labels:
            self.labels[name] = self.label_parameter(tensor, name)
            self._uses.setdefault(name)

    def _hold_sources(self, tensor: Tensor) -> None:
        """Require that whatever a tensor was computed from keeps its scale."""
        cause = f"a computation that cannot be followed, in {self._current_module()}"
        sources, leaves = self._find_sources(tensor)
        for leaf in leaves:
            self._admit_leaf(leaf)
            name = self._names.get(id(leaf))
            if name is not None:
                self.held.setdefault(name, cause)
        self._exponents.cause = cause
        for source in (*sources, *leaves):
            self._exponents.require_zero(self.label_of(source))
        self._labels.pop(tensor, None)
        self._known[tensor] = True
        self.flow.link(tensor, [*sources, *leaves])

    def _find_sources(self, tensor: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors that an unseen computation took: results of operations that were seen, and leaves."""
        seen_results = {
            (result.grad_fn, result.output_nr): result
            for table in (self._known, self._labels)
            for result in list(table.keys())
            if result is not tensor and result.grad_fn is not None
        }
        return self._walk_back(tensor.grad_fn, seen_results)

    def _walk_back(self, start: Any, stops: Mapping[Any, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors at which a walk back through the graph of autograd stops, and the leaves that it reaches.

        It ends, too, at what earlier calls returned, which keeps its scale.
        """
        found: dict[int, Tensor] = {}
        leaves: dict[int, Tensor] = {}
        waiting, seen = [start], {None}
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                leaves[id(node.variable)] = node.variable
                continue
            for edge in node.next_functions:
                if edge in stops:
                    found[id(stops[edge])] = stops[edge]
                elif edge[0] is not None and edge[1] not in edge[0].metadata.get(self._mark, ()):
                    waiting.append(edge[0])
        return list(found.values()), list(leaves.values())

    def _is_hidden(self, func: Any, arguments: Mapping[str, Any], tensors: list[Tensor], out: Any) -> bool:
        """Whether an operation reads memory that an unseen kernel wrote to, where no gradient is recorded."""
        name = func._schema.name.removeprefix("aten::")
        if name in _EMPTY:
            storage = out.untyped_storage()
            self._unwritten[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage)
            return False
        if not self._unwritten and not self._hidden:
            return False
        written = _written_arguments(func, arguments)
        for tensor in written:
            if tensor.layout == torch.strided:
                self._unwritten.pop(tensor.untyped_storage()._cdata, None)
        if func.is_view:
            return False
        read = [tensor for tensor in tensors if not any(tensor is other for other in written)]
        if not any(tensor in self._hidden or self._is_unwritten(tensor) for tensor in read):
            return False
        for tensor in tensor_arguments([out], None):
            self._labels.pop(tensor, None)
            self._hidden[tensor] = True
        return True

    def _is_unwritten(self, tensor: Tensor) -> bool:
        return (
            bool(self._unwritten)
            and tensor.numel() > 0
            and tensor.layout == torch.strided
            and tensor.untyped_storage()._cdata in self._unwritten
        )

    def _forget_written(self, func: Any, arguments: Mapping[str, Any]) -> None:
        for tensor in _written_arguments(func, arguments):
            self._labels.pop(tensor, None)
            self._known.pop(tensor, None)

    def finish(self, output: Any, *, is_traced: bool) -> None:
        """A call from outside has returned: what it returns keeps its scale."""
        if self.error is not None:
            return
        try:
            parts = {id(part): part for _, part in walk(output, modules=False)}.values()
            if opaque := [type(part).__qualname__ for part in parts if not isinstance(part, Tensor)]:
                self.error = f"the output contains a {opaque[0]}, which cannot be searched for tensors"
            outputs = [part for part in parts if isinstance(part, Tensor) and has_scale(part)]
            for tensor in outputs:
                if is_traced:
                    self._admit(tensor)
                    self._exponents.cause = OUTPUT
                    self._exponents.require_zero(self.label_of(tensor))
                    self.set_label(tensor, Label())
                self._known[tensor] = True
            self.flow.add_outputs(outputs)
            self._hold_lost(outputs)
            for tensor in outputs:
                if tensor.grad_fn is not None:  # a mark that does not keep the graph alive
                    tensor.grad_fn.metadata.setdefault(self._mark, set()).add(tensor.output_nr)
            self._unwritten.clear()
        except Exception as error:  # never to end the user's training
            self.error = f"{type(error).__name__} at the output: {error}"

    def _hold_lost(self, outputs: Iterable[Tensor]) -> None:
        """Hold parameters that a gradient reaches although no operation was seen to read them."""
        for output in outputs:
            for leaf in self._walk_back(output.grad_fn, {})[1]:
                name = self._names.get(id(leaf))
                if name is not None and name not in self.labels:
                    self._admit_leaf(leaf)
                    self._exponents.require_zero(self.labels[name])
                    self.held.setdefault(name, "a computation that cannot be followed")


def _written_arguments(func: Any, arguments: Mapping[str, Any]) -> list[Tensor]:
    if not func._schema.is_mutable:
        return []
    written = [
        arguments[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in arguments
    ]
    return tensor_arguments(written, None)


def _is_in_compiled_region() -> bool:
    if "torch._dynamo" not in sys.modules:
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILED):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _solve(
    trace: _LiveTrace,
    exponents: Exponents,
    structure: Structure,
    trained: Mapping[str, nn.Parameter],
    cells: Mapping[nn.Module, int],
) -> Laws:
    places = places_of(structure)
    gradients = {name: p.grad.to_dense() for name, p in trained.items() if p.grad is not None}
    known = {name: label for name, label in trace.labels.items() if name in places and name in trained}
    _hold_states(trace, exponents, trained, cells)
    require_constant_rows(exponents, {id(trained[name]): name for name in known}, gradients)
    trace.flow.follow_back()
    for name, label in trace.labels.items():
        exponents.complete(label.terms[0][1])
        exponents.hold_unmentioned(label.terms[0][1])
        is_used = name in known and trace.flow.feeds_outputs(trained[name])
        if name not in known or (not is_used and trace.flow.reaches_outputs(trained[name])):
            exponents.require_zero(label)
    labels = {name: exponents.resolve(label) for name, label in known.items()}
    basis = solve(exponents, (ids for label in labels.values() for _, ids in label.terms))
    solutions = assemble(labels, basis, places)
    masks = exponents.times_zeros
    laws, unclear = split_unclear(solutions, masks, only_times_zeros(masks, [gradients]), places)
    used = {name for name in known if trace.flow.feeds_outputs(trained[name])}
    kept, unused = _drop_unused(laws, used)
    excluded = [
        *unclear,
        *_exclude_unread(trace, trained),
        *unused,
        *exclude_operations(trace, exponents),
        *exclude_channels(exponents, basis, {name: places[name] for name in labels}),
    ]
    return Laws(kept, {name: trained[name] for name in known}, excluded)


def _hold_states(
    trace: _LiveTrace, exponents: Exponents, trained: Mapping[str, nn.Parameter], cells: Mapping[nn.Module, int]
) -> None:
    """Fix what multiplies the state of a recurrent cell that ran once: nothing tells what its next state is."""
    names = {id(parameter): name for name, parameter in trained.items()}
    for cell, calls in cells.items():
        for key, parameter in cell.named_parameters():
            name = names.get(id(parameter))
            if calls == 1 and key.startswith("weight_hh") and name in trace.labels:
                exponents.cause = "a single step of a recurrent layer"
                exponents.require_zero(trace.labels[name])
                trace.held[name] = exponents.cause


def _drop_unused(laws: Iterable[Law], used: set[str]) -> tuple[list[Law], list[Exclusion]]:
    """Without the laws of weights that the output does not depend on."""
    kept, dropped = list[Law](), Counter[str]()
    for law in laws:
        if used.isdisjoint(term.parameter for term in law.terms):
            dropped[law.layer] += 1
        else:
            kept.append(law)
    reason = "the output does not depend on their weights in the first step"
    return kept, [Exclusion(f"{count} laws of {layer}", reason) for layer, count in dropped.items()]


def _exclude_unread(trace: _LiveTrace, trained: Mapping[str, nn.Parameter]) -> Iterator[Exclusion]:
    for name in trained:
        if name in trace.held:
            yield Exclusion(name, f"it keeps its scale because of {trace.held[name]}")
        elif name not in trace.labels:
            yield Exclusion(name, "no operation of the first step reads it, so it is in no law")
        elif not trace.flow.feeds_outputs(trained[name]):
            yield Exclusion(name, "it never reaches the output in the first step")
    for cause in trace.emptied:
        reason = "it ran on nothing in the first step (no edges), so its arguments must keep their scale"
        yield Exclusion(f"operation {cause}", reason)


def _keep_from_dynamo(*functions: Any) -> None:
    """Make Dynamo compile neither these functions nor what they call, without importing it, which takes seconds.

    An operation between two parts of a compiled function (after a graph break) would make it compile all of this.
    """
    skip = eval_frame._FrameAction.SKIP
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


_keep_from_dynamo(_LiveTrace.__torch_dispatch__, ForwardTrace.enter, ForwardTrace.leave)
