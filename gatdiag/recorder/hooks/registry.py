"""The hooks of all recorders of this process: one function of ours in each of torch's tables of global hooks.

Torch walks through these tables while hooks run, also in other threads, and raises "OrderedDict mutated during
iteration" if one of several hooks comes or goes meanwhile. The only hook of a table may: then torch has no next one to
look for. So recorders do not register with torch, but listen here.

The functions are plain and begin by asking whether the compiler traces them. It does, with everything that they call,
when a compiled function calls a module or steps an optimizer, and what it traced is what it compiles: recorders do not
hear of modules and steps inside compiled code, and compiling takes as long as without them.
"""

import sys
import threading
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.hooks import RemovableHandle

from gatdiag.recorder.hooks.outside import run_as_is


class ModuleListener(Protocol):
    """Hears of the calls of all modules in all threads."""

    def on_module_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before a module runs."""

    def on_module_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Called after it; `rest` is its keyword arguments and output, or only None if it failed."""


class OptimizerListener(Protocol):
    """Hears of the steps of all optimizers in all threads."""

    def before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Called before a step; may return other arguments for it."""

    def after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called after it, unless it failed."""


# id -> listener. Entries come and go in one operation, and a call goes through a copy, so that no lock is needed.
_of_modules: Final[dict[int, ModuleListener]] = {}
_of_optimizers: Final[dict[int, OptimizerListener]] = {}


def listen_to_modules(listener: ModuleListener) -> None:
    """Call a listener at each call of a module, until `stop_listening`."""
    _of_modules[id(listener)] = listener
    _register(*_MODULE_HOOKS)


def listen_to_optimizers(listener: OptimizerListener) -> None:
    """Call a listener at each step of an optimizer, until `stop_listening`."""
    _of_optimizers[id(listener)] = listener
    _register(*_OPTIMIZER_HOOKS)


def stop_listening(listener: ModuleListener | OptimizerListener) -> None:
    """Call a listener no more; whatever it has listened to, also if it did not listen at all."""
    for listeners, hooks in ((_of_modules, _MODULE_HOOKS), (_of_optimizers, _OPTIMIZER_HOOKS)):
        listeners.pop(id(listener), None)
        if not listeners:
            _unregister(*hooks)
        if listeners:  # another thread has begun to listen since
            _register(*hooks)


@run_as_is
def _before_module(module: nn.Module, args: tuple[Any, ...]) -> None:
    if not torch.compiler.is_dynamo_compiling():
        for listener in (*_of_modules.values(),):
            listener.on_module_start(module, args)


@run_as_is
def _after_module(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
    if not torch.compiler.is_dynamo_compiling():
        for listener in (*_of_modules.values(),):
            listener.on_module_end(module, args, *rest)


@run_as_is
def _before_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    if torch.compiler.is_dynamo_compiling():
        return None
    given = args, kwargs
    for listener in (*_of_optimizers.values(),):
        given = listener.before_optimizer(optimizer, *given) or given
    return given if given[0] is not args or given[1] is not kwargs else None


@run_as_is
def _after_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_dynamo_compiling():
        for listener in (*_of_optimizers.values(),):
            listener.after_optimizer(optimizer, args, kwargs)


class _Hook:
    """A function's place in a table of torch, which is the same whenever it is registered."""

    def __init__(self, table: dict[int, Any], function: Any, *flags: dict[int, bool]) -> None:
        self.table, self.function, self.flags = table, function, flags
        self.number = RemovableHandle(table).id


def _register(*hooks: _Hook) -> None:
    for hook in hooks:
        for flag in hook.flags:
            flag[hook.number] = True
        if hook.number not in hook.table:
            hook.table[hook.number] = hook.function


def _unregister(*hooks: _Hook) -> None:
    """Remove hooks; one that stands among others' stays, without effect, while another thread is at these."""
    for hook in hooks:
        if len(hook.table) == 1 or not _is_in_other_thread(_CALLERS):
            hook.table.pop(hook.number, None)
            for flag in hook.flags:
                flag.pop(hook.number, None)


def _is_in_other_thread(codes: Collection[CodeType]) -> bool:
    """True if another thread is inside of one of these functions."""
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost if thread != threading.get_ident() else None
        while frame is not None:
            if frame.f_code in codes:
                return True
            frame = frame.f_back
    return False


# the functions of torch that go through the tables
_CALLERS: Final = frozenset(
    {
        nn.Module._call_impl.__code__,
        *(code for code in Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)),
    }
)
_MODULE_HOOKS: Final = (
    _Hook(module_hooks._global_forward_pre_hooks, _before_module),
    _Hook(
        module_hooks._global_forward_hooks,
        _after_module,
        module_hooks._global_forward_hooks_with_kwargs,
        module_hooks._global_forward_hooks_always_called,
    ),
)
_OPTIMIZER_HOOKS: Final = (
    _Hook(optimizer_hooks._global_optimizer_pre_hooks, _before_optimizer),
    _Hook(optimizer_hooks._global_optimizer_post_hooks, _after_optimizer),
)
