"""Traces training that calls parts of a model instead of the model.

The tape records the calls of modules and of torch functions between them, from the first call of a part of the model to
the backward pass. Operations that it cannot see (custom autograd functions, state that a module keeps) are found in the
autograd graph of the loss; the values and parameters that they depend on are held fixed, like outputs, so that no law
is claimed for them.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor, nn
from torch.overrides import TorchFunctionMode

from gatdiag.recorder.backward import is_in_backward_pass
from gatdiag.structure.program import Key, Program, Slot, Step, build_program, replace_tensors, tensors_in

_MAX_STEPS = 10_000
_ZEROS: frozenset[Any] = frozenset({torch.zeros, torch.zeros_like, Tensor.new_zeros})  # buffers for results
_BACKWARD: frozenset[Any] = frozenset({Tensor.backward, torch.autograd.backward})


class _Value(NamedTuple):
    """A value that depends on the model's parameters."""

    tensor: Tensor  # kept alive, so that no other tensor gets its id
    number: int
    node: Any  # of the autograd graph, when the value was computed


class _FrozenCall(NamedTuple):
    """The inputs of a call, in the form of `Step`."""

    inputs: tuple[Any, Any, Any]
    needs: frozenset[Key]
    unseen: frozenset[Key]
    versions: tuple[tuple[Tensor, int], ...]  # each tensor with its version before the call


