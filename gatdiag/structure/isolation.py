"""Contexts in which a copy of a model can run without leaving a trace, and so that its operations can be followed."""

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from gatdiag.structure.deadline import check_time

# The default type and torch's fast paths are those of the process: another thread would restore what it found changed.
_process_wide = threading.RLock()


@contextmanager
def preserve_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
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
def random_state(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Starts the random numbers of `preserve_random_state` from a seed."""
    devices = list(devices)
    with preserve_random_state(devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 (numpy takes no larger one)
        yield


@contextmanager
def disable_fast_paths() -> Iterator[None]:
    """Turns off what hides operations: compilation, fused attention, the encoder's fast path and autocast.

    Autocast would take copies of weights, or those that it has taken before, and compute in low precision.
    """
    with _process_wide, ExitStack() as stack:
        fastpath = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
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
    with _process_wide, _Precision(dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


_CASTS = {Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16}
_FROM_ELSEWHERE = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer}
_LEGACY = {f"torch.{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16")}


class _Precision(TorchFunctionMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        check_time()
        if func in _CASTS or (func is Tensor.type and len(args) > 1 and _legacy(args[1]) in _LEGACY):
            return args[0].to(self.dtype)
        name = getattr(func, "__name__", "")
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))  # into the first argument
        first, rest = (args[:1], args[1:]) if writes else ((), args)
        named = {key: value if key == "out" else self._precise(value) for key, value in (kwargs or {}).items()}
        out = func(*first, *(self._precise(value) for value in rest), **named)
        return self._precise(out) if func in _FROM_ELSEWHERE else out

    def _precise(self, value: Any) -> Any:
        """The value in the working precision: constants that were made elsewhere (by NumPy, in a closure) as well."""
        if isinstance(value, torch.dtype):
            return self.dtype if value.is_floating_point else value
        if isinstance(value, Tensor):
            foreign = value.is_floating_point() and value.dtype != self.dtype
            return value.to(self.dtype) if foreign else value
        return type(value)(map(self._precise, value)) if type(value) in (list, tuple) else value


def _legacy(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"
