"""Conservation laws from the forward passes of a training as it makes them: the model is never called for them.

There are no other points to check a law at, as `find_laws` has on a copy: what multiplies zeros (the first state of a
recurrent network) must be seen to multiply something else, too, and entries that nothing is required of keep their
scale.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _pop_mode, _push_mode

from gatdiag.law import Exclusion, Law
from gatdiag.laws.exponents import Exponents
from gatdiag.laws.find import (
    find_candidates,
    find_shared_memory,
    places_of,
    require_constant_rows,
)
from gatdiag.laws.laws import Laws
from gatdiag.laws.mixing import Mixing
from gatdiag.laws.trace import Running, unobserved
from gatdiag.laws.training_trace import TrainingTrace, keep_from_dynamo
from gatdiag.laws.zero_factors import only_times_zeros
from gatdiag.structure.discovery import order_layers, parameters_by_layer
from gatdiag.structure.layers import Structure
from gatdiag.structure.modules import is_training, modules_of, named_parameters, own_parameters

_MOST_CALLS = 2  # of one module that are traced: in the first step of a recurrent cell the state is zero
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
        self._trace: TrainingTrace | None = None
        self._calls = Counter[int]()  # id of a module -> its calls from outside that were traced
        self._cells = Counter[int]()  # ids of recurrent ones -> how often they ran
        self._uses: dict[str, None] = {}  # parameters that were read and modules that were called, in order
        self._is_tracing = False
        self._thread: int | None = None  # that is in a call
        self._outside = 0  # calls of modules on the stack when it began

    @property
    def order(self) -> list[str]:
        """The layers that were used, in the order of their first use."""
        return order_layers(parameters_by_layer(self._model), self._uses)

    @property
    def is_in_call(self) -> bool:
        """Between the start and the end of a call from outside."""
        return self._thread is not None

    @property
    def seconds(self) -> float:
        """Computing time that the trace has taken."""
        return 0.0 if self._trace is None else self._trace.seconds

    @property
    def has_unseen(self) -> bool:
        """Whether something was computed that could not be followed, as in compiled code."""
        return self._trace is not None and self._trace.has_unseen

    @property
    def is_stopped(self) -> bool:
        """Whether following the operations took too long."""
        return self._trace is not None and self._trace.is_stopped

    @property
    def read_attributes(self) -> dict[str, Tensor]:
        """Plain tensors among the attributes of modules that the forward pass read, by name."""
        return {} if self._trace is None else self._trace.read_attributes

    @property
    def mixing(self) -> Mixing:
        """The operations of the forward pass that mix rows."""
        return Mixing() if self._trace is None else self._trace.mixing

    def enter(self, module: nn.Module) -> None:
        """To be called before each call of one of the model's modules."""
        if self._thread not in (None, threading.get_ident()):
            return
        if self._thread is not None and _count_calls() < self._outside + max(1, len(self._running)):
            self.abandon()  # an interrupt has ended the calls before this one
        if not len(self._running):
            self._begin(module)
        self._running.enter(module)
        self._uses.setdefault(self._running.paths.get(id(module), ["?"])[0])
        if isinstance(module, nn.RNNCellBase) and self._is_tracing:
            self._cells[id(module)] += 1

    def leave(self, module: nn.Module, output: Any) -> None:
        """To be called after each call of one of the model's modules, with None if it failed."""
        if self._thread != threading.get_ident():
            return
        if isinstance(module, nn.RNNBase) and self._is_tracing and _has_one_step(module, output):
            self._cells[id(module)] += 1
        self._running.leave()
        if not len(self._running):
            self._end(output)

    def abandon(self) -> None:
        """To be called after an interrupt, of which no hook is told: leaves the mode if it was left entered."""
        if self._trace is not None:
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
        trained = {name: p for name, p in named_parameters(self._model) if p.requires_grad and not is_lazy(p)}
        if shared := find_shared_memory(trained):
            reason = "these two parameters share memory, so that each step moves it twice; no law is conserved"
            return Laws([], trained, [Exclusion(" and ".join(shared), reason)])
        if self._trace is None:
            return Laws([], trained, [Exclusion("the forward pass", "no call of the model could be traced")])
        if self._trace.error is not None:
            return Laws([], trained, [Exclusion("the forward pass", f"it cannot be traced: {self._trace.error}")])
        with torch.no_grad(), unobserved():
            return _solve(self._trace, self._exponents, structure, trained, self._ran())

    def _ran(self) -> list[tuple[nn.Module, int]]:
        """The recurrent modules that ran, and how often."""
        return [(module, self._cells[id(module)]) for module in modules_of(self._model) if id(module) in self._cells]

    def _begin(self, module: nn.Module) -> None:
        self._thread, self._outside = threading.get_ident(), _count_calls()
        if self._calls[id(module)] >= _MOST_CALLS or not _can_trace(module):
            return
        self._calls[id(module)] += 1
        if self._trace is None:
            self._trace = TrainingTrace(self._exponents, self._running, self._uses, self._model)
        self._trace.name_parameters()
        self._trace.__enter__()  # type: ignore[no-untyped-call]
        self._is_tracing = True

    def _end(self, output: Any) -> None:
        if self._is_tracing and self._trace is not None:
            _remove_mode(self._trace)
        if self._trace is not None and not _is_in_backward():
            with torch.no_grad(), unobserved():
                self._trace.finish(output, is_traced=self._is_tracing)
        self._is_tracing, self._thread = False, None


