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
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.weight_change import FRACTIONS

_BLOCK: Final = 1 << 17  # entries that a processor's cache holds together with their squares
_SAFE: Final = 1e-28  # sums of squares below may have lost some to underflow in single precision


@dataclass(frozen=True, eq=False)
class WeightStats:
    """Measures of one parameter.

    Attributes:
        norm: Frobenius norm ||W||_F. Of a linear map it is an upper bound of its Lipschitz constant ||W||_2.
        non_finite: How many entries are NaN or infinite.
        row_norms: (out,), norm of each row (entry of a vector), float64: what leads into a neuron.
        column_norms: (in,), norm of each column: what leads out of a neuron of the layer before.
        is_matrix: True if it has rows and columns; vectors have one column.
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
    """Measure one parameter.

    Args:
        tensor: Any shape; axis 0 counts rows, all others are columns.
        spectral: Measure the spectral norm of a matrix, too, which takes many times as long as all the rest.

    Example:
        >>> measured = measure(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        >>> measured.norm, measured.row_norms.tolist(), measured.dead_rows, measured.dead_columns
        (3.0, [3.0, 0.0], 1, 1)
    """
    values = _values(tensor)
    rows = values.shape[0] if values.dim() else 1
    matrix = values.reshape(rows, math.prod(values.shape[1:]))
    of_rows, of_columns, non_finite = _squares(matrix)
    is_matrix = tensor.dim() > 1
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
        initial: w_0; its number type may be another one.
        trained: w.
        attention: True for an attention vector, whose change is absolute, for it may start at zero.
        quick: Leave out the quantiles.

    Returns:
        Column of the table `parameters` -> value. Nothing where w_0 is missing or of another shape.

    Example:
        >>> before, after = torch.ones(2, 2), torch.tensor([[1.0, 1.0], [1.0, 4.0]])
        >>> changes(before, after, attention=False, quick=True)["changed_fraction_050"]
        0.25
    """
    if initial is None or initial.shape != trained.shape:
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


def _values(tensor: Tensor) -> Tensor:
    """Floating-point values; a count may be among the parameters."""
    return tensor.detach() if tensor.is_floating_point() else tensor.to(torch.float64)


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
