"""What a remedy did to a model, and the way back.

A remedy that changes what a layer computes puts a class of its own in front of the layer's: the module stays the same
object, with the same parameters under the same names, and is still an instance of its own class. Unlike a hook, this is
kept by whatever copies, saves or analyzes the model, and remedies can be taken off in any order.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.errors import InputError, ModelError
from gatdiag.structure import unwrap

_REMEDIES, _OWN = "_gatdiag_remedies", "_gatdiag_own"  # of a class: what was put in front, and of which class


@dataclass(frozen=True)
class Change:
    """One thing that a remedy changed.

    Attributes:
        where: Name of the layer or parameter.
        what: What was done to it.
    """

    where: str
    what: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.what}"


class Applied:
    """What a remedy did; `undo` takes it back, and so does leaving it as a context manager.

    What changes the forward pass is taken off, and weights that were trained in the meantime stay. Where weights were
    set, those that were there before are put back, bit for bit. Remedies that set the same weights may be undone in any
    order: undoing one undoes what later ones did to these weights as well.

    Attributes:
        remedy: Its name.
        changes: What was changed, and where.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> before = model[0].weight.clone()
        >>> applied = Applied("zero")
        >>> with applied.changing():
        ...     applied.remember("0.weight", "set to zero", model[0].weight)
        ...     _ = nn.init.zeros_(model[0].weight)
        >>> applied.undo()
        >>> torch.equal(model[0].weight, before), [str(change) for change in applied.changes]
        (True, ['0.weight: set to zero'])
    """

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy
        self.changes: tuple[Change, ...] = ()
        self._ways_back: list[Callable[[], object]] = []

    def record(self, where: str, what: str, *undo: Callable[[], object]) -> None:
        """Note a change that was made, and how it is taken back."""
        self._ways_back += undo
        self.changes = (*self.changes, Change(where, what))

    def remember(self, where: str, what: str, *tensors: Tensor) -> None:
        """Note that tensors are about to be written to, and keep what they hold."""
        self.record(where, what, *(_Kept(tensor).put_back for tensor in tensors))

    @contextmanager
    def changing(self) -> Iterator[Self]:
        """Take back all that was changed so far if the body raises or is interrupted."""
        try:
            yield self
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Take the changes back, the last one first; harmless if that was done."""
        while self._ways_back:
            self._ways_back[-1]()
            self._ways_back.pop()

    def __enter__(self) -> Self:
        """Leaving the context undoes the remedy."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Undo the remedy."""
        self.undo()

    def __str__(self) -> str:
        """One line per change."""
        return "\n".join([f"{self.remedy}:", *(f"  {change}" for change in self.changes)])


class _Kept:
    """What a tensor holds, to be put back unless something older was put back there in the meantime."""

    _numbers: Final = count()
    _of: Final[Any] = WeakTensorKeyDictionary()  # tensor -> all that was kept of it

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._value, self._is_stale = tensor, tensor.detach().clone(), False
        self._number = next(self._numbers)
        self._of.setdefault(tensor, WeakSet()).add(self)

    @torch.no_grad()
    def put_back(self) -> None:
        """Write it to the tensor."""
        if self._is_stale:
            return
        self._tensor.copy_(self._value)
        for other in self._of[self._tensor]:
            other._is_stale |= other._number > self._number


def module_of(model: Any) -> nn.Module:
    """The model inside the wrappers of compilation and data parallelism, if it is one.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a torch.nn.Module as the first argument, got {type(model).__name__}")
    return unwrap(model)


def refuse_scripted(name: str, module: nn.Module) -> None:
    """Raises `ModelError` if what a layer computes cannot be changed any more."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(f"{name or 'The model'} was compiled by torch.jit.script: apply the remedy before that")


def positive(number: Any, what: str) -> float:
    """The number, if it is one, positive and finite; `what` says what it is.

    Raises:
        InputError: It is something else.
    """
    try:
        known = math.nan if isinstance(number, str | bool) else float(number)
    except (TypeError, ValueError, RuntimeError):
        known = math.nan
    if not 0.0 < known < math.inf:
        raise InputError(f"{what}: a positive number was expected, got {number!r}")
    return known


def refuse_without_values(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raises `ModelError` if a parameter is on the meta device."""
    missing = next((name for name, tensor in named if tensor.is_meta), None)
    if missing is not None:
        raise ModelError(
            f"Expected parameters that hold numbers, but {missing} is on the meta device. Give the model memory first: "
            'model.to_empty(device="cpu")'
        )


def put_on(module: nn.Module, remedy: type) -> None:
    """Put a class in front of that of a module, unless it is there."""
    if remedy not in _remedies(module):
        _dress(module, (*_remedies(module), remedy))


def take_off(module: nn.Module, remedy: type) -> None:
    """Take a class away from the front of a module's own.

    Raises:
        ModelError: The class of the module was changed again, by something else that is still there.
    """
    remedies = tuple(other for other in _remedies(module) if other is not remedy)
    if remedies != _remedies(module):
        _dress(module, remedies)


def _remedies(module: nn.Module) -> tuple[type, ...]:
    return getattr(type(module), _REMEDIES, ())


def _dress(module: nn.Module, remedies: tuple[type, ...]) -> None:
    kind: type = type_before_parametrizations(module)
    if hasattr(kind, _REMEDIES) and _REMEDIES not in vars(kind):
        raise ModelError(
            f"The class of this {kind.__name__} was changed after a remedy was applied to it: remove that first"
        )
    own: type = getattr(kind, _OWN, kind)
    dressed = _class_of(own, remedies) if remedies else own
    if is_parametrized(module):  # the class that torch puts in front of all others stays there, where torch looks
        front = {name: value for name, value in vars(type(module)).items() if name not in ("__dict__", "__weakref__")}
        dressed = type(type(module).__name__, (dressed,), front)
    module.__class__ = dressed


@cache
def _class_of(own: type, remedies: tuple[type, ...]) -> type:
    """The class of a layer with remedies, called as the layer's own: that is what people and PyG go by."""
    known = {_REMEDIES: remedies, _OWN: own, "__reduce_ex__": _reduced, "__module__": own.__module__}
    kind: type = type(own.__name__, (*reversed(remedies), own), known)
    return kind


def _reduced(module: Any, _: object) -> Any:
    return _empty, (getattr(type(module), _OWN), _remedies(module)), module.__getstate__()


def _empty(own: type, remedies: tuple[type, ...]) -> Any:
    """A layer without contents, which unpickling fills."""
    kind: Any = _class_of(own, remedies)
    return kind.__new__(kind)
