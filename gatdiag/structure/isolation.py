"""Contexts in which a copy of a model runs without side effects, and as plain operations that can be traced."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gatdiag.structure.deadline import check_time


class DispatchMode(TorchDispatchMode):
    """A dispatch mode in which nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # guarding against compilation imports torch._dynamo, which takes seconds


@contextmanager
def preserve_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the random states of torch (of the CPU and the given CUDA devices), NumPy and `random` at the end."""
    python, legacy_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (models use it)
    cuda = {torch.cuda.current_device() if at.index is None else at.index for at in devices if at.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(cuda)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy_numpy)  # noqa: NPY002


@contextmanager
def random_state(seed: int, devices: Iterable[torch.device] | None = None) -> Iterator[None]:
    """Seed the random number generators, by default of all GPUs, and restore them as `preserve_random_state` does."""
    every = (torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    devices = list(every if devices is None else devices)
    with preserve_random_state(devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 (NumPy takes 32 bits)
        yield


# Libraries that compute a recurrent layer as one operation, in some precisions and on some devices only.
_FUSED_LIBRARIES = (
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
)


@contextmanager
def disable_fast_paths() -> Iterator[None]:
    """Turn off compilation, kernels of whole recurrent layers, fused attention, the encoder's fast path and autocast.

    They hide operations; and autocast reads copies of weights, which it may have cached, and computes in low precision.
    """
    with ExitStack() as stack:
        fastpath = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        for is_enabled, enable in _FUSED_LIBRARIES:
            stack.callback(enable, is_enabled())
            enable(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and nothing is compiled without it
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def working_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """Make `dtype` the default dtype, and replace every floating dtype that is named by it; None changes nothing.

    Forward passes contain `x.float()` or `torch.zeros(n, dtype=torch.float32)`, which would not fit weights that were
    converted to float64.
    """
    if dtype is None:
        yield
        return
    with _PrecisionMode(dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


_CASTS = {Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16}
_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer}


class _PrecisionMode(TorchFunctionMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        check_time()
        if func in _CASTS:
            return args[0].to(self.dtype)
        name = getattr(func, "__name__", "")
        is_in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        target, rest = (args[:1], args[1:]) if is_in_place else ((), args)
        converted = {key: value if key == "out" else self._convert(value) for key, value in (kwargs or {}).items()}
        out = func(*target, *(self._convert(value) for value in rest), **converted)
        return self._convert(out) if func in _FROM_DATA else out

    def _convert(self, value: Any) -> Any:
        """A dtype, tensor, or list of them in the working precision; constants from NumPy or a closure need it, too."""
        if isinstance(value, torch.dtype):
            return self.dtype if value.is_floating_point else value
        if isinstance(value, Tensor):
            differs = value.is_floating_point() and value.dtype != self.dtype
            return value.to(self.dtype) if differs else value
        return type(value)(map(self._convert, value)) if type(value) in (list, tuple) else value
