"""What a remedy changed in a model, and how to undo it.

A remedy that changes the forward pass of a layer adds a mixin to its class: the module stays the same object, with the
same parameters and names, and an instance of its original class. Unlike hooks, mixins survive copying, pickling and
tracing, and can be removed in any order.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Real
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.card import card
from gatdiag.errors import InputError, ModelError
from gatdiag.laws import Exclusion
from gatdiag.structure import unwrap

_MIXINS, _OWN = "_gatdiag_remedies", "_gatdiag_own"  # class attributes: the added mixins, and the original class
_SNAPSHOTS: Final[Any] = WeakTensorKeyDictionary()  # tensor -> its snapshots that are not restored, oldest first


@dataclass(frozen=True)
class Change:
    """One change by a remedy.

    Attributes:
        where: Name of the layer or parameter.
        what: Description of the change.
    """

    where: str
    what: str

    def __str__(self) -> str:
        """``where: what``."""
        return f"{self.where}: {self.what}"


class Applied:
    """The changes of a remedy. `undo` reverts them, as does leaving it as a context manager.

    Changes to the forward pass are removed, and weights keep the values that training gave them. Weights that the
    remedy set are restored bit for bit. Remedies that set the same weights can be undone in any order: undoing one also
    undoes what later ones did to these weights.

    Attributes:
        remedy: Name of the remedy.
        changes: What was changed, and where.
        skipped: What could not be changed (of `initialize_` and `rebalance_`: laws that could not be balanced, and
            operations and parameters without laws), with reasons.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> before = model[0].weight.clone()
        >>> applied = Applied("zero")
        >>> with applied.undo_on_error():
        ...     applied.save_tensors("0.weight", "set to zero", model[0].weight)
        ...     _ = nn.init.zeros_(model[0].weight)
        >>> applied.undo()
        >>> torch.equal(model[0].weight, before), [str(change) for change in applied.changes]
        (True, ['0.weight: set to zero'])
    """

    def __init__(self, remedy: str, skipped: tuple[Exclusion, ...] = ()) -> None:
        self.remedy, self.skipped = remedy, skipped
        self.changes: tuple[Change, ...] = ()
        self._undo_stack: list[Callable[[], object]] = []

    def add_change(self, where: str, what: str, *undo: Callable[[], object]) -> None:
        """Add a change, with functions that revert it."""
        self._undo_stack += undo
        self.changes = (*self.changes, Change(where, what))

    def save_tensors(self, where: str, what: str, *tensors: Tensor) -> None:
        """Add a change of tensors; call it before they are changed, as it saves their values."""
        self.add_change(where, what, *map(_snapshot, tensors))

    @contextmanager
    def undo_on_error(self) -> Iterator[Self]:
        """Undo all changes if the body raises an exception or is interrupted."""
        try:
            yield self
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Revert the changes, last one first. Calling it again has no effect."""
        while self._undo_stack:
            self._undo_stack[-1]()
            self._undo_stack.pop()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Undo the remedy."""
        self.undo()

    def __repr__(self) -> str:
        """For example ``Applied(initialize: 48 changes, 2 skipped)``."""
        count = len(self.changes)
        changes = f"{count} change{'s' * (count != 1)}"
        return f"{type(self).__name__}({self.remedy}: {changes}, {len(self.skipped)} skipped)"

    def _repr_html_(self) -> str:
        changes = [(change.where, change.what) for change in self.changes]
        return card(repr(self), tone="healthy", rows=[*changes, *((one.what, one.reason) for one in self.skipped)])

    def __str__(self) -> str:
        """One line per change."""
        return "\n".join([f"{self.remedy}:", *(f"  {change}" for change in self.changes)])


def _snapshot(tensor: Tensor) -> Callable[[], None]:
    """Save the values of a tensor; returns a function that restores them."""
    value, token, taken = tensor.detach().clone(), object(), _SNAPSHOTS.setdefault(tensor, [])
    taken.append(token)

    @torch.no_grad()
    def restore() -> None:
        if token in taken:  # else an earlier snapshot was restored
            tensor.copy_(value)
            del taken[taken.index(token) :]

    return restore


def unwrap_model(model: Any) -> nn.Module:
    """The model inside wrappers of `torch.compile` and data parallelism.

    Raises:
        InputError: It is not a module.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a torch.nn.Module as the first argument, got {type(model).__name__}")
    return unwrap(model)


def check_not_generated(name: str, module: nn.Module) -> None:
    """Raise `ModelError` if the forward pass of a layer is code that torch generated, so that it cannot be changed."""
    # each copy of a GraphModule gets a class of its own, in which a mixin would call itself
    if isinstance(module, torch.jit.ScriptModule | GraphModule):
        raise ModelError(
            f"The forward pass of {name or 'the model'} was generated by torch (torch.jit, torch.fx, to_hetero): apply "
            "the remedy before that"
        )


def check_positive(name: str, value: Any) -> float:
    """Convert the argument of this name to float.

    Raises:
        InputError: It is not a positive, finite number.
    """
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InputError(f"Expected {name} to be a positive number, got {value!r}")
    return float(value)


def add_mixin(module: nn.Module, mixin: type) -> None:
    """Add a mixin to the class of a module, unless it has it."""
    if mixin not in _get_mixins(module):
        _set_mixins(module, (*_get_mixins(module), mixin))


def remove_mixin(module: nn.Module, mixin: type) -> None:
    """Remove a mixin from the class of a module."""
    mixins = tuple(other for other in _get_mixins(module) if other is not mixin)
    if mixins != _get_mixins(module):
        _set_mixins(module, mixins)


def _get_mixins(module: nn.Module) -> tuple[type, ...]:
    return getattr(type(module), _MIXINS, ())


def _set_mixins(module: nn.Module, mixins: tuple[type, ...]) -> None:
    kind: type = type_before_parametrizations(module)
    own: type = getattr(kind, _OWN, kind)
    mixed = _class_with_mixins(own, mixins) if mixins else own
    if is_parametrized(module):  # torch expects its own class in front of all others
        front = {name: value for name, value in vars(type(module)).items() if name not in ("__dict__", "__weakref__")}
        mixed = type(type(module).__name__, (mixed,), front)
    module.__class__ = mixed


@cache
def _class_with_mixins(own: Any, mixins: tuple[type, ...]) -> type:
    """A subclass with the original's name, which PyG and users rely on."""

    @wraps(own.forward)  # with its signature, by which inputs are named
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return super(kind, self).forward(*args, **kwargs)  # type: ignore[arg-type]

    attributes = {_MIXINS: mixins, _OWN: own, "__reduce_ex__": _reduce, "__module__": own.__module__}
    kind: type = type(own.__name__, (*reversed(mixins), own), {**attributes, "forward": forward})
    return kind


def _reduce(module: Any, _: object) -> Any:
    return _new_instance, (getattr(type(module), _OWN), _get_mixins(module)), module.__getstate__()


def _new_instance(own: type, mixins: tuple[type, ...]) -> Any:
    kind: Any = _class_with_mixins(own, mixins)
    return kind.__new__(kind)
