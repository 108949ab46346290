"""Rules of inverses, determinants and decompositions of matrices.

Where D and E are diagonal, an inverse of D A E is known from that of A, so a matrix may have an exponent for each row
and one for each column. What needs one scale for the whole matrix is left with one.
"""

from fractions import Fraction

import torch

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, Labels
from gatdiag.laws.rules.reduction import added_along


def _parted(call: Call) -> tuple[Label, Label]:
    """The exponents of rows (a column) and of columns (a row) of the first matrix: they add up to the entries'."""
    exponents, ndim = call.exponents, call.first.ndim
    label = call.label_of(call.first).aligned(ndim)
    label = exponents.tabulated(label) if ndim == 2 else exponents.resolve(label)
    rows = label.map(lambda array: array.narrow(-1, 0, 1))
    columns = label.map(lambda array: array.narrow(-2, 0, 1)) - rows.map(lambda array: array.narrow(-2, 0, 1))
    exponents.vanish(label - rows - columns)
    return rows.present(), columns.present()


def _turned(label: Label) -> Label:
    return label.map(lambda array: array.transpose(-1, -2))


def inverse(call: Call) -> Labels:
    """(D A E)^-1 = E^-1 A^-1 D^-1."""
    rows, columns = _parted(call)
    return [_turned(columns + rows).scaled(-1), None]


def _total(call: Call) -> Label:
    rows, columns = _parted(call)
    length, ndim = call.first.shape[-1], call.first.ndim
    both = added_along(rows, ndim - 2, length) + added_along(columns, ndim - 1, length)
    return both.map(lambda array: array.reshape(array.shape[:-2]))


def determinant(call: Call) -> Labels:
    """The determinant: the exponents of all rows and columns add up. Its backward pass reads more than is followed."""
    return [call.vanish()] if torch.is_grad_enabled() else [_total(call)]


def log_determinant(call: Call) -> Labels:
    """The determinant's logarithm: the determinant must keep its scale."""
    if torch.is_grad_enabled():
        return [call.vanish()]
    call.exponents.vanish(_total(call))
    return [Label(), Label()]


def solution(call: Call) -> Labels:
    """A^-1 B for a matrix or a vector B, summed over the rows of A."""
    matrix, right = call.tensors()[:2]
    if torch.is_grad_enabled() or call.get("unitriangular") or not call["left"]:
        return [call.vanish()]
    rows, columns = _parted(call)
    label = call.label_of(right).aligned(right.ndim)
    if is_vector := right.ndim < matrix.ndim:
        label = label.map(lambda array: array.unsqueeze(-1))
    mixed = call.exponents.uniform((label - rows).aligned(matrix.ndim), [matrix.ndim - 2]) - _turned(columns)
    return [mixed.map(lambda array: array.squeeze(-1)) if is_vector else mixed]


def cholesky(call: Call) -> Labels:
    """D A D has the factor D L."""
    rows, columns = _parted(call)
    columns = _turned(columns)
    call.exponents.vanish(rows - rows.map(lambda array: array.narrow(-2, 0, 1)) - columns)
    factor = (rows + columns).scaled(Fraction(1, 2))
    return [_turned(factor) if call["upper"] else factor]


def _whole(call: Call) -> Label:
    """One exponent for the whole matrix."""
    ndim = call.first.ndim
    return call.exponents.uniform(call.label_of(call.first).aligned(ndim), [ndim - 2, ndim - 1])


def singular_values(call: Call) -> Labels:
    """Singular values scale, singular vectors do not."""
    return [Label(), _whole(call).map(lambda array: array.squeeze(-1)), Label()]


def eigenvalues(call: Call) -> Labels:
    """Eigenvalues scale, eigenvectors do not."""
    values = _whole(call).map(lambda array: array.squeeze(-1))
    return [values, Label()] if isinstance(call.out, tuple) else values


def pseudo_inverse(call: Call) -> Label:
    """The inverse of the scale; if the matrix is of full rank, rows or columns might scale by themselves."""
    ndim = call.first.ndim
    return call.lumped(call.label_of(call.first).aligned(ndim), [ndim - 2, ndim - 1]).scaled(-1)


def orthogonalized(call: Call) -> Labels:
    """QR: columns may scale, which R takes up."""
    ndim = call.first.ndim
    return [Label(), call.exponents.uniform(call.label_of(call.first).aligned(ndim), [ndim - 2])]
