"""Functions that are interrupted, once at each of many places, as Ctrl-C does it."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.utils import _python_dispatch


def modes() -> tuple[Any, ...]:
    """What a mode that was not left would show in."""
    flags = [value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_")]
    stacks = _len_torch_function_stack(), _len_torch_dispatch_stack()
    saving = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*stacks, saving, torch.is_grad_enabled(), torch.get_default_dtype(), *flags)


def interrupted_everywhere(function: Callable[[], Any], inside: tuple[str, ...] = (), most: int | None = None) -> int:
    """Call it again and again, raising KeyboardInterrupt one instruction of Python later each time.

    Args:
        function: What is called.
        inside: Names of the functions whose instructions count; all if there are none.
        most: At about how many places to interrupt, evenly spread; None: at all of them.

    Returns:
        At how many places it was interrupted.
    """
    function()  # what is imported at the first call only, is
    stride = 1 if most is None else max(1, _instructions(function, inside, sys.maxsize) // most)
    before, at = modes(), 0
    while True:
        try:
            _instructions(function, inside, at * stride)
        except KeyboardInterrupt:
            assert modes() == before, f"{modes()} after an interrupt at instruction {at * stride}"
            at += 1
        else:
            return at


def _instructions(function: Callable[[], Any], inside: tuple[str, ...], last: int) -> int:
    """How many instructions there were; interrupts when there were more than `last`."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if event != "opcode" or (inside and frame.f_code.co_name not in inside):
            return trace
        count += 1
        if count > last:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(outer)
    return count
