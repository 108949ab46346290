"""State that outlives a call of a model: all that a forward pass can leave behind and find again at the next call."""

import random
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from types import CodeType, FunctionType, MethodType, NoneType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

_NUMBERS = (NoneType, bool, int, float, complex, str, bytes, Enum, np.generic)
_LIBRARIES = frozenset({"torch", "torch_geometric", "numpy", "scipy", "gatdiag", *sys.stdlib_module_names})
_INTERNAL = frozenset(vars(nn.Module()))
# Larger containers and tensors hold data, not the state of a model.
_LONGEST, _LARGEST, _MOST = 1000, 2**22, 20_000


@contextmanager
def preserved_state(copied: nn.Module, original: nn.Module | None) -> Iterator[None]:
    """Gives back what a copy of a model remembers: running statistics, caches, hidden states, counters.

    Classes, closures and globals are not copied with a model, so that of the original is given back, too.
    """
    memories = [Memory(copied, within=True)] + ([] if original is None else [Memory(original)])
    try:
        yield
    finally:
        for memory in memories:
            memory.restore()


@dataclass(frozen=True)
class Kept:
    """A tensor as it was: the number of writes to it, and a copy unless it was too large."""

    tensor: Tensor
    version: int
    value: Tensor | None

    def equals(self, other: "Kept") -> bool:
        """True if both hold the same values, as far as is known."""
        if self.value is None or other.value is None or self.value.layout != torch.strided:
            return self.tensor is other.tensor and self.version == other.version
        return self.value.shape == other.value.shape and _is_same(self.value, other.value)

    def restore(self) -> None:
        """Writes the old values back where they are others now."""
        if self.value is None or self.equals(Kept(self.tensor, self.tensor._version, self.tensor.detach())):
            return
        with torch.no_grad():
            if self.tensor.shape == self.value.shape:
                self.tensor.copy_(self.value)
            else:
                self.tensor.data = self.value


def _is_same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as NaN: a buffer that holds one is not written again, which would spoil a backward pass."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


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


