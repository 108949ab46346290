"""Contexts in which a copy of a model can run without leaving a trace, and so that its operations can be followed."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def preserved_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Gives the random states of torch (CPU and the CUDA devices named), numpy and `random` back as they were."""
    python, legacy_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is what models draw from)
    cuda = {torch.cuda.current_device() if at.index is None else at.index for at in devices if at.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(cuda)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy_numpy)  # noqa: NPY002


@contextmanager
def preserved_state(model: nn.Module) -> Iterator[None]:
    """Gives every module its attributes and its buffers' values back: running statistics, caches, hidden states."""
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    attributes = [(vars(module), dict(vars(module)), dict(module._buffers)) for module in modules]
    buffers = [buffer for _, _, held in attributes for buffer in held.values() if buffer is not None]
    values = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        for live, before, held in attributes:
            live.clear()
            live.update(before)
            live["_buffers"].clear()
            live["_buffers"].update(held)
        for buffer, value in values:
            buffer.data = value


@contextmanager
def decomposed() -> Iterator[None]:
    """Turns off what hides operations: compilation, fused attention and the encoder's fast path."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and without it nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def working_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """Makes `dtype` the default and the meaning of every floating dtype a forward pass names; None changes nothing.

    Models say `x.float()` or `torch.zeros(n, dtype=torch.float32)`; taken at their word they would mix precisions
    with weights that were converted to float64.
    """
    if dtype is None:
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Precision(dtype):
            yield
    finally:
        torch.set_default_dtype(default)


_CASTS = {Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16}


class _Precision(TorchFunctionMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _CASTS:
            return args[0].to(self.dtype)
        named = {key: self._precise(value) for key, value in (kwargs or {}).items()}
        return func(*(self._precise(value) for value in args), **named)

    def _precise(self, value: Any) -> Any:
        return self.dtype if isinstance(value, torch.dtype) and value.is_floating_point else value
