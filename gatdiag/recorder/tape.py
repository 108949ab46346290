"""Records what training computes with a model whose own forward pass it does not call.

The tape notes the modules that are called and the torch functions between them, from the first call of a part of the
model to the backward pass. Parameters count as used where the autograd graph of the loss says so: what the tape did not
see (custom autograd functions, state that a module keeps) is found by walking that graph, and the values and parameters
that it reaches are held fixed, as outputs are, so that no law is claimed of them.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor, nn
from torch.overrides import TorchFunctionMode

from gatdiag.recorder.backward import is_in_backward_pass
from gatdiag.structure.program import Key, Program, Slot, Step, build_program, replace_tensors, tensors_in

_MOST_STEPS = 10_000
_ZEROS: frozenset[Any] = frozenset({torch.zeros, torch.zeros_like, Tensor.new_zeros})  # where results are gathered
_BACKWARD: frozenset[Any] = frozenset({Tensor.backward, torch.autograd.backward})


class _Known(NamedTuple):
    """A value that the model's parameters have made."""

    tensor: Tensor  # kept, so that no other gets its id
    number: int
    node: Any  # of the autograd graph, when the value was made


class _Frozen(NamedTuple):
    """The inputs of a call, as `Step` keeps them."""

    inputs: tuple[Any, Any, Any]
    needs: frozenset[Key]
    unseen: frozenset[Key]
    versions: tuple[tuple[Tensor, int], ...]  # how often each of their tensors was changed in place before


