"""A test that every call of a forward pass computes the same function.

A law of one call is a law of the training only if every call computes the same function, up to dropout masks. A layer
dropped at random, a counter or a hidden state make calls differ, and a rare branch may not occur in a few calls. So two
calls in a row are tracked, without resetting random numbers and state in between: whether they run different
operations, and whether one reads a number that may be another in the next, or changes a Python number.
"""

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.errors import ModelError
from gatdiag.structure.copying import tensor_arguments
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import DispatchMode
from gatdiag.structure.replica import Caller, Replica
from gatdiag.structure.state import ModelState

# Flags of a tensor: computed from parameters, from random numbers, from state of an earlier call; a view.
_WEIGHTS, _RANDOM, _STATE, _VIEW = 1, 2, 4, 8

# Operations that read Python numbers from tensors; operations whose result only decides whether to raise an error.
_READS = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::allclose", "aten::is_nonzero", "aten::item"})
_ERROR_CHECKS = frozenset({"aten::isnan", "aten::isinf", "aten::isfinite"})
_EXPORTS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}

_MAY_DIFFER = "the forward pass may take another branch at each call"
_DIFFERS = "the forward pass takes another branch at each call: two calls ran different operations"


def why_not_repeatable(replica: Replica) -> str | None:
    """Why calls of a replica, in its mode, may compute different functions; None if all compute the same."""
    return replica.no_grad(lambda call: _find_obstacle(replica, call))


def _find_obstacle(replica: Replica, call: Caller) -> str | None:
    tracker = _OriginTracker(replica)
    if obstacle := _run_tracked(call, tracker):
        return obstacle
    first, before = tracker.operations, ModelState(replica.model)
    try:
        obstacle = _run_tracked(call, tracker)
    except ModelError as error:
        return f"the forward pass fails when it is called again ({error})"
    if obstacle or tracker.operations != first:
        return obstacle or _DIFFERS
    after = ModelState(replica.model)
    changed = after.changed_since(before)
    return f"{_MAY_DIFFER}: it changes {changed[0]}" if changed else None


def _run_tracked(call: Caller, tracker: "_OriginTracker") -> str | None:
    tracker.start_call()
    with _detect_foreign_randomness(tracker), tracker, _ExportTracker(tracker):
        call()
    return tracker.obstacle


class _OriginTracker(DispatchMode):
    """Tracks what tensors are computed from: parameters, random numbers, state of earlier calls."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []  # of one call, those that depend on parameters
        self.obstacle: str | None = None  # why another call may differ
        self._parameters = {id(tensor): name for name, tensor in replica.parameters.items() if tensor.requires_grad}
        self._origins = WeakTensorKeyDictionary()  # of tensors created or written in these calls
        self._written: dict[int, tuple[int, Tensor]] = {}  # memory written through a view

    def start_call(self) -> None:
        """Mark all tensors that exist as state of an earlier call."""
        self.operations = []
        for tensor, origin in list(self._origins.items()):
            self._origins[tensor] = _STATE | origin & _VIEW
        self._written = {storage: (_STATE, tensor) for storage, (_, tensor) in self._written.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        check_time()
        tensors = tensor_arguments(args, kwargs)
        origins = [self.origin_of(tensor) for tensor in tensors]
        out = func(*args, **(kwargs or {}))
        origin = reduce(or_, origins, 0)
        if origin & _WEIGHTS:
            sources = (self._parameters.get(id(x), one & _WEIGHTS) for x, one in zip(tensors, origins, strict=True))
            self.operations.append((func, *sources))
        if func._schema.name in _READS:
            self.read(origin)
        elif func._schema.name not in _ERROR_CHECKS:
            self._record_origin(func, out, origin)
        return out

    def origin_of(self, tensor: Tensor) -> int:
        """Flags of a tensor."""
        found: int = self._origins.get(tensor, 0) | (_WEIGHTS if id(tensor) in self._parameters else 0)
        if self._written and tensor.layout == torch.strided:
            found |= self._written.get(tensor.untyped_storage()._cdata, (0, None))[0]
        return found

    def _record_origin(self, func: Any, out: Any, origin: int) -> None:
        origin = origin & ~_VIEW | (_RANDOM if torch.Tag.nondeterministic_seeded in func.tags else 0)
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if not isinstance(tensor, Tensor):
                continue
            known = self._origins.get(tensor, 0)
            self._origins[tensor] = known | origin | (_VIEW if func.is_view else 0)
            if known & _VIEW:
                storage = tensor.untyped_storage()._cdata
                self._written[storage] = origin | self._written.get(storage, (0, None))[0], tensor

    def read(self, origin: int) -> None:
        """Record that a Python number is read from a tensor, on which the forward pass may branch.

        Layers of libraries are trusted not to: they count batches, or the nodes that are left.
        """
        reader = _reading_frame()
        if origin & (_RANDOM | _STATE) and not _is_library(reader):
            what = "that the previous call left" if origin & _STATE else "drawn at random"
            where = f"{reader.f_code.co_qualname} (line {reader.f_lineno})"
            self.obstacle = f"{_MAY_DIFFER}: {where} reads a number {what}"


class _ExportTracker(TorchFunctionMode):
    """Reports tensors that leave torch, which dispatch modes do not see."""

    def __init__(self, tracker: _OriginTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _EXPORTS:
            self._tracker.read(self._tracker.origin_of(args[0]))
        return func(*args, **(kwargs or {}))


@contextmanager
def _detect_foreign_randomness(tracker: _OriginTracker) -> Iterator[None]:
    """Report random numbers drawn from Python or NumPy.

    `random.sample` is allowed: PyG draws negative edges with it, which are data.
    """
    sample, state = random.sample, _random_state()
    random.sample = random.Random(0).sample
    try:
        yield
    finally:
        random.sample = sample
    if _random_state() != state:
        tracker.obstacle = f"{_MAY_DIFFER}: it draws random numbers from Python or NumPy"


def _random_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))  # noqa: NPY002


def _reading_frame() -> FrameType:
    """The innermost frame outside torch and gatdiag, or in a layer of torch.nn."""
    frame = sys._getframe(1)
    while frame.f_back and _is_internal(frame):
        frame = frame.f_back
    return frame


def _is_internal(frame: FrameType) -> bool:
    path = _module_path(frame)
    return path[0] in ("torch", "gatdiag") and path[:3] != ["torch", "nn", "modules"]


def _is_library(frame: FrameType) -> bool:
    return _module_path(frame)[0] in ("torch", "torch_geometric")


def _module_path(frame: FrameType) -> list[str]:
    name: str = frame.f_globals.get("__name__", "")
    return name.split(".")