class Memory:
    """A snapshot of what modules (and no more if `within`), their classes, closures, and the globals these name, hold.

    What belongs to layers of torch and PyG (running statistics, caches) is given back as well, but not listed.
    """

    def __init__(self, model: nn.Module, *, within: bool = False) -> None:
        self.numbers: dict[str, Any] = {}  # path -> number, string, or state of a generator of random numbers
        self.tensors: dict[str, Kept] = {}  # path -> tensor, other than parameters
        self.attributes: dict[str, tuple[dict[str, Any], str]] = {}  # path of a module's number -> its place
        self._within = within
        self._undo: list[Callable[[], Any]] = []
        self._seen: dict[int, object] = {}
        self._homes = {type(module).__module__.partition(".")[0] for module in model.modules()} - _LIBRARIES
        for name, module in model.named_modules():
            self._module(name or type(module).__name__, module)

    def restore(self) -> None:
        """Gives everything back as it was."""
        for undo in reversed(self._undo):
            undo()

    def changed_since(self, before: "Memory") -> tuple[list[str], list[Tensor]]:
        """Paths of numbers that are others now, and tensors that are new or hold other values."""
        numbers = [
            path
            for path, value in self.numbers.items()
            if path in before.numbers and not _same(before.numbers[path], value)
        ]
        tensors = [
            kept.tensor
            for path, kept in self.tensors.items()
            if path not in before.tensors or not kept.equals(before.tensors[path])
        ]
        return numbers, tensors

    def _module(self, path: str, module: nn.Module) -> None:
        if id(module) in self._seen or isinstance(module, torch.jit.ScriptModule):
            return
        self._seen[id(module)] = module
        mine = self._is_at_home(type(module).__module__)
        self._keep(vars(module))
        self._keep(module._buffers)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                self._tensor(f"{path}.{name}" if mine else None, buffer)
        if mine:
            for name, value in vars(module).items():
                if isinstance(value, _NUMBERS):
                    self.attributes[f"{path}.{name}"] = vars(module), name
                if name not in _INTERNAL:
                    self._visit(f"{path}.{name}", value)
            self._class(type(module))

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, _NUMBERS):
            self.numbers[self._own(path)] = value
        elif isinstance(value, Tensor):
            if not isinstance(value, nn.Parameter):
                self._tensor(path, value)
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif id(value) not in self._seen and len(self._seen) < _MOST:
            self._seen[id(value)] = value
            self._held(path, value)

    def _held(self, path: str, value: Any) -> None:
        """Visit what an object leads to."""
        if isinstance(value, list | tuple | deque | set | dict):
            self._container(path, value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._visit(path, value.__self__)
        elif isinstance(value, partial):
            self._container(path, (value.func, value.args, value.keywords))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, count):
            self.numbers[self._own(path)] = repr(value)
        elif not self._generator(path, value):
            self._object(path, value)

    def _object(self, path: str, value: Any) -> None:
        known = isinstance(value, Namespace | SimpleNamespace) or self._is_at_home(type(value).__module__)
        if known and hasattr(value, "__dict__"):
            self._container(path, vars(value), "{}.{}")
            self._class(type(value))

    def _container(self, path: str, value: Any, form: str = "{}[{!r}]") -> None:
        if len(value) > _LONGEST:
            return
        if not isinstance(value, tuple):
            self._keep(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items if not isinstance(value, set) else ():
            self._visit(form.format(path, key) if isinstance(key, str | int) else path, part)

    def _keep(self, live: Any) -> None:
        self._undo.append(partial(_refill, live, live.copy()))

    def _tensor(self, path: str | None, tensor: Tensor) -> None:
        if tensor.is_inference() or id(tensor) in self._seen:
            return
        self._seen[id(tensor)] = tensor
        small = tensor.numel() <= _LARGEST or path is None
        kept = Kept(tensor, tensor._version, tensor.detach().clone() if small else None)
        self._undo.append(kept.restore)
        if path is not None:
            self.tensors[self._own(path)] = kept

    def _own(self, path: str) -> str:
        """The path, distinct from those of the same name elsewhere: of closures made by one function."""
        while path in self.numbers or path in self.tensors:
            path += "'"
        return path

    def _is_at_home(self, module: str | None) -> bool:
        """True if a module belongs to the packages that the model's own classes come from."""
        return (module or "").partition(".")[0] in self._homes

    def _generator(self, path: str, value: Any) -> bool:
        """Note the state of a generator of random numbers; False if it is none."""
        state: object
        if isinstance(value, random.Random):
            state, undo = value.getstate(), partial(value.setstate, value.getstate())
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(value.set_state, value.get_state()))
            return True  # what it draws are tensors, which can be followed
        elif isinstance(value, np.random.Generator | np.random.RandomState):
            bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
            state, undo = repr(bits.state), partial(setattr, bits, "state", bits.state)
        else:
            return False
        self._undo.append(undo)
        self.numbers[self._own(path)] = state
        return True

    def _class(self, kind: type) -> None:
        for base in () if self._within else kind.__mro__:
            if id(base) in self._seen or not self._is_at_home(base.__module__):
                continue
            self._seen[id(base)] = base
            for name, value in list(vars(base).items()):
                plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                plain = plain.fget if isinstance(plain, property) else plain
                if isinstance(plain, FunctionType):
                    self._visit(name, plain)
                elif not name.startswith("__") and isinstance(value, (*_NUMBERS, Tensor, list, dict, deque)):
                    self._undo.append(partial(_put_back, base, name, value))
                    self._visit(f"{base.__name__}.{name}", value)

    def _function(self, function: FunctionType) -> None:
        function = getattr(function, "__wrapped__", function)
        if self._within or not self._is_at_home(function.__module__):
            return
        if vars(function):
            self._container(function.__qualname__, vars(function), "{}.{}")
        self._visit(function.__qualname__, function.__defaults__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._undo.append(partial(setattr, cell, "cell_contents", value))
            self._visit(name, value)
        names = function.__globals__
        for name in {name for code in _nested(function.__code__) for name in code.co_names}:
            if name in names and not name.startswith("__"):
                if isinstance(names[name], (*_NUMBERS, Tensor)):
                    self._undo.append(partial(names.__setitem__, name, names[name]))
                self._visit(name, names[name])


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(type(one) is type(other) and one == other)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _refill(live: Any, before: Any) -> None:
    if isinstance(live, dict):
        if list(live) != list(before) or any(live[key] is not before[key] for key in before):
            live.clear()
            live.update(before)
    elif isinstance(live, set):
        live.clear()
        live.update(before)
    elif len(live) != len(before) or any(one is not other for one, other in zip(live, before, strict=True)):
        live.clear()
        live.extend(before)


def _put_back(kind: type, name: str, value: Any) -> None:
    if vars(kind).get(name) is not value:
        setattr(kind, name, value)
