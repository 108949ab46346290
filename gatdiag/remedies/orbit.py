"""The orbit of weights: all that the rescalings of some laws make of them."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gatdiag.laws import Law, Term

Tensors: TypeAlias = Mapping[str, Tensor]


class Orbit:
    """The points w_k exp(sum_j t_j e_jk) that laws j with exponents e_jk lead to, one coordinate t_j a law.

    Weights of a parameter that all laws scale alike, such as a row of a matrix whose rows are scaled, are one cell.

    Attributes:
        exponents: Sparse float64 matrix (cells, laws) of e_jk.

    Example:
        >>> from fractions import Fraction
        >>> into = Term("a", (2, 3), (0,), ((1,),), Fraction(1))
        >>> out = Term("b", (1, 2), (1,), ((1,),), Fraction(-1))
        >>> orbit = Orbit([Law("neuron 1", "neuron", "", 1, (into, out), True, 0.0)])
        >>> orbit.factors(np.log([2.0]))["b"]
        tensor([[1.0000, 0.5000]], dtype=torch.float64)
        >>> orbit.exponents.T @ orbit.squares({"a": torch.ones(2, 3), "b": torch.ones(1, 2)})  # c: 3 - 1
        array([2.])
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        terms: dict[str, list[tuple[int, Term]]] = {}
        for number, law in enumerate(laws):
            for term in law.terms:
                terms.setdefault(term.parameter, []).append((number, term))
        self._shapes: dict[str, list[int]] = {}  # of the cells of each parameter, one where an axis is not scaled
        found: list[Any] = [np.zeros((3, 0))]
        first = 0
        for name, numbered in terms.items():
            scaled = {axis for _, term in numbered for axis in term.axes}
            shape = [length if axis in scaled else 1 for axis, length in enumerate(numbered[0][1].shape)]
            cells = np.arange(first, first + prod(shape)).reshape(shape)
            for number, term in numbered:
                place: list[Any] = [slice(None)] * cells.ndim
                for axis, positions in zip(term.axes, zip(*term.indices, strict=True), strict=False):
                    place[axis] = list(positions)
                at = cells[tuple(place)].ravel()
                found.append(np.stack([at, np.full(len(at), number), np.full(len(at), float(term.exponent))]))
            self._shapes[name] = shape
            first += cells.size
        rows, columns, values = np.concatenate(found, axis=1)
        self.exponents = sparse.csr_matrix((values, (rows.astype(int), columns.astype(int))), (first, len(laws)))
        self.exponents.eliminate_zeros()
        self.exponents.sort_indices()

    def restricted(self, numbers: Sequence[int]) -> "Orbit":
        """The same cells, moved by some of the laws."""
        part = copy(self)
        vars(part).pop("_sides", None)
        part.exponents = self.exponents[:, list(numbers)]
        part.exponents.sort_indices()
        return part

    def cells_of(self, names: Collection[str]) -> Any:
        """Mask of the cells that belong to these parameters."""
        found = [np.full(prod(shape), name in names) for name, shape in self._shapes.items()]
        return np.concatenate([np.zeros(0, dtype=bool), *found])

    def sides(self, squares: Any) -> tuple[Any, Any]:
        """For each law sum |e_k| s_k of what leads in (positive exponents), and of what leads out."""
        into, out = self._sides
        return into @ squares, out @ squares

    def curvature(self, squares: Any) -> Any:
        """The matrix sum_k e_ik e_jk s_k of pairs of laws: entry [d, j] of the result is that of laws j + d and j.

        Neurons meet those of the neighboring layers only, so it is narrow: the cost is linear in the number of layers.
        """
        pairs = sparse.tril(self.exponents.T @ (sparse.diags(squares) @ self.exponents)).tocoo()
        apart = pairs.row - pairs.col
        band = np.zeros((apart.max(initial=0) + 1, pairs.shape[1]))
        band[apart, pairs.col] = pairs.data
        return band

    @cached_property
    def _sides(self) -> tuple[Any, Any]:
        return self.exponents.maximum(0).T.tocsr(), (-self.exponents).maximum(0).T.tocsr()

    def squares(self, weights: Tensors) -> Any:
        """The sum of the squared weights of each cell, as a float64 array."""
        found = [np.zeros(0)]
        for name, shape in self._shapes.items():
            square = weights[name].detach().abs().to("cpu", torch.float64).square()
            found.append(square.sum_to_size(shape).flatten().numpy())
        return np.concatenate(found)

    def factors(self, coordinates: Any) -> dict[str, Tensor]:
        """What each weight is multiplied by: exp(sum_j t_j e_jk), positive, broadcasting against the parameters."""
        factors = torch.from_numpy(np.exp(self.exponents @ coordinates))
        parts = factors.split([prod(shape) for shape in self._shapes.values()])
        return {name: part.reshape(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}


def multiply_(tensor: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor of any floating dtype by a float64 factor, in place, rounding once."""
    own = tensor.detach()
    own.copy_(own.to(torch.promote_types(own.dtype, torch.float64)) * factor.to(tensor.device))
    return tensor
