"""A label: the scaling exponent of every entry of a tensor, as a linear combination of unknowns.

Multiply a model's weights by powers of s > 0; if an entry of a tensor is then multiplied by s^e, its label says e.
The exponent is a sum of terms coefficient * value[ids]: `ids` is an integer array of unknowns that broadcasts against
the tensor. An axis along which the exponent does not change has length one, so the label of a layer's output (nodes x
channels) is one row of channels however large the graph, and the label of a weight matrix is a column (its rows) minus
a row (its columns). A label without terms is the exponent zero: inputs, constants, and whatever a softmax returns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Rearrange = Callable[[Tensor], Tensor]
ZERO_EXPONENT = 0  # the id whose value is always zero


@dataclass(frozen=True, eq=False)
class Label:
    """Exponents of a tensor's entries.

    Attributes:
        terms: Pairs (coefficient, ids); the exponent is the sum of coefficient * value[ids].
        zeros: Mask of the entries that are exactly zero for all weights (an empty scatter target). Zero times any power
            of s is zero, so they fit every exponent. None if there are none.
    """

    terms: tuple[tuple[Fraction, Tensor], ...] = ()
    zeros: Tensor | None = None

    @property
    def is_all_zeros(self) -> bool:
        """True if every entry of the tensor is zero for all weights (not: if the exponent is zero)."""
        return self.zeros is not None and bool(self.zeros.all())

    @property
    def coefficients(self) -> tuple[Fraction, ...]:
        """The coefficients of the terms."""
        return tuple(coefficient for coefficient, _ in self.terms)

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """The `ids` of all terms, and the mask of zeros."""
        ids = tuple(array for _, array in self.terms)
        return ids if self.zeros is None else (*ids, self.zeros)

    @property
    def ndim(self) -> int:
        """Number of axes of the labeled tensor, as far as the label knows."""
        return max((array.ndim for array in self.arrays), default=0)

    @property
    def shape(self) -> torch.Size:
        """Shape that the arrays broadcast to: length one along every axis where the exponent does not change."""
        return torch.Size(torch.broadcast_shapes(*(array.shape for array in self.arrays)))

    def __add__(self, other: "Label") -> "Label":
        """Label of a product of two tensors; labels broadcast as tensors do."""
        ndim = max(self.ndim, other.ndim)
        left, right = self.with_ndim(ndim), other.with_ndim(ndim)
        zeros = right.zeros if left.zeros is None else left.zeros
        if left.zeros is not None and right.zeros is not None:
            zeros = left.zeros | right.zeros
        return Label(left.terms + right.terms, zeros)

    def __sub__(self, other: "Label") -> "Label":
        """Label of a quotient."""
        return self + other * -1

    def __mul__(self, factor: Fraction | int) -> "Label":
        """Label of the tensor raised to the power `factor`."""
        if factor == 0:
            return Label()
        return Label(tuple((coefficient * factor, ids) for coefficient, ids in self.terms), self.zeros)

    def with_ndim(self, ndim: int) -> "Label":
        """The label with leading axes of length one added, as in broadcasting."""
        return self.map(lambda array: array.reshape((1,) * (ndim - array.ndim) + array.shape))

    def map(self, function: Rearrange) -> "Label":
        """Apply a function to every array of the label."""
        terms = tuple((coefficient, function(ids)) for coefficient, ids in self.terms)
        return Label(terms, None if self.zeros is None else function(self.zeros))

    def rearrange(self, shape: torch.Size, function: Rearrange) -> "Label":
        """The label after a function that only moves, repeats or selects entries of a tensor of `shape`."""
        return self.map(lambda array: shrink(function(array.expand(shape))))

    def changes_along(self, axes: Iterable[int]) -> bool:
        """True if the exponent changes along any of the axes."""
        return any(array.shape[axis] > 1 for axis in axes for array in self.arrays)

    def drop_zero_mask(self) -> "Label":
        """The label of the same exponents with no entry marked as zero."""
        return Label(self.terms)

    @property
    def zero_mask(self) -> Tensor:
        """The mask `zeros`, all false if it is None."""
        return torch.zeros((), dtype=torch.bool) if self.zeros is None else self.zeros

    @classmethod
    def from_entries(cls, ids: Tensor, zeros: Tensor) -> "Label":
        """The label with one unknown per entry and a mask of zeros; `Exponents.to_entries` is the inverse."""
        return cls(((Fraction(1), ids),), zeros if bool(zeros.any()) else None).map(shrink)


ZEROS = Label((), torch.ones((), dtype=torch.bool))  # of a tensor of zeros


def shrink(array: Tensor) -> Tensor:
    """Cut every axis along which an array does not change to length one."""
    for axis in range(array.ndim):
        if array.shape[axis] > 1 and not _changes_along(array, axis):
            array = array.narrow(axis, 0, 1)
    return array if array.is_meta else array.contiguous()


def _changes_along(array: Tensor, axis: int) -> bool:
    if array.stride(axis) == 0:
        return False
    if array.is_meta:  # reserved unknowns: all differ
        return True
    first, last = array.narrow(axis, 0, 1), array.narrow(axis, -1, 1)  # most that change differ at their ends
    return not torch.equal(first, last) or not bool((array == first).all())


def distinct_slices(arrays: Sequence[Tensor], axis: int) -> tuple[Tensor, Tensor] | None:
    """Group equal slices along an axis, over all arrays together; None if no two are equal.

    In a batch of graphs many nodes have the same label, and one of each kind is enough to derive equations from.

    Returns:
        Position of the first slice of each kind, and the kind of every slice.

    Example:
        >>> first, kind = distinct_slices([torch.tensor([[4], [5], [4]]), torch.tensor([[1, 2]])], 0)
        >>> first.tolist(), kind.tolist()
        ([0, 1], [0, 1, 0])
    """
    moved = [array.movedim(axis, 0) for array in arrays if array.shape[axis] > 1]
    rows = [array.reshape(len(array), array.numel() // len(array)) for array in moved]
    width = sum(row.shape[1] for row in rows)
    factors = torch.randint(2**62, (width,), generator=torch.Generator().manual_seed(0))
    keys = torch.zeros(rows[0].shape[0], dtype=torch.int64)
    for row, factor in zip(rows, factors.split([row.shape[1] for row in rows]), strict=True):
        keys += row.to(torch.int64) @ factor  # a hash: overflow does not matter
    _, kinds = keys.unique(return_inverse=True)
    positions = torch.arange(len(keys))
    first = torch.full((int(kinds.max()) + 1,), len(keys)).scatter_reduce_(0, kinds, positions, "amin")
    first, order = first.sort()
    kinds = order.argsort()[kinds]
    if len(first) == len(keys) or any(not torch.equal(row, row[first[kinds]]) for row in rows):
        return None
    return first, kinds


def merge_terms(terms: Iterable[tuple[Fraction, Tensor]]) -> tuple[tuple[Fraction, Tensor], ...]:
    """Add up terms with equal `ids`; drop terms whose ids are all `ZERO_EXPONENT`."""
    kept: list[tuple[Fraction, Tensor]] = []
    for coefficient, raw in terms:
        ids = shrink(raw)
        if ids.is_meta:
            kept.append((coefficient, ids))
            continue
        if ids.numel() and not bool((ids != ZERO_EXPONENT).any()):
            continue
        for position, (other, array) in enumerate(kept):
            if array.shape == ids.shape and not array.is_meta and torch.equal(array, ids):
                kept[position] = (other + coefficient, ids)
                break
        else:
            kept.append((coefficient, ids))
    return tuple((coefficient, ids) for coefficient, ids in kept if coefficient)