class Tape(TorchFunctionMode):
    """Records from the first call of a part of the model until a backward pass depends on it.

    A torch function mode that is active only between calls of modules, and never above a mode that was active before.
    It passes every call through unchanged. It does not see inside compiled functions; the first call of one under the
    mode compiles it for that call only.

    Args:
        model: The model.
        on_program: Called with what was recorded, before the backward pass.

    Attributes:
        called: Names of the parts of the model that training calls, in order (as a dict without values).
        reason: Why recording failed, if it did.
    """

    def __init__(self, model: nn.Module, on_program: Callable[[Program], object]) -> None:
        super().__init__()
        self._has_ended = self._has_begun = self._is_in_call = False
        self.called: dict[str, None] = {}
        self.reason = ""
        self._model, self._on_program = model, on_program
        self._thread = 0
        self._paths = {id(part): path for path, part in model.named_modules()}
        self._parameters: dict[int, Slot] = {}
        self._running: list[nn.Module] = []  # stack of modules
        self._inputs: dict[int, Slot] = {}  # id of an input of the running module -> its slot
        self._steps: list[Step] = []
        self._values: dict[int, _Value] = {}  # by id
        self._numbers: dict[Any, set[int]] = {}  # node of the autograd graph -> numbers of its values
        self._count = 0

    @property
    def is_done(self) -> bool:
        """True if the recording has ended and the tape can be dropped."""
        return self._has_ended and not self._is_in_call

    @property
    def is_recording(self) -> bool:
        """True between the first call of a part of the model and the end."""
        return self._has_begun and not self._has_ended

    def stop(self) -> None:
        """End the recording."""
        self._pause()
        self._end()

    def on_module_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before any module runs."""
        if self._running:
            if threading.get_ident() == self._thread:
                self._running.append(module)
        elif not self._has_ended:
            self._guarded(self._enter, module, args)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._has_begun and module is self._model and not _is_redirected(module):
            self._thread, self._running = threading.get_ident(), [module]  # a call of the model needs no tape
        elif (self._has_begun or self._begin_with(module)) and threading.get_ident() == self._thread:
            self._pause()
            if self._is_transparent(module):
                self._resume()
            else:
                self._running = [module]
                self._inputs = {id(tensor): slot for tensor in tensors_in(args) if (slot := self._slot_of(tensor))}

    def on_module_end(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, output: Any
    ) -> None:
        """Called after any module; `kwargs` is None if it failed."""
        if any(running is module for running in self._running):
            while self._running.pop() is not module:
                pass
            if self.is_recording and not self._running:
                self._guarded(self._leave, module, args, kwargs, output)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, output: Any) -> None:
        if kwargs is not None and torch.is_grad_enabled():
            path = self._paths.get(id(module))
            call = self._freeze(module if path is None else None, args, kwargs)._replace(versions=())
            if path is not None:
                self.called[path] = None
                self._record(path, call, output, trains=any(weight.requires_grad for weight in module.parameters()))
            elif call.needs and not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
                self._record(None, call, output)
        self._inputs = {}
        self._resume()

    def _begin_with(self, module: nn.Module) -> bool:
        """Begin recording if training calls this part of the model; returns whether it does."""
        is_training = self._model.training and torch.is_grad_enabled() and not is_in_backward_pass()
        if id(module) not in self._paths or not is_training or _C._get_tracing_state() is not None:
            return False
        self.called[self._paths[id(module)]] = None
        self._has_begun, self._thread = True, threading.get_ident()
        self._paths = {id(part): path for path, part in self._model.named_modules()}
        self._parameters = {
            id(parameter): Slot(name) for name, parameter in self._model.named_parameters() if parameter.requires_grad
        }
        return True

    def _is_transparent(self, module: nn.Module) -> bool:
        """True if calls inside the module are recorded: it wraps parts of the model, or Lightning redirects it."""
        if id(module) in self._paths:
            return module is self._model and _is_redirected(module)
        return any(id(part) in self._paths for part in module.modules())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function, and record it if it depends on the model's parameters."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)  # nothing else of this method is compiled
        self._is_in_call = True  # torch has taken the mode off the stack and will put it back
        try:
            return self._call(func, args, kwargs)
        finally:
            self._is_in_call = False

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._has_ended or self._running or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if func in _BACKWARD or (func is torch.autograd.grad and not kwargs.get("create_graph")):
            self._guarded(self._on_backward, args[:1])
            return func(*args, **kwargs)
        call = self._guarded(self._freeze_if_relevant, func, args, kwargs)
        output = func(*args, **kwargs)
        if call is not None:
            self._guarded(self._record, func, call, output)
        return output

    def _freeze_if_relevant(self, func: Any, args: Any, kwargs: Any) -> _FrozenCall | None:
        is_relevant = func in _ZEROS or any(self._slot_of(tensor) for tensor in tensors_in((args, kwargs)))
        return self._freeze(None, args, kwargs) if is_relevant else None

    def _on_backward(self, ends: Any) -> None:
        program = self._build_program(tensors_in(ends))
        if program is not None:
            self._end()
            self._on_program(program)

    def _resume(self) -> None:
        """Put the mode on the stack, unless the user has entered others: leaving one pops the top of the stack."""
        if others := _active_modes():
            self._give_up(f"{type(others[0]).__name__} is active around training")
        elif self.is_recording:
            _C._push_on_torch_function_stack(self)

    def _pause(self) -> None:
        """Take the mode off the stack."""
        active = _active_modes()
        if self in active:
            for _ in active:
                _C._pop_torch_function_stack()
            for mode in active:
                if mode is not self:
                    _C._push_on_torch_function_stack(mode)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result; a failure ends the recording."""
        try:
            return function(*args)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._steps, self._values, self._numbers, self._inputs = [], {}, {}, {}
        self._running = []

    def _slot_of(self, tensor: Tensor) -> Slot | None:
        """The slot of a tensor; None for a constant, or if it was computed or changed by something unseen."""
        slot = self._parameters.get(id(tensor)) or self._inputs.get(id(tensor))
        value = self._values.get(id(tensor))
        if slot is None and value is not None and value.node is tensor.grad_fn:
            return Slot(value.number)
        return slot

    def _freeze(self, callee: nn.Module | None, args: Any, kwargs: Any) -> _FrozenCall:
        tensors = list(tensors_in((args, kwargs)))
        slots = [self._slot_of(tensor) for tensor in tensors]
        unseen = [tensor.grad_fn for tensor, slot in zip(tensors, slots, strict=True) if slot is None]
        args, kwargs = (
            replace_tensors(value, lambda tensor: self._slot_of(tensor) or tensor, self._parameters)
            for value in (args, kwargs)
        )
        versions = tuple((tensor, _version(tensor)) for tensor in tensors)
        needs = frozenset(slot.key for slot in slots if slot is not None)
        return _FrozenCall((callee, args, kwargs), needs, frozenset(self._find_origins(unseen)), versions)

    def _record(self, function: Any, call: _FrozenCall, output: Any, *, trains: bool = False) -> None:
        changed = [at for at, (tensor, version) in enumerate(call.versions) if _version(tensor) != version]
        results = [*tensors_in(output), *(call.versions[at][0] for at in changed)]
        if not results or not (torch.is_grad_enabled() or changed):
            return
        if len(self._steps) == _MAX_STEPS:
            raise RuntimeError(f"more than {_MAX_STEPS:,} operations before a backward pass")
        trains = trains or any(isinstance(key, str) for key in call.needs)
        numbers, records = tuple(self._add_value(tensor) for tensor in results), torch.is_grad_enabled()
        inputs, needs, unseen, _ = call
        self._steps.append(Step(function, inputs, numbers, tuple(changed), records, needs, unseen, trains))

    def _add_value(self, tensor: Tensor) -> int:
        self._count += 1
        self._values[id(tensor)] = _Value(tensor, self._count, tensor.grad_fn)
        if tensor.grad_fn is not None:
            self._numbers.setdefault(tensor.grad_fn, set()).add(self._count)
        return self._count

    def _build_program(self, ends: Iterable[Tensor]) -> Program | None:
        found: set[Key] = set()
        for end in ends:
            slot = self._slot_of(end)
            found |= self._find_origins([end.grad_fn]) if slot is None else {slot.key}
        return build_program(found, self._steps)

    def _find_origins(self, nodes: Iterable[Any]) -> set[Key]:
        """The recorded values and parameters that these nodes of the autograd graph depend on."""
        found: set[Key] = set()
        seen: set[Any] = {None}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            slot = self._parameters.get(id(getattr(node, "variable", None)))
            found |= self._numbers.get(node, set()) | (set() if slot is None else {slot.key})
            if node not in self._numbers:
                stack += [before for before, _ in node.next_functions]
        return found


def _active_modes() -> list[Any]:
    """The stack of torch function modes, without the default device, which stays at its bottom."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    active = [_C._get_function_stack_at(at) for at in range(_C._len_torch_function_stack())]
    return [mode for mode in active if mode is not default]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_redirected(module: nn.Module) -> bool:
    """True if Lightning has replaced `forward`, for this call, by another method such as `training_step`."""
    forward = vars(module).get("forward")
    return getattr(forward, "__qualname__", "").startswith("_ForwardRedirection")
