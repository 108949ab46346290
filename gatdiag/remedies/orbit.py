"""The orbit of weights: all points that the rescalings of some laws lead to."""

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
    """The points w_k exp(sum_j t_j e_jk) that laws j with exponents e_jk lead to, with one coordinate t_j per law.

    Weights of a parameter that all laws scale by the same factor, such as a row of a matrix, form one cell.

    Attributes:
        exponents: Sparse float64 matrix of e_jk, of shape (cells, laws).

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
        self._shapes: dict[str, list[int]] = {}  # cells of each parameter; length 1 along axes that are not scaled
        entries: list[Any] = [np.zeros((3, 0))]
        first = 0
        for name, numbered in terms.items():
            scaled = sorted({axis for _, term in numbered for axis in term.axes})
            shape = self._shapes[name] = [n if axis in scaled else 1 for axis, n in enumerate(numbered[0][1].shape)]
            for number, term in numbered:
                rows = first + np.array(term.positions(scaled))
                entries.append(np.stack([rows, np.full(len(rows), number), np.full(len(rows), float(term.exponent))]))
            first += prod(shape)
        rows, columns, values = np.concatenate(entries, axis=1)
        self.exponents = sparse.csr_matrix((values, (rows.astype(int), columns.astype(int))), (first, len(laws)))
        self.exponents.eliminate_zeros()
        self.exponents.sort_indices()

    def restrict(self, numbers: Sequence[int]) -> "Orbit":
        """The orbit of a subset of the laws, with the same cells."""
        orbit = copy(self)
        vars(orbit).pop("_sides", None)
        orbit.exponents = self.exponents[:, list(numbers)]
        orbit.exponents.sort_indices()
        return orbit

    def cell_mask(self, names: Collection[str]) -> Any:
        """Boolean mask of the cells of these parameters."""
        masks = [np.full(prod(shape), name in names) for name, shape in self._shapes.items()]
        return np.concatenate([np.zeros(0, dtype=bool), *masks])

    def side_sums(self, squares: Any) -> tuple[Any, Any]:
        """For each law, sum |e_k| s_k over incoming weights (positive exponents), and over outgoing ones."""
        incoming, outgoing = self._sides
        return incoming @ squares, outgoing @ squares

    def curvature(self, squares: Any) -> Any:
        """The matrix H_ij = sum_k e_ik e_jk s_k in banded form: entry [d, j] of the result is H[j + d, j].

        Neurons share weights only with those of neighboring layers, so the band is narrow, and the cost linear in the
        number of layers.
        """
        pairs = sparse.tril(self.exponents.T @ (sparse.diags(squares) @ self.exponents)).tocoo()
        offsets = pairs.row - pairs.col
        band = np.zeros((offsets.max(initial=0) + 1, pairs.shape[1]))
        band[offsets, pairs.col] = pairs.data
        return band

    @cached_property
    def _sides(self) -> tuple[Any, Any]:
        return self.exponents.maximum(0).T.tocsr(), (-self.exponents).maximum(0).T.tocsr()

    def squares(self, weights: Tensors) -> Any:
        """The sum of squared weights in each cell, as a float64 array."""
        sums = [np.zeros(0)]
        for name, shape in self._shapes.items():
            square = weights[name].detach().abs().to("cpu", torch.float64).square()
            sums.append(square.sum_to_size(shape).flatten().numpy())
        return np.concatenate(sums)

    def factors(self, coordinates: Any) -> dict[str, Tensor]:
        """The factor exp(sum_j t_j e_jk) of each weight, broadcastable to the parameters."""
        factors = torch.from_numpy(np.exp(self.exponents @ coordinates))
        parts = factors.split([prod(shape) for shape in self._shapes.values()])
        return {name: part.reshape(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}


def multiply_(tensor: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor of any floating dtype by a float64 factor, in place, rounding once."""
    data = tensor.detach()
    data.copy_(data.to(torch.promote_types(data.dtype, torch.float64)) * factor.to(tensor.device))
    return tensor
