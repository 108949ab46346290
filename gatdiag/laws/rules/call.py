"""The arguments, labels and equations that a rule works with."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import ZEROS, Label
from gatdiag.structure.tensors import tensor_arguments

# A constant up to this size that is added to a scaled quantity is taken for an epsilon against division by zero.
EPSILON = 1e-3
# Numbers beyond this stand for infinity, as in masks of attention scores.
HUGE = 1e4


@dataclass(frozen=True, eq=False)
class Call:
    """An aten operation that has just run on labeled tensors."""

    function: torch._ops.OpOverload
    arguments: dict[str, Any]  # by the names of its schema, defaults filled in
    out: Any
    shape: torch.Size  # of the first argument before the operation, which may change it (an in-place view)
    exponents: Exponents  # where rules add their equations
    label_of: Callable[[Tensor], Label]  # it has the tensor's number of axes; no terms for an unlabeled tensor
    zero_tests: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    """Result of x == 0 or x != 0 -> its value at every entry, if x has no zeros."""
    is_constant: Callable[[Tensor], bool] = lambda tensor: False
    """Whether an index is the same for every batch."""
    is_shifted: Callable[[Tensor], bool] = lambda tensor: False
    """Whether an index has an offset that the model added, as those of nodes of one kind among several have."""

    def __getitem__(self, name: str) -> Any:
        """The argument of that name."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, or the default if the operation has none."""
        return self.arguments.get(name, default)

    def label(self, name: str) -> Label:
        """The label of a tensor or number argument. The numbers 0 and +-inf fit every exponent."""
        value = self.arguments[name]
        if isinstance(value, Tensor):
            return self.label_of(value)
        return ZEROS if value in (0, float("inf"), -float("inf")) else Label()

    def factor(self, tensor: Tensor, axis: int, other: Label) -> Label:
        """The label of a factor that is summed over an axis; zeros that multiply a labeled factor get unknowns."""
        label = self.label_of(tensor)
        if not other.terms or not tensor.numel():
            return label
        if label.zeros is None:
            if not label.terms and tensor.layout == torch.strided and not bool(tensor.any()):  # a buffer with a state
                self.exponents.note_zeros(torch.ones(tensor.shape[axis], dtype=torch.bool), other)
            return label
        known = label.zeros.expand(*label.zeros.shape[:axis], tensor.shape[axis], *label.zeros.shape[axis:][1:])
        others = [position for position in range(tensor.ndim) if position != axis % tensor.ndim]
        are_zeros = known.all(dim=others, keepdim=True) if others else known
        return self.exponents.stand_in(label, are_zeros, other) if bool(are_zeros.any()) else label

    def tensors(self) -> list[Tensor]:
        """All tensor arguments, including those inside lists."""
        return tensor_arguments(list(self.arguments.values()), None)

    @property
    def name(self) -> str:
        """Name of the operation, without its namespace."""
        name: str = self.function._schema.name
        return name.removeprefix("aten::")

    @property
    def results(self) -> list[Any]:
        """The results, as a list."""
        return list(self.out) if isinstance(self.out, list | tuple) else [self.out]

    @property
    def first(self) -> Tensor:
        """The first tensor argument."""
        return self.tensors()[0]

    def number(self, name: str) -> float | None:
        """The argument as a number, if it is one or an unlabeled tensor with one entry; else None.

        None, too, for a tensor that holds zero: it may hold another number in the next call (a running mean).
        """
        value = self.arguments.get(name)
        if isinstance(value, Tensor) and value.numel() == 1 and not self.label_of(value).arrays:
            number = None if value.is_complex() else float(value)
            return number if number or value.dtype == torch.bool else None
        return float(value) if isinstance(value, int | float) else None

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """The axes argument as non-negative numbers; all axes if it is empty or missing."""
        ndim = self.first.ndim
        value = self.arguments.get(name)
        axes: Sequence[int] = [value] if isinstance(value, int) else list(value or range(ndim))
        return tuple(axis % ndim for axis in axes) if ndim else ()

    def spatial_axes(self) -> range:
        """The last axes, as many as the operation's name says: two for `avg_pool2d`; all if it does not say."""
        dimensions = re.search(r"(\d)d", self.name)
        return range(self.first.ndim)[-int(dimensions[1]) if dimensions else 0 :]

    def coarsen(self, label: Label, axes: Iterable[int]) -> Label:
        """As `Exponents.require_uniform`, where the operation itself requires less; reported in `Laws.excluded`."""
        axes = list(axes)
        if self.exponents.resolve(label).changes_along(axes):
            self.exponents.coarse[self.exponents.cause] += 1
        return self.exponents.require_uniform(label, axes)

    def fix_scale(self, *names: str) -> Label:
        """Require the named arguments (all of them without names) to keep their scale; return the exponent zero."""
        chosen = [self.arguments[name] for name in names] if names else self.tensors()
        for tensor in chosen:
            if isinstance(tensor, Tensor):
                self.exponents.require_zero(self.label_of(tensor))
        return Label()


# A single label is that of the first result; further ones (positions, masks, statistics) then have no scale.
Labels = Label | Sequence[Label]
Rule = Callable[[Call], Labels]


def neglect_epsilon(call: Call, label: Label, constant: float) -> bool:
    """True if a constant added to a tensor of this label is tiny: laws are approximate; else the scale is fixed."""
    if not abs(constant) <= EPSILON:
        call.exponents.require_zero(label)
        return False
    if constant:
        call.exponents.require_zero_up_to_epsilon(label)
    return True


def each(rule: Rule, names: str) -> dict[str, Rule]:
    """Table entries of one rule for several operations, given as a string of names."""
    return dict.fromkeys(names.split(), rule)