def _can_trace(module: nn.Module) -> bool:
    """Whether a call is part of training (no evaluation, no repetition in the backward pass), and plain."""
    return (
        (is_training(module) or torch.is_grad_enabled())
        and not torch.is_inference_mode_enabled()
        and not _is_in_backward()
        and not torch._C._is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(torch._C._get_dispatch_mode(key) is None for key in _INFRASTRUCTURE)
    )


def _count_calls() -> int:
    """How many calls of modules are on the stack."""
    count, frame = 0, sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        count += frame.f_code is nn.Module._call_impl.__code__
    return count


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _remove_mode(mode: TrainingTrace) -> None:
    """Remove a mode from the stack, wherever it is."""
    above = []
    stack = [torch._C._get_dispatch_stack_at(at) for at in range(torch._C._len_torch_dispatch_stack())]
    if mode not in stack:
        return
    while (top := _get_top()) is not mode:
        above.append(top)
        _pop_mode()
    mode.__exit__(None, None, None)
    for other in reversed(above):
        _push_mode(other)


def _get_top() -> Any:
    return torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)


def _has_one_step(module: nn.RNNBase, output: Any) -> bool:
    """Whether a recurrent layer ran over one step only, which does not tell what its first state stands for."""
    if not issubclass(type(output), tuple):
        return False
    result = output[0]
    if isinstance(result, nn.utils.rnn.PackedSequence):
        return len(result.batch_sizes) == 1
    return isinstance(result, Tensor) and result.ndim > 1 and result.shape[-2 if module.batch_first else 0] == 1


def _solve(
    trace: TrainingTrace,
    exponents: Exponents,
    structure: Structure,
    trained: Mapping[str, nn.Parameter],
    cells: Iterable[tuple[nn.Module, int]],
) -> Laws:
    places = places_of(structure)
    gradients = {name: p.grad.to_dense() for name, p in trained.items() if p.grad is not None}
    known = {name: label for name, label in trace.labels.items() if name in places and name in trained}
    _hold_states(trace, exponents, trained, cells)
    _hold_padding(trace, exponents, {id(trained[name]): name for name in known}, gradients)
    trace.flow.follow_back()
    exponents.complete((label.terms[0][1] for label in trace.labels.values()), holds_rest=True)
    for name, label in trace.labels.items():
        is_used = name in known and trace.flow.feeds_outputs(trained[name])
        if name not in known or (not is_used and trace.flow.reaches_outputs(trained[name])):
            exponents.require_zero(label)
    labels = {name: exponents.resolve(label) for name, label in known.items()}
    times_zeros = only_times_zeros(exponents.times_zeros, [gradients])
    laws, unclear, limits = find_candidates(trace, exponents, labels, places, times_zeros)
    used = {name for name in known if trace.flow.feeds_outputs(trained[name])}
    kept, unused = _drop_unused(laws, used)
    excluded = [*unclear, *_exclude_unread(trace, trained), *unused, *limits]
    return Laws(kept, {name: trained[name] for name in known}, excluded)


def _hold_padding(
    trace: TrainingTrace, exponents: Exponents, names: Mapping[int, str], gradients: Mapping[str, Tensor]
) -> None:
    """Fix tables with a padding row that other operations read, too, and may train on other batches."""
    lookups = Counter(names.get(id(row.table), "") for row in exponents.constant_rows)
    untrained = {name: gradients[name] for name in lookups if name in gradients and trace.reads[name] == lookups[name]}
    require_constant_rows(exponents, names, untrained)


def _hold_states(
    trace: TrainingTrace,
    exponents: Exponents,
    trained: Mapping[str, nn.Parameter],
    cells: Iterable[tuple[nn.Module, int]],
) -> None:
    """Fix what multiplies the state of a recurrent cell that ran once: nothing tells what its next state is."""
    names = {id(parameter): name for name, parameter in trained.items()}
    for cell, calls in cells:
        for key, parameter in own_parameters(cell).items():
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


def _exclude_unread(trace: TrainingTrace, trained: Mapping[str, nn.Parameter]) -> Iterator[Exclusion]:
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


keep_from_dynamo(ForwardTrace.enter, ForwardTrace.leave)
