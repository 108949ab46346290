"""Contexts in which a copy of a model can run without leaving a trace, and so that its operations can be followed."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from traceback import clear_frames
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import _C, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from gatdiag.structure.deadline import check_time

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def leaving_no_mode(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """The function, after which torch's modes are as they were before, whatever interrupted it.

    A mode is entered and left by functions in Python. An interrupt (Ctrl-C) that falls into one of them, or just before
    the `with` takes hold, leaves the mode active for the rest of the process. So the modes are put back here, in two
    `finally`, since the interrupt may also fall into the first. A mode that the function enters it need not leave.
    """

    @wraps(function)
    def leaving(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        before = _Modes()
        try:
            try:
                return function(*args, **kwargs)
            except KeyboardInterrupt as interrupt:
                clear_frames(
                    interrupt.__traceback__
                )  # what is suspended in there ends now, not after the modes are back
                raise
            finally:
                before.restore()
        finally:
            before.restore()

    return leaving


class _Modes:
    """The modes that are active, gradients recorded or not, the default dtype, and what torch notes of modes."""

    def __init__(self) -> None:
        self.functions = [_C._get_function_stack_at(at) for at in range(_C._len_torch_function_stack())]
        self.dispatches = [_C._get_dispatch_stack_at(at) for at in range(_C._len_torch_dispatch_stack())]
        self.gradients = torch.is_grad_enabled()
        self.dtype = torch.get_default_dtype()
        self.saving = _saved_tensors_hooks()
        self.flags = {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_")}

    def restore(self) -> None:
        while _C._len_torch_function_stack() > len(self.functions):
            _C._pop_torch_function_stack()
        for mode in self.functions[_C._len_torch_function_stack() :]:  # torch takes one off while it answers
            _C._push_on_torch_function_stack(mode)
        while _C._len_torch_dispatch_stack() > len(self.dispatches):
            _C._pop_torch_dispatch_stack(None)
        for mode in self.dispatches[_C._len_torch_dispatch_stack() :]:
            _C._push_on_torch_dispatch_stack(mode)
        while _saved_tensors_hooks() not in (None, self.saving):
            _C._autograd._pop_saved_tensors_default_hooks()
        _C._set_grad_enabled(self.gradients)
        torch.set_default_dtype(self.dtype)
        vars(_python_dispatch).update(self.flags)


def _saved_tensors_hooks() -> Any:
    """What tensors that autograd saves go through: the uppermost pair of functions, None if there is none."""
    return _C._autograd._top_saved_tensors_default_hooks(True)


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
def random_state(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Starts the random numbers of `preserved_random_state` from a seed."""
    devices = list(devices)
    with preserved_random_state(devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield


@contextmanager
def decomposed() -> Iterator[None]:
    """Turns off what hides operations: compilation, fused attention, the encoder's fast path and autocast.

    Autocast would take copies of weights, or those that it has taken before, and compute in low precision.
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
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
    modes = _Modes()
    try:
        torch.set_default_dtype(dtype)
        _Precision(dtype).__enter__()  # type: ignore[no-untyped-call]
        yield
    finally:
        modes.restore()  # not by leaving the mode, which fails where an interrupt has left it already


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
