"""What a parameter of a state dict measures: norms, dead rows and columns, numbers that are not finite.

One pass over the memory, block by block: in single precision within a block where the tensor is no more precise than
that, in double precision across blocks, and wholly in double precision where squares overflow or vanish.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.checkpoint.blocks import blocks, shape_of, stored

_SAFE: Final = 1e-28  # sums of squares below may have lost some to underflow in single precision


@dataclass(frozen=True, eq=False)
class Measured:
    """What one parameter measures.

    Attributes:
        norm: Frobenius norm ||W||_F. Of a linear map it is an upper bound of its Lipschitz constant ||W||_2.
        non_finite: How many entries are NaN or infinite.
        row_norms: (out,), norm of each row (entry of a vector), float64: what leads into a neuron.
        column_norms: (in,), norm of each column: what leads out of a neuron of the layer before.
        is_matrix: Whether it has rows and columns. Vectors have one column, and so have the entries that a sparse
            tensor stores.
        spectral_norm: ||W||_2, as `gatdiag.metrics.spectral_norm`; NaN where not asked for or no matrix.
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


def measure(tensor: Tensor, *, spectral: bool = False) -> Measured:
    """Measure one parameter, whatever its number type: half precision, float8, quantized, sparse, complex.

    Args:
        tensor: Any shape; axis 0 counts rows, all others are columns.
        spectral: Also measure the spectral norm, which takes many times as long.

    Raises:
        InputError: The tensor is on the meta device.

    Example:
        >>> measured = measure(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        >>> measured.norm, measured.row_norms.tolist(), measured.dead_rows, measured.dead_columns
        (3.0, [3.0, 0.0], 1, 1)
    """
    of_rows, of_columns, non_finite = _squares(tensor)
    is_matrix = tensor.dim() > 1 and tensor.layout is torch.strided
    sigma = math.nan
    if spectral and is_matrix:
        sigma = float(metrics.spectral_norm(_matrix(tensor.detach())))
    return Measured(
        norm=math.sqrt(float(of_rows.sum())),
        non_finite=non_finite,
        row_norms=of_rows.sqrt(),
        column_norms=of_columns.sqrt(),
        is_matrix=is_matrix,
        spectral_norm=sigma,
    )


def _matrix(tensor: Tensor) -> Tensor:
    """The tensor as a plain matrix, put together from blocks where torch has no sure way to convert it."""
    if not tensor.is_quantized:
        return tensor
    matrix = torch.empty(shape_of(tensor))
    for block in blocks(tensor):
        matrix[block.rows, block.columns] = block.values
    return matrix


def _squares(tensor: Tensor) -> tuple[Tensor, Tensor, int]:
    """Sums of squares of each row and each column, float64, and how many entries are not finite."""
    rows, columns = shape_of(stored(tensor.detach()))
    of_rows, of_columns = (torch.zeros(length, dtype=torch.float64) for length in (rows, columns))
    non_finite = 0
    for block in blocks(tensor):
        right, down = _sums(block.values)
        total, least = float(right.sum()), min(float(right.min()), float(down.min()))
        if block.values.dtype != torch.float64 and not (math.isfinite(total) and least > _SAFE):
            right, down = _sums(block.values.double())
            total = float(right.sum())
        if not math.isfinite(total):
            non_finite += int((~block.values.isfinite()).sum())
        if block.values.shape == (rows, columns):
            return right.double(), down.double(), non_finite
        of_rows[block.rows] += right
        of_columns[block.columns] += down
    return of_rows, of_columns, non_finite


def _sums(values: Tensor) -> tuple[Tensor, Tensor]:
    squares = values.square()
    return squares.sum(1), squares.sum(0)
