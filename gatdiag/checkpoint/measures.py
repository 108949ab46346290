"""Measures of a parameter of a state dict: norms, dead rows and columns, NaN and infinities, how far it has moved.

Each number is measured once, in one pass over the memory: in single precision within a block where the tensor is no
more precise than that, in double precision across blocks, and wholly in double precision where squares overflow or
vanish.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.errors import InputError
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.weight_change import FRACTIONS

_BLOCK: Final = 1 << 17  # entries that a processor's cache holds together with their squares
_SAFE: Final = 1e-28  # sums of squares below may have lost some to underflow in single precision
_PLAIN: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class WeightStats:
    """Measures of one parameter.

    Attributes:
        norm: Frobenius norm ||W||_F. Of a linear map it is an upper bound of its Lipschitz constant ||W||_2.
        non_finite: How many entries are NaN or infinite.
        row_norms: (out,), norm of each row (entry of a vector), float64: what leads into a neuron.
        column_norms: (in,), norm of each column: what leads out of a neuron of the layer before.
        is_matrix: True if it has rows and columns. Vectors have one column, and so have the entries that a sparse
            tensor stores.
        spectral_norm: ||W||_2, as `gatdiag.metrics.spectral_norm`; NaN where it was not measured.
    """

    norm: float
    non_finite: int
    row_norms: Tensor
    column_norms: Tensor
    is_matrix: bool
    spectral_norm: float = math.nan

    @property
    def dead_rows(self) -> int:
        """How many rows are zero throughout: neurons that nothing leads into."""
        return int((self.row_norms == 0).sum()) if self.is_matrix else 0

    @property
    def dead_columns(self) -> int:
        """How many columns are zero throughout: inputs that the layer does not read."""
        return int((self.column_norms == 0).sum()) if self.is_matrix else 0


def measure(tensor: Tensor, *, spectral: bool = False) -> WeightStats:
    """Measure one parameter, whatever its number type: half precision, float8, quantized, sparse, complex.

    Args:
        tensor: Any shape; axis 0 counts rows, all others are columns.
        spectral: Measure the spectral norm of a matrix, too, which takes many times as long as all the rest.

    Raises:
        InputError: The tensor is on the meta device.

    Example:
        >>> measured = measure(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        >>> measured.norm, measured.row_norms.tolist(), measured.dead_rows, measured.dead_columns
        (3.0, [3.0, 0.0], 1, 1)
    """
    values = _values(tensor)
    rows = values.shape[0] if values.dim() else 1
    matrix = values.reshape(rows, math.prod(values.shape[1:]))
    of_rows, of_columns, non_finite = _squares(matrix)
    is_matrix = tensor.dim() > 1 and tensor.layout is torch.strided
    return WeightStats(
        norm=math.sqrt(float(of_rows.sum())),
        non_finite=non_finite,
        row_norms=of_rows.sqrt(),
        column_norms=of_columns.sqrt(),
        is_matrix=is_matrix,
        spectral_norm=float(metrics.spectral_norm(matrix)) if spectral and is_matrix else math.nan,
    )


def changes(initial: Tensor | None, trained: Tensor, *, attention: bool, quick: bool = False) -> dict[str, float]:
    """How far one parameter has moved, as a recorder measures it.

    Args:
        initial: w_0, of any number type.
        trained: w.
        attention: True for an attention vector, whose change is absolute, for it may start at zero.
        quick: Leave out the quantiles.

    Returns:
        Column of the table `parameters` -> value. Nothing where w_0 is missing or of another shape, or where a sparse
        tensor stores other entries.

    Example:
        >>> before, after = torch.ones(2, 2), torch.tensor([[1.0, 1.0], [1.0, 4.0]])
        >>> changes(before, after, attention=False, quick=True)["changed_fraction_050"]
        0.25
    """
    if initial is None or not _are_comparable(initial, trained):
        return {}
    w_0, w = _values(initial).flatten(), _values(trained).flatten()
    kind = torch.promote_types(w_0.dtype, w.dtype)
    w_0, w = w_0.to(kind), w.to(kind)
    absolute = torch.arange(len(w)) if attention else torch.zeros(0, dtype=torch.int64)
    found = dict(zip(FRACTIONS, metrics.change_fractions(w_0, w, [len(w)], absolute)[:, 0].tolist(), strict=True))
    if not quick:
        for name, row in zip(("relative", "absolute"), metrics.change_quantiles(w_0, w).tolist(), strict=True):
            found |= {change_quantile(name, level): value for level, value in zip(LEVELS, row, strict=True)}
    return found


def _are_comparable(initial: Tensor, trained: Tensor) -> bool:
    """True if the same entries are stored."""
    if initial.shape != trained.shape or initial.layout != trained.layout:
        return False
    if trained.layout is torch.sparse_coo:
        return torch.equal(initial.detach().coalesce().indices(), trained.detach().coalesce().indices())
    return _stored(initial).shape == _stored(trained).shape


def _stored(tensor: Tensor) -> Tensor:
    """The values that a sparse tensor stores; any other tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor if tensor.layout is torch.strided else tensor.values()


def _values(tensor: Tensor) -> Tensor:
    """Real floating-point values: dequantized, magnitudes of complex ones, of a sparse tensor the stored ones.

    Raises:
        InputError: The tensor has no values: it is on the meta device.
    """
    if tensor.is_meta:
        raise InputError(f"Expected a tensor with values, got one of shape {list(tensor.shape)} on the meta device.")
    values = _stored(tensor.detach())
    if values.is_quantized:
        return values.dequantize()
    if values.is_complex():
        return values.abs()
    if values.dtype in _PLAIN:
        return values
    return values.to(torch.float32 if values.dtype.itemsize == 1 else torch.float64)


def _squares(matrix: Tensor) -> tuple[Tensor, Tensor, int]:
    """Sums of squares of each row and each column, float64, and how many entries are not finite."""
    rows, columns = matrix.shape
    of_columns = torch.zeros(columns, dtype=torch.float64)
    of_rows = [torch.zeros(0 if columns else rows, dtype=torch.float64)]
    non_finite = 0
    for piece in matrix.split(max(1, _BLOCK // columns)) if matrix.numel() else ():
        values = piece if piece.dtype is torch.float64 else piece.float()
        right, down = _sums(values)
        total, least = float(right.sum()), min(float(right.min()), float(down.min()))
        if values.dtype is torch.float32 and not (math.isfinite(total) and least > _SAFE):
            right, down = _sums(values.double())
            total = float(right.sum())
        if not math.isfinite(total):
            non_finite += int((~values.isfinite()).sum())
        of_rows.append(right.double())
        of_columns += down
    return torch.cat(of_rows), of_columns, non_finite


def _sums(values: Tensor) -> tuple[Tensor, Tensor]:
    squares = values.square()
    return squares.sum(1), squares.sum(0)
