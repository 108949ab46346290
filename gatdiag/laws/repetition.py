"""A test that every call of a forward pass computes the same function.

A law of one call is a law of the training only if every call computes the same function, up to masks. A layer dropped
at random, a counter or a hidden state make calls differ, and a rare branch is not met by trying. So a few calls in a
row are watched, with random numbers and the model's state going on: for whether they do different operations, and for
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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.errors import ModelError
from gatdiag.laws.outputs import Outputs, read_outputs
from gatdiag.structure.copying import tensors_among
from gatdiag.structure.deadline import check_time
from gatdiag.structure.memory import Memory, Tally
from gatdiag.structure.replica import Caller, Replica

# Calls watched: enough to see what was left by the first; more where a number of things may differ.
_CALLS, _MANY_CALLS = 2, 8

# What a tensor stems from: a parameter; a random draw of many entries or of one; what an earlier call left
# behind. And whether it is a view.
_WEIGHTS, _DRAW, _COIN, _STATE, _VIEW = 1, 2, 4, 8, 16

# Operations from tensors to numbers of Python, and those whose result says no more than whether an error is due.
_READING = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::allclose", "aten::is_nonzero", "aten::item"})
_ALARMS = frozenset({"aten::isnan", "aten::isinf", "aten::isfinite"})
_EXPORTS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}

# Draws between 0 and 1, which can be forced, and one of data.
_DRAWS = (
    (random, "random"),
    (random, "sample"),
    *((np.random, name) for name in ("rand", "random", "random_sample")),
)
_MAY_DIFFER = "the forward pass may take another branch at each call"
_EXTREMES = {2: 2**-24, 3: 1 - 2**-24}


class Repetition(NamedTuple):
    """Result of watching a few calls of a forward pass."""

    obstacle: str | None  # why no law is certain, in plain words
    calls: int = 1  # how many calls in a row to trace: one where each is like the others


def repetition(replica: Replica) -> Repetition:
    """Watch a few calls of a replica at the model's own weights, in its own mode, while random numbers go on."""
    result: Repetition = replica.no_grad(lambda call: _watched(replica, call))
    return result


def _watched(replica: Replica, call: Caller) -> Repetition:
    names = {id(parameter): name for name, parameter in replica.parameters.items() if parameter.requires_grad}
    memory, changed, counted = Memory(replica.model), list[Tensor](), dict[str, None]()
    calls: list[_Call] = []
    wanted = _CALLS
    while len(calls) < wanted:
        watch = _Call(names, changed)
        try:
            outputs = _outputs(call, watch, _EXTREMES.get(len(calls)) if calls and calls[0].draws else None)
        except ModelError as error:
            if not calls:
                raise
            return Repetition(f"the forward pass fails when it is called again ({error})")
        calls.append(watch)
        memory, before = Memory(replica.model), memory
        if obstacle := outputs.obstacle or watch.obstacle or _other(calls[0], watch):
            return Repetition(obstacle)
        numbers, changed = memory.changed_since(before)
        counted |= dict.fromkeys(numbers if len(calls) > 1 else ())
        watch.uncertain |= any(watch.stem(tensor) & _STATE for tensor in outputs.tensors)
        if watch.uncertain or watch.numbers != calls[0].numbers:
            wanted = _MANY_CALLS
    for path in counted:
        if not _is_counted_only(path, memory, call, calls[0], _Call(names, changed)):
            return Repetition(f"{_MAY_DIFFER}: it changes {path}")
    return Repetition(None, 1 if wanted == _CALLS else _MANY_CALLS // 2)


def _is_counted_only(path: str, memory: Memory, call: Caller, first: "_Call", watch: "_Call") -> bool:
    """True if a number that changes from call to call is shown to be used for nothing but to count on."""
    kind = type(memory.numbers[path])
    if path not in memory.attributes or kind not in (int, float):
        return False
    attributes, name = memory.attributes[path]
    attributes[name] = Tally(kind)
    try:
        _outputs(call, watch, None)
    except ModelError:
        return False
    return _other(first, watch) is None


def _outputs(call: Caller, watch: "_Call", forced: float | None) -> Outputs:
    with _counting_draws(watch, forced), watch, _Exports(watch):
        outputs: Outputs = call(read_outputs)
    return outputs


class _Call(TorchDispatchMode):
    """Follows through one call what stems from parameters, from random draws and from earlier calls."""

    def __init__(self, parameters: Mapping[int, str], state: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, ...]] = []  # on what depends on parameters, in order
        self.numbers: list[float] = []  # among the arguments of these
        self.obstacle: str | None = None  # what another call may do otherwise
        self.uncertain = False  # whether it does what is likely, but not certain, to be the same at every call
        self.draws = False  # whether it draws numbers that can be forced
        self._parameters = parameters
        self._stems = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[int, Tensor]] = {}  # memory written through a view
        for tensor in state:
            self._stems[tensor] = _STATE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see gatdiag.laws.trace.Trace

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        check_time()
        tensors = tensors_among(args, kwargs)
        stems = [self.stem(tensor) for tensor in tensors]
        out = func(*args, **(kwargs or {}))
        stem = reduce(or_, stems, 0)
        if stem & _WEIGHTS:
            origins = (self._parameters.get(id(x), one & _WEIGHTS) for x, one in zip(tensors, stems, strict=True))
            self.operations.append((func, *origins))
            self.numbers += [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, int | float)]
        if func._schema.name in _READING:
            self.read(stem, out)
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
        draws = torch.Tag.nondeterministic_seeded in func.tags
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if not isinstance(tensor, Tensor):
                continue
            known = self._stems.get(tensor, 0)
            found = known | stem | ((_COIN if tensor.numel() <= 1 else _DRAW) if draws else 0)
            if found & ~known:
                self._stems[tensor] = found | (_VIEW if func.is_view else 0)
                if known & _VIEW:
                    storage = tensor.untyped_storage()._cdata
                    self._written[storage] = found | self._written.get(storage, (0, None))[0], tensor

    def read(self, stem: int, value: object) -> None:
        """A tensor becomes a number of Python, by which the forward pass may choose what to do.

        A count or an index out of many draws (how many edges were kept) most likely sets a size.
        """
        if not stem & (_DRAW | _COIN | _STATE) or (not stem & _STATE and _read_by_library()):
            return
        if stem & _STATE:
            self.obstacle = f"{_MAY_DIFFER}: {_reader()} reads a number that the call before left behind"
        elif isinstance(value, bool | float) or not stem & _DRAW:
            self.obstacle = f"{_MAY_DIFFER}: {_reader()} reads a number drawn at random"
        else:
            self.uncertain = True


