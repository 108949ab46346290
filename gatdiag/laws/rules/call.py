"""One operation as a rule sees it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import ZEROS, Label
from gatdiag.structure.copying import tensor_arguments

# A constant up to this size that is added to a scaled quantity is taken for a guard against division by zero.
EPSILON = 1e-3
# Masks are written with numbers beyond this as often as with infinity.
HUGE = 1e4


@dataclass(frozen=True, eq=False)
class Call:
    """An aten operation that has just run on labeled tensors."""

    function: torch._ops.OpOverload
    arguments: dict[str, Any]  # by the names of its schema, defaults filled in
    out: Any
    shape: torch.Size  # of the first argument before it ran (an in-place view changes it)
    exponents: Exponents  # the equations to add to
    label_of: Callable[[Tensor], Label]  # with the tensor's number of axes; no terms for an unlabeled tensor
    zero_tests: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    """Results of x == 0 and x != 0, for x that is zero nowhere -> the value that they have everywhere."""

    def __getitem__(self, name: str) -> Any:
        """The argument of that name."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, or the default where the operation has none."""
        return self.arguments.get(name, default)

    def label(self, name: str) -> Label:
        """The label of a tensor or number argument. The numbers 0 and +-inf fit every exponent."""
        value = self.arguments[name]
        if isinstance(value, Tensor):
            return self.label_of(value)
        return ZEROS if value in (0, float("inf"), -float("inf")) else Label()

    def tensors(self) -> list[Tensor]:
        """All tensor arguments, those inside lists included."""
        return tensor_arguments(list(self.arguments.values()), None)

    @property
    def name(self) -> str:
        """Name of the operation, without its namespace."""
        name: str = self.function._schema.name
        return name.removeprefix("aten::")

    @property
    def results(self) -> list[Any]:
        """All that it returned, one after the other."""
        return list(self.out) if isinstance(self.out, list | tuple) else [self.out]

    @property
    def first(self) -> Tensor:
        """The first tensor argument."""
        return self.tensors()[0]

    def number(self, name: str) -> float | None:
        """The argument as a plain number, if it is one or an unlabeled tensor with one entry.

        A zero that is not written in the forward pass may be another number at the next call (a running mean).
        """
        value = self.arguments.get(name)
        if isinstance(value, Tensor) and value.numel() == 1 and not self.label_of(value).arrays:
            number = None if value.is_complex() else float(value)
            return number if number or value.dtype == torch.bool else None
        return float(value) if isinstance(value, int | float) else None

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """The axes argument, counted from the front; every axis where it is empty or missing."""
        ndim = self.first.ndim
        value = self.arguments.get(name)
        axes: Sequence[int] = [value] if isinstance(value, int) else list(value or range(ndim))
        return tuple(axis % ndim for axis in axes) if ndim else ()

    def lumped(self, label: Label, axes: Iterable[int]) -> Label:
        """One exponent along the axes, which are left with length one, although the operation does not demand it."""
        axes = list(axes)
        if self.exponents.resolve(label).changes_along(axes):
            self.exponents.coarse[self.exponents.cause] += 1
        return self.exponents.uniform(label, axes)

    def vanish(self, *names: str) -> Label:
        """Hold the exponents of the named arguments (of all, without names) at zero; the result's is zero too."""
        chosen = [self.arguments[name] for name in names] if names else self.tensors()
        for tensor in chosen:
            if isinstance(tensor, Tensor):
                self.exponents.vanish(self.label_of(tensor))
        return Label()


# One label is that of the first result: what else is returned (positions, masks, statistics) has no scale.
Labels = Label | Sequence[Label]
Rule = Callable[[Call], Labels]


def guard(call: Call, label: Label, constant: float) -> bool:
    """True if a constant added to what has this label may be left out; only a tiny one may, with laws approximate."""
    if not abs(constant) <= EPSILON:
        call.exponents.vanish(label)
        return False
    if constant:
        call.exponents.approximate(label)
    return True


def each(rule: Rule, names: str) -> dict[str, Rule]:
    """Rows of a table: the rule for each of the operations named."""
    return dict.fromkeys(names.split(), rule)
