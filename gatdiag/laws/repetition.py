"""A test that every call of a forward pass computes the same function.

A law of one call is a law of the training only if every call computes the same function, up to masks. A layer dropped
at random, a counter or a hidden state make calls differ, and a rare branch is not met by trying. So two calls in a row
are watched, with random numbers and the model's state going on: for whether they do different operations, and for
whether one reads a number that another would find changed. Tensors can be followed. Numbers of Python cannot, so one
that changes must be an attribute that the forward pass can do without.
"""

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.errors import ModelError
from gatdiag.laws.outputs import Outputs, read_outputs
from gatdiag.structure.copying import tensor_arguments
from gatdiag.structure.deadline import check_time
from gatdiag.structure.replica import Caller, Replica
from gatdiag.structure.state import ModelState

# What a tensor stems from: a parameter; a random draw; what an earlier call left behind. And whether it is a view.
_WEIGHTS, _DRAW, _STATE, _VIEW = 1, 2, 4, 8

# Operations from tensors to numbers of Python, and those whose result says no more than whether an error is due.
_READING = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::allclose", "aten::is_nonzero", "aten::item"})
_ALARMS = frozenset({"aten::isnan", "aten::isinf", "aten::isfinite"})
_EXPORTS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}

_MAY_DIFFER = "the forward pass may take another branch at each call"
_OTHER = "the forward pass takes another branch at each call: calls do not all do the same operations"


def repetition(replica: Replica) -> str | None:
    """Why no law of a replica's forward pass is certain; None if each call, in its own mode, computes the same."""
    return replica.no_grad(lambda call: _obstacle(replica, call))


def _obstacle(replica: Replica, call: Caller) -> str | None:
    watch = _Watch(replica)
    if obstacle := _watched(call, watch):
        return obstacle
    first, memory = watch.operations, ModelState(replica.model)
    try:
        obstacle = _watched(call, watch)
    except ModelError as error:
        return f"the forward pass fails when it is called again ({error})"
    if obstacle or watch.operations != first:
        return obstacle or _OTHER
    after = ModelState(replica.model)
    for path in after.changed_since(memory):
        if not _is_counted_only(path, after, call, watch, first):
            return f"{_MAY_DIFFER}: it changes {path}"
    return None


def _watched(call: Caller, watch: "_Watch") -> str | None:
    watch.begin()
    with _foreign_draws(watch), watch, _Exports(watch):
        outputs: Outputs = call(read_outputs)
    return outputs.obstacle or watch.obstacle


class Tally:
    """Takes a number's place: can be counted on (`self.calls += 1`), and raises where it is used for anything else."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Type of the number, so that nobody who asks (isinstance) takes another way."""
        return self._kind

    def __add__(self, other: object) -> "Tally":
        """Itself: counting shows nothing."""
        return self

    __radd__ = __sub__ = __add__

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a number that changes from call to call is used")

    __bool__ = __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __format__ = _refuse


def _is_counted_only(
    path: str, memory: ModelState, call: Caller, watch: "_Watch", first: list[tuple[Any, ...]]
) -> bool:
    """True if a number that changes from call to call is shown to be used for nothing but to count on."""
    kind = type(memory.numbers[path])
    if path not in memory.attributes or kind not in (int, float):
        return False
    attributes, name = memory.attributes[path]
    attributes[name] = Tally(kind)
    try:
        return _watched(call, watch) is None and watch.operations == first
    except ModelError:
        return False


class _Watch(TorchDispatchMode):
    """Follows through calls in a row what stems from parameters, from random draws and from earlier calls."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, ...]] = []  # of a call, on what depends on parameters, in order
        self.obstacle: str | None = None  # what another call may do otherwise
        self._parameters = {id(tensor): name for name, tensor in replica.parameters.items() if tensor.requires_grad}
        self._stems = WeakTensorKeyDictionary()  # of all that was made or written in these calls
        self._written: dict[int, tuple[int, Tensor]] = {}  # memory written through a view

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see gatdiag.laws.trace.Trace

    def begin(self) -> None:
        """Take all that is left for what an earlier call left behind."""
        self.operations = []
        for tensor, stem in list(self._stems.items()):
            self._stems[tensor] = _STATE | stem & _VIEW
        self._written = {storage: (_STATE, tensor) for storage, (_, tensor) in self._written.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        check_time()
        tensors = tensor_arguments(args, kwargs)
        stems = [self.stem(tensor) for tensor in tensors]
        out = func(*args, **(kwargs or {}))
        stem = reduce(or_, stems, 0)
        if stem & _WEIGHTS:
            origins = (self._parameters.get(id(x), one & _WEIGHTS) for x, one in zip(tensors, stems, strict=True))
            self.operations.append((func, *origins))
        if func._schema.name in _READING:
            self.read(stem)
        elif func._schema.name not in _ALARMS:
            self._mark(func, out, stem)
        return out

    def stem(self, tensor: Tensor) -> int:
        """Origins of a tensor."""
        found: int = self._stems.get(tensor, 0) | (_WEIGHTS if id(tensor) in self._parameters else 0)
        if self._written and tensor.layout == torch.strided:
            found |= self._written.get(tensor.untyped_storage()._cdata, (0, None))[0]
        return found

    def _mark(self, func: Any, out: Any, stem: int) -> None:
        stem = stem & ~_VIEW | (_DRAW if torch.Tag.nondeterministic_seeded in func.tags else 0)
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if not isinstance(tensor, Tensor):
                continue
            known = self._stems.get(tensor, 0)
            self._stems[tensor] = known | stem | (_VIEW if func.is_view else 0)
            if known & _VIEW:
                storage = tensor.untyped_storage()._cdata
                self._written[storage] = stem | self._written.get(storage, (0, None))[0], tensor

    def read(self, stem: int) -> None:
        """A tensor becomes a number of Python, by which the forward pass may choose what to do.

        Layers of libraries do not: they count batches, or learn how many nodes are left.
        """
        reader = _reader()
        if stem & (_DRAW | _STATE) and not _is_of_library(reader):
            what = "that the call before left behind" if stem & _STATE else "drawn at random"
            where = f"{reader.f_code.co_qualname} (line {reader.f_lineno})"
            self.obstacle = f"{_MAY_DIFFER}: {where} reads a number {what}"


class _Exports(TorchFunctionMode):
    """Tells of tensors that leave torch, unseen by dispatch modes."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _EXPORTS:
            self._watch.read(self._watch.stem(args[0]))
        return func(*args, **(kwargs or {}))


@contextmanager
def _foreign_draws(watch: _Watch) -> Iterator[None]:
    """Tells of random numbers drawn elsewhere than in torch.

    What `random.sample` picks (negative edges, as PyG draws them) is data, not a decision.
    """
    sample, state = random.sample, _random_state()
    random.sample = random.Random(0).sample
    try:
        yield
    finally:
        random.sample = sample
    if _random_state() != state:
        watch.obstacle = f"{_MAY_DIFFER}: it draws from Python's or NumPy's random numbers"


def _random_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))  # noqa: NPY002


def _reader() -> FrameType:
    """The innermost frame of a layer or of the user's, of what reads a number."""
    frame = sys._getframe(1)
    while frame.f_back and _home(frame)[0] in ("torch", "gatdiag") and _home(frame)[:3] != ["torch", "nn", "modules"]:
        frame = frame.f_back
    return frame


def _is_of_library(frame: FrameType) -> bool:
    return _home(frame)[0] in ("torch", "torch_geometric")


def _home(frame: FrameType) -> list[str]:
    name: str = frame.f_globals.get("__name__", "")
    return name.split(".")
