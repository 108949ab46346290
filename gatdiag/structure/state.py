"""The state that a forward pass can leave behind for the next one, in modules, classes, closures and globals."""

import random
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial, singledispatchmethod
from types import CodeType, FunctionType, MethodType, NoneType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_NUMBERS = (NoneType, bool, int, float, complex, str, bytes, Enum, np.generic)
_LIBRARIES = frozenset({"torch", "torch_geometric", "numpy", "scipy", "gatdiag", *sys.stdlib_module_names})
_INTERNAL = frozenset(vars(nn.Module()))
# Larger containers and tensors hold data, not state.
_MAX_ITEMS, _MAX_ENTRIES, _MAX_OBJECTS = 1000, 2**22, 20_000


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore a model's running statistics, caches, hidden states and counters at the end.

    So are classes, closures and globals, which a copy of a model shares with the original.
    """
    state = ModelState(model)
    try:
        yield
    finally:
        state.restore()


class ModelState:
    """A snapshot of what a model's modules, their classes and closures, and the globals that these use, hold.

    Attributes:
        numbers: Path -> value, of counters, flags and states of random generators, except those of library layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.numbers: dict[str, Any] = {}
        self._undo: list[Callable[[], Any]] = []
        self._seen: dict[int, object] = {}
        self._packages = {type(module).__module__.partition(".")[0] for module in model.modules()} - _LIBRARIES
        for name, module in model.named_modules():
            self._visit(name or type(module).__name__, module)

    def restore(self) -> None:
        """Restore everything."""
        for undo in reversed(self._undo):
            undo()

    def changed_since(self, before: "ModelState") -> list[str]:
        """Paths of the numbers that differ from those in an earlier snapshot."""
        known = before.numbers
        return [path for path, value in self.numbers.items() if path in known and not _is_same(known[path], value)]

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, _NUMBERS):
            self.numbers[path] = value
        elif id(value) not in self._seen and len(self._seen) < _MAX_OBJECTS:
            self._seen[id(value)] = value
            self._visit_object(value, path)

    @singledispatchmethod
    def _visit_object(self, value: Any, path: str) -> None:
        """Visit what an object refers to; of other objects than those below, only if their class is the user's."""
        is_namespace = isinstance(value, Namespace | SimpleNamespace)
        if (is_namespace or self._is_of_user(type(value))) and hasattr(value, "__dict__"):
            self._visit_items(vars(value), path, "{}.{}")
            self._visit(type(value).__name__, type(value))

    @_visit_object.register
    def _visit_module(self, module: nn.Module, path: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        self._save_container(vars(module))
        self._save_container(module._buffers)
        for buffer in module._buffers.values():
            if buffer is not None:
                self._save_tensor(buffer)
        if not self._is_of_user(type(module)):
            return
        for name, value in vars(module).items():
            if name not in _INTERNAL:
                self._visit(f"{path}.{name}", value)
        self._visit(type(module).__name__, type(module))

    @_visit_object.register
    def _visit_tensor(self, tensor: Tensor, path: str) -> None:
        if tensor.numel() <= _MAX_ENTRIES and not isinstance(tensor, nn.Parameter):
            self._save_tensor(tensor)

    @_visit_object.register(list | tuple | deque | set | dict)
    def _visit_container(self, value: Any, path: str) -> None:
        self._visit_items(value, path, "{}[{!r}]")

    @_visit_object.register(MethodType | partial)
    def _visit_callable(self, call: Any, path: str) -> None:
        is_method = isinstance(call, MethodType)
        self._visit(path, (call.__self__, call.__func__) if is_method else (call.func, call.args, call.keywords))

    @_visit_object.register
    def _visit_python_generator(self, generator: random.Random, path: str) -> None:
        self.numbers[path] = state = generator.getstate()
        self._undo.append(partial(generator.setstate, state))

    @_visit_object.register(np.random.Generator | np.random.RandomState)
    def _visit_numpy_generator(self, generator: Any, path: str) -> None:
        bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator
        self.numbers[path] = repr(bits.state)
        self._undo.append(partial(setattr, bits, "state", bits.state))

    @_visit_object.register
    def _visit_torch_generator(self, generator: torch.Generator, path: str) -> None:
        self._undo.append(partial(generator.set_state, generator.get_state()))

    @_visit_object.register
    def _visit_class(self, kind: type, path: str) -> None:
        for base in kind.__mro__:
            for name, value in list(vars(base).items()) if self._is_of_user(base) else ():
                plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                plain = plain.fget if isinstance(plain, property) else plain
                if isinstance(plain, FunctionType):
                    self._visit(f"{base.__qualname__}.{name}", plain)
                elif not name.startswith("__") and isinstance(value, (*_NUMBERS, Tensor, list, dict, deque)):
                    self._undo.append(partial(_restore_attribute, base, name, value))
                    self._visit(f"{base.__qualname__}.{name}", value)

    @_visit_object.register
    def _visit_function(self, function: FunctionType, path: str) -> None:
        function = getattr(function, "__wrapped__", function)
        if not self._is_of_user(function):
            return
        self._visit_items(vars(function), path, "{}.{}")
        self._visit(path, function.__defaults__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                self._undo.append(partial(setattr, cell, "cell_contents", cell.cell_contents))
                self._visit(f"{path}.{name}", cell.cell_contents)
        names = function.__globals__
        named = {name for code in _nested_code(function.__code__) for name in code.co_names}
        for name in [name for name in named & names.keys() if not name.startswith("__")]:
            if isinstance(names[name], (*_NUMBERS, Tensor)):
                self._undo.append(partial(names.__setitem__, name, names[name]))
            self._visit(f"{function.__module__}.{name}", names[name])

    def _visit_items(self, value: Any, path: str, form: str) -> None:
        if len(value) > _MAX_ITEMS:
            return
        if not isinstance(value, tuple):
            self._save_container(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items if not isinstance(value, set) else ():
            self._visit(form.format(path, key) if isinstance(key, str | int) else path, part)

    def _save_container(self, live: Any) -> None:
        self._undo.append(partial(_restore_container, live, live.copy()))

    def _save_tensor(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided and not tensor.is_inference():
            self._undo.append(partial(_restore_tensor, tensor, tensor.detach().clone()))

    def _is_of_user(self, thing: Any) -> bool:
        """Whether a class or function is from a package, other than libraries, that classes of the modules are from."""
        return (thing.__module__ or "").partition(".")[0] in self._packages


def _is_same(one: Any, other: Any) -> bool:
    return one is other or bool(type(one) is type(other) and one == other)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code(constant)


def _restore_container(live: Any, before: Any) -> None:
    """Restore the contents of a container if they have changed."""
    now = [*live.items()] if isinstance(live, dict) else [*live]
    then = [*before.items()] if isinstance(before, dict) else [*before]
    if len(now) != len(then) or any(one is not other for one, other in zip(now, then, strict=True)):
        live.clear()
        (live.update if isinstance(live, dict | set) else live.extend)(before)


def _restore_attribute(kind: type, name: str, value: object) -> None:
    if vars(kind).get(name) is not value:  # members of an Enum cannot be set
        setattr(kind, name, value)


def _restore_tensor(tensor: Tensor, value: Tensor) -> None:
    """Restore a tensor's values without a new version, so that a backward pass that has saved it can still run."""
    if tensor.shape != value.shape:
        tensor.data = value
    elif not torch.equal(tensor, value):
        tensor.data.copy_(value)
