"""Sums of products of weights, gradients and updates over the rows, columns or other slices that laws consist of.

A weight's exponents are (row) - (column), so sum_k e_k T_k over its entries needs only the row sums and the column
sums of T. Parameters of one shape are stacked and summed together: the number of kernels depends on the number of
shapes, not on that of layers or neurons.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Final

import numpy as np
import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Axes = tuple[int, ...]

_PIECE: Final = 2**16  # entries
_STACKED: Final = 2**16  # entries of a parameter up to which stacking it with others is quicker


class Sums:
    """Partial sums of parameters as one vector, whose layout is fixed and which takes a few kernels to compute.

    A complex entry counts as two real ones, as in torch's gradients and optimizers.

    Args:
        wanted: Pairs (name of a parameter, axes to keep): (0,) gives row sums, (1,) column sums, all axes the entries
            themselves.
        templates: Name -> parameter, for shapes, devices and dtypes.

    Attributes:
        start: (name, axes) -> position of the first of these sums in the vector.
    """

    def __init__(self, wanted: Iterable[tuple[str, Axes]], templates: Tensors) -> None:
        self._templates: dict[str, Tensor] = {}
        groups: dict[tuple[object, ...], tuple[dict[str, None], set[Axes]]] = defaultdict(lambda: ({}, set()))
        for name, axes in wanted:
            tensor = self._templates[name] = templates[name]
            alone = name if tensor.numel() > _STACKED else ""
            names, patterns = groups[tuple(tensor.shape), tensor.dtype, tensor.device, alone]
            names[name] = None
            patterns.add(axes)
        self._groups = [(list(alike), sorted(every)) for alike, every in groups.values()]
        self.start: dict[tuple[str, Axes], int] = {}
        position = 0
        for alike, every in self._groups:
            for axes in every:
                for name in alike:
                    self.start[name, axes] = position
                    position += math.prod(templates[name].shape[axis] for axis in axes)
        self._length = position

    def products(
        self, factors: Sequence[Tensors], wanted: Sequence[Sequence[int]], *, absolute: bool = False
    ) -> list[Tensor]:
        """Vectors of sums of elementwise products, in float64.

        Args:
            factors: Name -> tensor, a missing one counting as zeros. All may have one more axis in front, for several
                points; so have the vectors, then.
            wanted: For each vector, the positions of its factors.
            absolute: Whether to sum absolute values.
        """
        points = next((self._leading_axes(name, tensor) for factor in factors for name, tensor in factor.items()), ())
        pieces: list[list[Tensor]] = [[] for _ in wanted]
        for alike, every in self._groups:
            stacked = [self._stack(alike, factor, points) for factor in factors]
            stacked = [factor.abs() for factor in stacked] if absolute else stacked
            before = len(points) + 1
            for found, positions in zip(pieces, wanted, strict=True):
                for axes in every:
                    kept = [*range(before), *(before + axis for axis in axes)]
                    sums = _sum_products([stacked[position] for position in positions], kept)
                    found.append(sums.flatten(len(points)))
        return [_concatenate(found, points) for found in pieces]

    def products_and_sizes(self, left: Tensors, right: Tensors) -> Tensor:
        """Sums of left * right, and of its absolute value, as two rows.

        As `products`, but of one parameter after the other and in pieces, which needs no memory of a model's size.
        """
        found = torch.stack([self.new_vector(), self.new_vector()])
        for alike, every in self._groups:
            for name in alike:
                if name in left and name in right:
                    factors = (self._stack([name], factor, ())[0] for factor in (left, right))
                    _add_sums(found, [(axes, self.start[name, axes]) for axes in every], *factors)
        return found

    def new_vector(self) -> Tensor:
        """A zero for each sum."""
        device = next((tensor.device for tensor in self._templates.values()), None)
        return torch.zeros(self._length, dtype=torch.float64, device=device)

    def split(self, name: str, vector: Tensor) -> list[Tensor]:
        """The parts of a vector that belong to sums of one parameter, each as a tensor that broadcasts against it."""
        template, found = self._templates[name], []
        for (owner, axes), start in self.start.items():
            if owner == name:
                shape = [length if axis in axes else 1 for axis, length in enumerate(template.shape)]
                found.append(vector[start : start + math.prod(shape)].view(shape))
        return found

    def _leading_axes(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """Shape of the axes in front of a parameter's own."""
        return tuple(tensor.shape[: tensor.dim() - self._templates[name].dim()]) if name in self._templates else ()

    def _stack(self, names: Sequence[str], factor: Tensors, points: tuple[int, ...]) -> Tensor:
        tensors = [
            factor[name].detach() if name in factor else self._templates[name].new_zeros(()).expand(shape)
            for name in names
            for shape in [(*points, *self._templates[name].shape)]
        ]
        tensors = [tensor.to_dense() if tensor.is_sparse else tensor.resolve_conj().resolve_neg() for tensor in tensors]
        axis = len(points)
        stacked = tensors[0].unsqueeze(axis) if len(tensors) == 1 else torch.stack(tensors, axis)
        stacked = torch.view_as_real(stacked) if stacked.is_complex() else stacked
        return stacked if stacked.dtype in (torch.float32, torch.float64) else stacked.to(torch.float64)


def _sum_products(factors: Sequence[Tensor], kept: list[int]) -> Tensor:
    """Sums of products over all axes but `kept`, in float64; on the CPU without a float64 copy of the factors."""
    axes = [*range(factors[0].dim())]
    if not factors[0].is_cpu:
        return torch.einsum(*(item for factor in factors for item in (factor.double(), axes)), kept)
    operands = [item for factor in factors for item in (factor.numpy(), axes)]
    return torch.from_numpy(np.asarray(np.einsum(*operands, kept, dtype=np.float64, casting="unsafe"), np.float64))


def _add_sums(found: Tensor, layout: Sequence[tuple[Axes, int]], left: Tensor, right: Tensor) -> None:
    """Add the sums of left * right and of |left * right| over all but the given axes, from the given starts on."""
    for piece in _pieces(left):
        product = left[piece].double() * right[piece]
        for row in found:
            for axes, start in layout:
                lengths, others = [left.shape[axis] for axis in axes], [a for a in range(left.dim()) if a not in axes]
                place = row[start : start + math.prod(lengths)].view(lengths)
                sums = product.sum(others) if others or not axes else product
                place[piece if 0 in axes else ...] += sums.to(found.device)
            product.abs_()


def _pieces(tensor: Tensor) -> Iterator[slice | EllipsisType]:
    """Indices of parts of a tensor, on the CPU so small that they fit into its cache."""
    if not tensor.is_cpu or tensor.numel() <= _PIECE:
        yield ...
        return
    rows = max(1, _PIECE * len(tensor) // tensor.numel())
    yield from (slice(start, start + rows) for start in range(0, len(tensor), rows))


def _concatenate(pieces: list[Tensor], points: tuple[int, ...]) -> Tensor:
    if not pieces:
        return torch.zeros(*points, 0, dtype=torch.float64)
    return torch.cat([piece.to(pieces[0].device) for piece in pieces], len(points))