class Tape(TorchFunctionMode):
    """Follows training from the first call of a part of the model until a backward pass depends on it.

    A function mode, which is on between calls of modules only, and never above another mode that was there before. It
    hands every call on as it is. A function that is compiled is not looked into; its first call under the mode compiles
    it for that one call.
    """

    def __init__(self, model: nn.Module, on_program: Callable[[Program], object]) -> None:
        super().__init__()
        self._has_ended = self._is_rolling = self._is_answering = False
        self.called: dict[str, None] = {}  # the parts of the model that training calls by themselves, in order
        self.reason = ""  # why it could not follow training
        self._model, self._on_program = model, on_program
        self._above: list[Any] = []  # modes that were entered after this one
        self._thread = 0
        self._paths = {id(part): path for path, part in model.named_modules()}
        self._parameters: dict[int, Slot] = {}
        self._running: list[nn.Module] = []
        self._given: dict[int, Slot] = {}  # id of an input of the module that is running -> what stands for it
        self._steps: list[Step] = []
        self._known: dict[int, _Known] = {}
        self._numbers: dict[Any, set[int]] = {}  # node of the autograd graph -> its values
        self._count = 0

    @property
    def is_done(self) -> bool:
        """True if it follows nothing any more, and can be taken off."""
        return self._has_ended and not self._is_answering

    @property
    def is_following(self) -> bool:
        """True if training is being followed."""
        return self._is_rolling and not self._has_ended

    def stop(self) -> Program | None:
        """End it; returns what leads to values of which nothing was made, if no loss was seen."""
        self._pause()
        program: Program | None = None
        if self.is_following:
            used = frozenset[Key]().union(*(step.needs for step in self._steps))
            ends = [known.tensor for known in self._known.values() if known.number not in used]
            program = self._contained(self._program, ends)
        self._end()
        return program

    def enters(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module, any one, is about to run."""
        if self._running:
            if threading.get_ident() == self._thread:
                self._running.append(module)
        elif not self._has_ended:
            self._contained(self._enter, module, args)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._is_rolling and module is self._model and not _is_redirected(module):
            self._thread, self._running = threading.get_ident(), [module]  # an ordinary pass, which needs no tape
        elif (self._is_rolling or self._begins_with(module)) and threading.get_ident() == self._thread:
            self._pause()
            if self._is_transparent(module):
                self._resume()
            else:
                self._running = [module]
                self._given = {id(tensor): slot for tensor in tensors_in(args) if (slot := self._slot_of(tensor))}

    def leaves(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, output: Any) -> None:
        """It has run; or failed, if there are no keyword inputs."""
        if any(running is module for running in self._running):
            while self._running.pop() is not module:
                pass
            if self.is_following and not self._running:
                self._contained(self._leave, module, args, kwargs, output)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, output: Any) -> None:
        if kwargs is not None and torch.is_grad_enabled():
            path = self._paths.get(id(module))
            frozen = self._freeze(module if path is None else None, args, kwargs)._replace(versions=())
            if path is not None:
                self.called[path] = None
                self._record(path, frozen, output, trains=any(weight.requires_grad for weight in module.parameters()))
            elif frozen.needs and not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
                self._record(None, frozen, output)
        self._given = {}
        self._resume()

    def _begins_with(self, module: nn.Module) -> bool:
        """True if training calls this part of the model by itself: then the tape rolls from now on."""
        is_training = self._model.training and torch.is_grad_enabled() and not is_in_backward_pass()
        if id(module) not in self._paths or not is_training or _C._get_tracing_state() is not None:
            return False
        self.called[self._paths[id(module)]] = None
        self._is_rolling, self._thread = True, threading.get_ident()
        self._paths = {id(part): path for path, part in self._model.named_modules()}
        self._parameters = {
            id(parameter): Slot(name) for name, parameter in self._model.named_parameters() if parameter.requires_grad
        }
        return True

    def _is_transparent(self, module: nn.Module) -> bool:
        """True if it is looked into: a module around parts of the model, or one whose forward is lent to a method."""
        if id(module) in self._paths:
            return module is self._model and _is_redirected(module)
        return any(id(part) in self._paths for part in module.modules())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function, and note it if it depends on the model's parameters."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)  # all that is compiled of this method
        self._is_answering = True  # torch has taken the mode off the stack, and will put it back
        try:
            return self._answer(func, args, kwargs)
        finally:
            self._is_answering = False

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._has_ended or self._running or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if func in _BACKWARD or (func is torch.autograd.grad and not kwargs.get("create_graph")):
            self._contained(self._backward_begins, args[:1])
            return func(*args, **kwargs)
        frozen = self._contained(self._frozen_if_wanted, func, args, kwargs)
        output = func(*args, **kwargs)
        if frozen is not None:
            self._contained(self._record, func, frozen, output)
        return output

    def _frozen_if_wanted(self, func: Any, args: Any, kwargs: Any) -> _Frozen | None:
        is_wanted = func in _ZEROS or any(self._slot_of(tensor) for tensor in tensors_in((args, kwargs)))
        return self._freeze(None, args, kwargs) if is_wanted else None

    def _backward_begins(self, ends: Any) -> None:
        program = self._program(tensors_in(ends))
        if program is not None:
            self._end()
            self._on_program(program)

    def _resume(self) -> None:
        """Put the mode on the stack, below those that the user has entered since the tape began.

        Leaving a mode takes the uppermost one off the stack, so none that was there before may come to lie below.
        """
        active = _modes()
        others = [mode for mode in active if not any(mode is later for later in self._above)]
        if others:
            self._give_up(f"{type(others[0]).__name__} is active around training")
        elif self.is_following:
            _put(active, [self, *active])

    def _pause(self) -> None:
        """Take the mode off the stack."""
        active = _modes()
        if self in active:
            self._above = active[active.index(self) + 1 :]
            _put(active, [mode for mode in active if mode is not self])

    def _contained(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result; a failure ends the tape, and nothing else."""
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
        self._steps, self._known, self._numbers, self._given = [], {}, {}, {}
        self._running = []

    def _slot_of(self, tensor: Tensor) -> Slot | None:
        """The slot that stands for a tensor; None for a constant, and for what something unseen has made or changed."""
        slot = self._parameters.get(id(tensor)) or self._given.get(id(tensor))
        known = self._known.get(id(tensor))
        if slot is None and known is not None and known.node is tensor.grad_fn:
            return Slot(known.number)
        return slot

    def _freeze(self, callee: nn.Module | None, args: Any, kwargs: Any) -> _Frozen:
        given = list(tensors_in((args, kwargs)))
        slots = [self._slot_of(tensor) for tensor in given]
        unseen = [tensor.grad_fn for tensor, slot in zip(given, slots, strict=True) if slot is None]
        args, kwargs = (
            replace_tensors(value, lambda tensor: self._slot_of(tensor) or tensor, self._parameters)
            for value in (args, kwargs)
        )
        versions = tuple((tensor, _version(tensor)) for tensor in given)
        needs = frozenset(slot.key for slot in slots if slot is not None)
        return _Frozen((callee, args, kwargs), needs, frozenset(self._origins(unseen)), versions)

    def _record(self, function: Any, frozen: _Frozen, output: Any, *, trains: bool = False) -> None:
        changed = [at for at, (tensor, version) in enumerate(frozen.versions) if _version(tensor) != version]
        results = [*tensors_in(output), *(frozen.versions[at][0] for at in changed)]
        if not results or not (torch.is_grad_enabled() or changed):
            return
        if len(self._steps) == _MOST_STEPS:
            raise RuntimeError(f"{_MOST_STEPS} operations came before a backward pass")
        trains = trains or any(isinstance(key, str) for key in frozen.needs)
        numbers, records = tuple(self._learn(tensor) for tensor in results), torch.is_grad_enabled()
        inputs, needs, unseen, _ = frozen
        self._steps.append(Step(function, inputs, numbers, tuple(changed), records, needs, unseen, trains))

    def _learn(self, tensor: Tensor) -> int:
        self._count += 1
        self._known[id(tensor)] = _Known(tensor, self._count, tensor.grad_fn)
        if tensor.grad_fn is not None:
            self._numbers.setdefault(tensor.grad_fn, set()).add(self._count)
        return self._count

    def _program(self, ends: Iterable[Tensor]) -> Program | None:
        found: set[Key] = set()
        for end in ends:
            slot = self._slot_of(end)
            found |= self._origins([end.grad_fn]) if slot is None else {slot.key}
        return build_program(found, self._steps)

    def _origins(self, nodes: Iterable[Any]) -> set[Key]:
        """The values and parameters at which the autograd graph before these nodes begins."""
        found: set[Key] = set()
        seen: set[Any] = {None}
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            slot = self._parameters.get(id(getattr(node, "variable", None)))
            found |= self._numbers.get(node, set()) | (set() if slot is None else {slot.key})
            if node not in self._numbers:
                waiting += [before for before, _ in node.next_functions]
        return found


def _modes() -> list[Any]:
    """The function modes that are active, but the default device, which is taken out from below others."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    active = [_C._get_function_stack_at(at) for at in range(_C._len_torch_function_stack())]
    return [mode for mode in active if mode is not default]


def _put(active: list[Any], modes: list[Any]) -> None:
    """Replace the modes that are active."""
    for _ in active:
        _C._pop_torch_function_stack()
    for mode in modes:
        _C._push_on_torch_function_stack(mode)


def _version(tensor: Tensor) -> int:
    """How often it was changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def _is_redirected(module: nn.Module) -> bool:
    """True if its forward is, for this call, Lightning's way to another method, through a wrapper of the module."""
    forward = vars(module).get("forward")
    return getattr(forward, "__qualname__", "").startswith("_ForwardRedirection")