class _Exports(TorchFunctionMode):
    """Tells a call of tensors that leave torch, unseen by dispatch modes."""

    def __init__(self, watch: _Call) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _EXPORTS:
            whole = not (args[0].is_floating_point() or args[0].dtype == torch.bool)
            self._watch.read(self._watch.stem(args[0]), 0 if whole else 0.0)
        return func(*args, **(kwargs or {}))


@contextmanager
def _counting_draws(watch: _Call, forced: float | None) -> Iterator[None]:
    """Tells a call of random numbers drawn elsewhere than in torch.

    Numbers between 0 and 1 are mostly compared with a probability, so they can be forced to either end. What
    `random.sample` picks (negative edges, as PyG draws them) is rather data than a decision.
    """
    state = _random_state()

    def counted(draw: Callable[..., Any], uniform: bool) -> Callable[..., Any]:
        def drawing(*args: Any, **kwargs: Any) -> Any:
            nonlocal state
            foreign = _random_state() != state
            drawn = draw(*args, **kwargs)
            watch.uncertain, watch.draws = True, watch.draws or uniform
            state = b"" if foreign else _random_state()
            return drawn * 0 + forced if uniform and forced is not None else drawn

        return drawing

    originals = [(home, name, getattr(home, name)) for home, name in _DRAWS]
    for home, name, draw in originals:
        setattr(home, name, counted(draw, name != "sample"))
    try:
        yield
    finally:
        for home, name, draw in originals:
            setattr(home, name, draw)
    if _random_state() != state:
        watch.obstacle = f"{_MAY_DIFFER}: it draws from Python's or NumPy's random numbers"


def _random_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))  # noqa: NPY002


def _other(first: _Call, later: _Call) -> str | None:
    if first.operations == later.operations:
        return None
    return "the forward pass takes another branch at each call: calls do not all do the same operations"


def _frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "gatdiag"):
        frame = frame.f_back
    return frame


def _read_by_library() -> bool:
    frame = _frame()
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch_geometric.")


def _reader() -> str:
    frame = _frame()
    return f"{frame.f_code.co_qualname} (line {frame.f_lineno})" if frame else "the forward pass"
