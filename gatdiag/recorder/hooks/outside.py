"""Keeps what a hook computes outside of what the user has entered: modes, autocast, tracers and the compiler."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import _C
from torch._C._dynamo import eval_frame  # the part in C; importing torch._dynamo would take a second
from torch._ops import _len_torch_dispatch_stack_pre_dispatch, _pop_mode_from_pre_dispatch
from torch.utils import _python_dispatch as dispatch

F = TypeVar("F", bound=Callable[..., Any])

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


class Outside:
    """A context in which tensor operations are our own: exact, without gradients, and seen by no mode of the user.

    A `FlopCounterMode`, `make_fx` or a logging mode would count or record them; autocast would round them; a default
    device would move what they create; a subclass of `torch.Tensor` may have a `__torch_function__`. Contexts may be
    nested. Entering and leaving one takes about a microsecond if no mode is active, and about five otherwise.

    `torch.is_autocast_enabled()` is False inside. What a tensor's class does in `__torch_dispatch__` is not left.

    Example:
        >>> with torch.device("meta"), Outside():
        ...     print(torch.zeros(()).device)
        cpu
    """

    __slots__ = ("_guards", "_had_grad", "_modes")

    def __init__(self) -> None:
        self._had_grad = torch.is_grad_enabled()
        self._modes: list[Any] = []
        self._guards: list[Any] = []

    def __enter__(self) -> Self:
        """Leave what the user has entered."""
        try:
            self._leave_all()
        except BaseException:  # an interrupt, of which `__exit__` would not be told
            self.__exit__()
            raise
        return self

    def _leave_all(self) -> None:
        self._enter(_C.DisableTorchFunction())  # first, because these modes see that gradients are switched off
        if _C._is_any_autocast_enabled():
            self._enter(_C._DisableAutocast())
        if torch.is_inference_mode_enabled():
            self._enter(torch.inference_mode(mode=False))
        _C._set_grad_enabled(False)
        if _C._len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch():
            self._take_modes()

    def __exit__(self, *_: object) -> None:
        """Enter it again. May be called twice."""
        try:
            while self._modes:
                dispatch._push_mode(self._modes.pop())
        finally:  # also after an interrupt
            _C._set_grad_enabled(self._had_grad)
            while self._guards:
                self._guards.pop().__exit__(None, None, None)

    def _enter(self, guard: Any) -> None:
        guard.__enter__()
        self._guards.append(guard)

    def _take_modes(self) -> None:
        # as torch's `_disable_current_modes`, which imports the tracer and its algebra
        while _len_torch_dispatch_stack_pre_dispatch():
            self._modes.append(_pop_mode_from_pre_dispatch())
        while _C._len_torch_dispatch_stack():
            self._modes.append(dispatch._pop_mode())


def is_measurable_call() -> bool:
    """True if the call that a hook is called by computes numbers that can be read now.

    They cannot while torch traces, exports or compiles, and inside `torch.func` transforms such as `vmap`.
    """
    return not (
        _C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None
        or _C._get_dispatch_mode(_C._TorchDispatchModeKey.FAKE) is not None
        or _len_torch_dispatch_stack_pre_dispatch()  # only tracers have modes there
    )


def run_as_is(function: F) -> F:
    """Let the compiler never compile a function and what it calls, where it runs beside or inside of compiled code.

    For hooks. Where the compiler traces a hook, as those of modules and optimizers, it does not ask for this: such a
    hook begins with `if torch.compiler.is_dynamo_compiling(): return`, which is traced as nothing.
    """
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function


def never_compiled(function: F) -> F:
    """Do as `run_as_is`, and break the graph where the function is called in code that is compiled.

    For what users call. It is `torch.compiler.disable` without importing the compiler.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run_as_is(function)
