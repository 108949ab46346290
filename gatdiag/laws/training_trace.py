"""A trace of the operations of a training as they run, on the user's own tensors.

What is different from the trace of a copy:

- Gradients are recorded. A tensor that carries a gradient but comes from no operation that was seen (a compiled region,
  a custom kernel, a computation between two calls) is traced back through the graph of autograd, and what it was
  computed from must keep its scale.
- Laws cannot be checked at other points. So an operation that runs on nothing (no edges) fixes its arguments, for
  nothing tells what its result is added to.
- Nothing of the user's may change or stay alive.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo import eval_frame
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.flow import has_scale
from gatdiag.laws.label import Label
from gatdiag.laws.mixing import Mixing
from gatdiag.laws.rules import Call, Labels, Rule
from gatdiag.laws.trace import OUTPUT, Running, Trace, unobserved
from gatdiag.structure.modules import attributes_of, modules_of, named_modules, named_parameters
from gatdiag.structure.tensors import items_of, tensor_arguments, walk

_LONG = 1000
MAX_SECONDS = 20.0  # of computing time that following the operations of a training may take
_EMPTY = frozenset(["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"])
_COMPILED = "_functorch/_aot_autograd/runtime_wrappers.py"  # in which the results of torch.compile run


class TrainingTrace(Trace):
    """Follows operations on the user's tensors, which run exactly as they do without it.

    Args:
        exponents: Where the equations are added.
        running: The path of the module that is running.
        uses: The names of the parameters are added that are read.
        model: The model.

    Attributes:
        labels: Name of a parameter -> its label, from its first use on.
        held: Name of a parameter -> why it must keep its scale.
        emptied: The operations that ran on nothing.
        reads: Name of a parameter -> number of operations that read it.
        read_attributes: Name of an attribute that is a plain tensor, no parameter or buffer, and was read -> itself.
        mixing: The operations that mix rows.
        has_unseen: Something was computed that could not be followed, as in compiled code.
        is_stopped: Following the operations took too long.
        error: Why nothing can be said of the forward pass, if so.
        seconds: Computing time that following the operations has taken.
    """

    def __init__(self, exponents: Exponents, running: Running, uses: dict[str, None], model: nn.Module) -> None:
        super().__init__(exponents, running, _own_tensors(model))
        self._model, self._uses = model, uses
        self._names: dict[int, str] = {}
        self._known = WeakTensorKeyDictionary()  # whose label is complete, also if it has no terms
        self._unwritten: dict[int, StorageWeakRef] = {}  # storages of `empty` -> a weak reference
        self._hidden = WeakTensorKeyDictionary()  # written by kernels that were not seen, without a gradient so far
        self._mark = f"gatdiag {id(self)}"  # in the metadata of the nodes of autograd that made outputs
        self.labels: dict[str, Label] = {}
        self.held: dict[str, str] = {}
        self.emptied: dict[str, None] = {}
        self.reads = Counter[str]()
        self._attributes: dict[int, str] = {}
        self.read_attributes: dict[str, Tensor] = {}
        self.mixing = Mixing()
        self.has_unseen = self.is_stopped = False
        self.error: str | None = None
        self.seconds = 0.0

    supports_higher_order_operators = True  # else they would end the user's training

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled."""
        return True

    def name_parameters(self) -> None:
        """Note the model's parameters, also those that have no shape yet."""
        self._names = {id(parameter): name for name, parameter in named_parameters(self._model)}
        self._attributes = {
            id(value): f"{path}.{name}".lstrip(".")
            for path, module in named_modules(self._model)
            for name, value in attributes_of(module).items()
            if issubclass(type(value), Tensor) and value.is_floating_point() and not value.requires_grad
        }

    def set_label(self, tensor: Tensor, label: Label) -> None:
        """Set the label of a tensor; a parameter keeps its own when it is initialized or clamped."""
        if self._names.get(id(tensor)) in self.labels and tensor.is_leaf and tensor in self._labels:
            return
        super().set_label(tensor, label)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then apply its rule.

        What has no schema (an operation on functions, as `flex_attention`) is not followed: its arguments must keep
        their scale. A parameter that has no shape yet is about to get one.
        """
        if isinstance(func, torch._ops.OpOverload) and not any(map(is_lazy, args)):
            return super().__torch_dispatch__(func, types, args, kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            with self._contained("in", func), unobserved():
                self._fix(f"{func.name()} in {self._current_module()}", tensor_arguments(args, kwargs))
        return func(*args, **(kwargs or {}))

    def _follow(self, func: Any, arguments: dict[str, Any], out: Any, shape: torch.Size | None) -> None:
        if self.seconds > MAX_SECONDS:
            self.is_stopped = True
            self.error = self.error or f"tracing was stopped after {MAX_SECONDS:g} s; gatdiag.find_laws has no limit"
            return
        start = time.thread_time()
        try:
            self.mixing.observe(func._schema.name.removeprefix("aten::"), arguments, out, self._current_module())
            if self.error is None:
                self._follow_within_limit(func, arguments, out, shape)
        finally:
            self.seconds += time.thread_time() - start

    def _follow_within_limit(self, func: Any, arguments: dict[str, Any], out: Any, shape: torch.Size | None) -> None:
        tensors = tensor_arguments(list(arguments.values()), None)
        if _is_in_compiled_region():
            self.has_unseen = True
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

    @contextmanager
    def _contained(self, *where: object) -> Iterator[None]:
        """Keep what fails first in here, which must never end the user's training, as the reason for no laws."""
        try:
            yield
        except Exception as error:
            place = " ".join(map(str, where))
            self.error = self.error or f"{type(error).__name__} {place} in {self._current_module()}: {error}"

    def _fix(self, cause: str, tensors: Iterable[Tensor]) -> None:
        """Require tensors to keep their scale."""
        for tensor in tensors:
            self._admit(tensor)
            self._exponents.cause = cause
            self._exponents.require_zero(self.label_of(tensor))

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
        if (attribute := self._attributes.get(id(tensor))) is not None:
            self.read_attributes[attribute] = tensor
        if name is not None:
            self._uses.setdefault(name)
            self.reads[name] += 1
        if not tensor.requires_grad:
            return
        if not tensor.is_leaf and self._is_unwritten(tensor):  # an unseen kernel wrote it, and gave it a gradient
            self._unwritten.pop(tensor.untyped_storage()._cdata)
            self._trace_back(tensor)
        elif tensor in self._known:
            return
        elif tensor.is_leaf:
            self._admit_leaf(tensor)
        elif tensor not in self._labels:
            self._trace_back(tensor)

    def _admit_leaf(self, tensor: Tensor) -> None:
        if id(tensor) not in self._names and isinstance(tensor, nn.Parameter):
            self.name_parameters()  # a layer may have been made in this call
        name = self._names.get(id(tensor))
        self._known[tensor] = True
        if name is not None and name not in self.labels:
            self.labels[name] = self.label_parameter(tensor, name)
            self._uses.setdefault(name)

    def _trace_back(self, tensor: Tensor) -> None:
        """Label a tensor that comes from no operation that was seen."""
        seen = {
            (result.grad_fn, result.output_nr): result
            for table in (self._known, self._labels)
            for result in list(table.keys())
            if result is not tensor and result.grad_fn is not None
        }
        same = seen.get(
            (tensor.grad_fn, tensor.output_nr)
        )  # which was saved for a backward pass, and is another object
        if same is None:
            self.has_unseen = True
            self._hold(tensor, *self._walk_back(tensor.grad_fn, seen))
        else:
            self.set_label(tensor, self.label_of(same))
            self.flow.link(tensor, [same])
        self._known[tensor] = True

    def _hold(self, tensor: Tensor, sources: list[Tensor], leaves: list[Tensor]) -> None:
        """Require that whatever a tensor was computed from keeps its scale: results of operations, and leaves."""
        cause = f"a computation that cannot be followed, in {self._current_module()}"
        for leaf in leaves:
            self._admit_leaf(leaf)
            name = self._names.get(id(leaf))
            if name is not None:
                self.held.setdefault(name, cause)
        self._exponents.cause = cause
        for source in (*sources, *leaves):
            self._exponents.require_zero(self.label_of(source))
        self._labels.pop(tensor, None)
        self.flow.link(tensor, [*sources, *leaves])

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
            self._unwritten[storage._cdata] = StorageWeakRef(storage)
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
        with self._contained("at the output"):
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
                node: Any = tensor.grad_fn
                if node is not None:  # a mark that does not keep the graph alive
                    node.metadata.setdefault(self._mark, set()).add(tensor.output_nr)
            self._unwritten.clear()

    def _hold_lost(self, outputs: Iterable[Tensor]) -> None:
        """Hold parameters that a gradient reaches although no operation was seen to read them."""
        for output in outputs:
            for leaf in self._walk_back(output.grad_fn, {})[1]:
                name = self._names.get(id(leaf))
                if name is not None and name not in self.labels:
                    self._admit_leaf(leaf)
                    self._exponents.require_zero(self.labels[name])
                    self.held.setdefault(name, "a computation that cannot be followed")


def _own_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Buffers and other tensors among a model's attributes, also in containers; long ones hold data."""
    for module in modules_of(model):
        waiting, seen = [attributes_of(module)], set[int]()
        while waiting:
            value: Any = waiting.pop()
            if issubclass(type(value), Tensor):
                yield from () if is_lazy(value) else (value,)
            elif id(value) not in seen and issubclass(type(value), dict | list | tuple):
                seen.add(id(value))
                parts = items_of(value, _LONG)
                waiting += parts if len(parts) < _LONG else ()


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
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILED):
            return True
        frame = frame.f_back
    return False


def keep_from_dynamo(*functions: Any) -> None:
    """Make Dynamo compile neither these functions nor what they call, without importing it, which takes seconds.

    An operation between two parts of a compiled function (after a graph break) would make it compile all of this.
    """
    skip = eval_frame._FrameAction.SKIP
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


keep_from_dynamo(TrainingTrace.__torch_dispatch__)
