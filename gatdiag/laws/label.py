"""A label: the scaling exponent of every entry of a tensor, written in unknowns.

Multiply a model's weights by powers of s > 0; if an entry of a tensor is then multiplied by s^e, its label says e.
The exponent is a sum of coefficient * value[ids], where each array of unknowns ``ids`` broadcasts against the tensor.
An axis along which the exponent does not change has length one, so the label of a layer's output (nodes x channels) is
one row of channels however large the graph, and the label of a weight matrix is a column (its rows) minus a row (its
columns). A label without terms is the exponent zero: inputs, constants, and whatever a softmax returns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Arrange = Callable[[Tensor], Tensor]
ZERO = 0  # the unknown that is the exponent zero


@dataclass(frozen=True, eq=False)
class Label:
    """Exponents of a tensor's entries.

    Attributes:
        terms: Pairs (coefficient, ids); the exponent is the sum of coefficient * value[ids].
        zeros: Mask of entries that hold an exact zero no parameter has touched (a scatter's empty target). Zero times
            any power of s is zero, so they fit every exponent. None where there are none.
    """

    terms: tuple[tuple[Fraction, Tensor], ...] = ()
    zeros: Tensor | None = None

    @property
    def is_zero(self) -> bool:
        """True if every entry is such a zero."""
        return self.zeros is not None and bool(self.zeros.all())

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Every array of the label, the mask of zeros included."""
        ids = tuple(array for _, array in self.terms)
        return ids if self.zeros is None else (*ids, self.zeros)

    @property
    def ndim(self) -> int:
        """Number of axes of the labeled tensor, as far as the label knows."""
        return max((array.ndim for array in self.arrays), default=0)

    @property
    def shape(self) -> torch.Size:
        """The shape its arrays broadcast to: length one along every axis where the exponent does not change."""
        return torch.Size(torch.broadcast_shapes(*(array.shape for array in self.arrays)))

    def __add__(self, other: "Label") -> "Label":
        """Exponent of a product: the labels broadcast like the tensors."""
        ndim = max(self.ndim, other.ndim)
        left, right = self.aligned(ndim), other.aligned(ndim)
        zeros = right.zeros if left.zeros is None else left.zeros
        if left.zeros is not None and right.zeros is not None:
            zeros = left.zeros | right.zeros
        return Label(left.terms + right.terms, zeros)

    def __sub__(self, other: "Label") -> "Label":
        """Exponent of a quotient."""
        return self + other.scaled(-1)

    def scaled(self, factor: Fraction | int) -> "Label":
        """Exponent of the tensor raised to a power."""
        if factor == 0:
            return Label()
        return Label(tuple((coefficient * factor, ids) for coefficient, ids in self.terms), self.zeros)

    def aligned(self, ndim: int) -> "Label":
        """The same label with leading axes of length one, as broadcasting adds them."""
        return self.map(lambda array: array.reshape((1,) * (ndim - array.ndim) + array.shape))

    def map(self, arrange: Arrange) -> "Label":
        """The label whose every array is rearranged by `arrange`."""
        terms = tuple((coefficient, arrange(ids)) for coefficient, ids in self.terms)
        return Label(terms, None if self.zeros is None else arrange(self.zeros))

    def arranged(self, shape: torch.Size, arrange: Arrange) -> "Label":
        """The label after an operation that only moves, repeats or selects the entries of a tensor of `shape`."""
        return self.map(lambda array: shrink(arrange(array.expand(shape))))

    def changes_along(self, axes: Iterable[int]) -> bool:
        """True if the exponent changes along any of the axes."""
        return any(array.shape[axis] > 1 for axis in axes for array in self.arrays)

    def present(self) -> "Label":
        """The label without its zeros being marked."""
        return Label(self.terms)

    @property
    def mask(self) -> Tensor:
        """Entries that are zeros, none where nothing says so."""
        return torch.zeros((), dtype=torch.bool) if self.zeros is None else self.zeros


def written(ids: Tensor, zeros: Tensor) -> Label:
    """The label made of the unknown of every entry and of whether it is an exact zero."""
    return Label(((Fraction(1), ids),), zeros if bool(zeros.any()) else None).map(shrink)


ZEROS = Label((), torch.ones((), dtype=torch.bool))


def shrink(array: Tensor) -> Tensor:
    """The array with every axis along which it does not change cut to length one."""
    for axis in range(array.ndim):
        if array.shape[axis] > 1 and not _changes(array, axis):
            array = array.narrow(axis, 0, 1)
    return array.contiguous()


def _changes(array: Tensor, axis: int) -> bool:
    """True if an array changes along an axis; most that do differ at its ends already."""
    if array.stride(axis) == 0:
        return False
    first, last = array.narrow(axis, 0, 1), array.narrow(axis, -1, 1)
    return not torch.equal(first, last) or not bool((array == first).all())


def distinct_slices(arrays: Sequence[Tensor], axis: int) -> tuple[Tensor, Tensor] | None:
    """Kinds of slices along an axis, taken over all arrays together; None where no two are equal.

    The label of a batch of graphs says the same of every node of a kind. What depends on the label slice by slice
    need look at one of each: the position of the first slice of each kind is returned, and the kind of every slice.

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
        keys += row.to(torch.int64) @ factor  # overflow is welcome
    _, kinds = keys.unique(return_inverse=True)
    positions = torch.arange(len(keys))
    first = torch.full((int(kinds.max()) + 1,), len(keys)).scatter_reduce_(0, kinds, positions, "amin")
    first, order = first.sort()
    kinds = order.argsort()[kinds]
    if len(first) == len(keys) or any(not torch.equal(row, row[first[kinds]]) for row in rows):
        return None
    return first, kinds


def merged(terms: Iterable[tuple[Fraction, Tensor]]) -> tuple[tuple[Fraction, Tensor], ...]:
    """Terms with equal arrays added up; arrays that are `ZERO` everywhere dropped."""
    kept: list[tuple[Fraction, Tensor]] = []
    for coefficient, raw in terms:
        ids = shrink(raw)
        if ids.numel() and not bool((ids != ZERO).any()):
            continue
        for position, (other, array) in enumerate(kept):
            if array.shape == ids.shape and torch.equal(array, ids):
                kept[position] = (other + coefficient, ids)
                break
        else:
            kept.append((coefficient, ids))
    return tuple((coefficient, ids) for coefficient, ids in kept if coefficient)
