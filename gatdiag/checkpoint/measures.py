"""What a parameter of a state dict measures: norms, dead rows and columns, numbers that are not finite.

One pass over the memory, block by block: in single precision within a block where the tensor is no more precise than
that, in double precision across blocks, and wholly in double precision where squares overflow or vanish.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gatdiag.checkpoint.blocks import blocks, shape_of, stored
from gatdiag.recorder.weights import Weights
from gatdiag.structure import ParameterInfo
from gatdiag.structure.adapters import ATTENTION

_SAFE: Final = 1e-28  # sums of squares below may have lost some to underflow in single precision


@dataclass(frozen=True, eq=False)
class WeightStats:
    """What one parameter measures.

    Attributes:
        norm: Frobenius norm ||W||_F. Of a linear map it is an upper bound of its Lipschitz constant ||W||_2.
        non_finite: How many entries are NaN or infinite.
        row_norms: (out,), norm of each row (entry of a vector), float64: what leads into a neuron.
        column_norms: (in,), norm of each column: what leads out of a neuron of the layer before.
        is_matrix: Whether it has rows and columns. Vectors have one column, and so have the entries that a sparse
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


def measure(tensor: Tensor) -> WeightStats:
    """Measure one parameter, whatever its number type: half precision, float8, quantized, sparse, complex.

    Args:
        tensor: Any shape; axis 0 counts rows, all others are columns.

    Raises:
        InputError: The tensor is on the meta device.

    Example:
        >>> measured = measure(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        >>> measured.norm, measured.row_norms.tolist(), measured.dead_rows, measured.dead_columns
        (3.0, [3.0, 0.0], 1, 1)
    """
    of_rows, of_columns, non_finite = _squares(tensor)
    return WeightStats(
        norm=math.sqrt(float(of_rows.sum())),
        non_finite=non_finite,
        row_norms=of_rows.sqrt(),
        column_norms=of_columns.sqrt(),
        is_matrix=tensor.dim() > 1 and tensor.layout is torch.strided,
    )


def parameter_columns(
    infos: Iterable[ParameterInfo],
    tensors: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    *,
    quick: bool,
) -> dict[str, dict[str, float]]:
    """What a recorder measures of parameters at a step, as far as the weights show it: all but gradients and updates.

    Args:
        infos: The parameters; those without a tensor are left out.
        tensors: Name -> w, of any number type.
        reference: Name -> w_0, which changes are measured from; None: they are not measured.
        quick: Leave out spectral norms and quantiles of change, which take many times as long as all the rest.

    Returns:
        Parameter -> column of the table `parameters` -> value. A parameter whose reference is missing, of another
        shape, or sparse with other entries has no changes.

    Raises:
        InputError: A tensor is on the meta device.

    Example:
        >>> info = ParameterInfo("weight", ("weight",), "feature weight", (2, 2), True, "")
        >>> before, after = {"weight": torch.ones(2, 2)}, {"weight": torch.tensor([[1.0, 1.0], [1.0, 4.0]])}
        >>> parameter_columns([info], after, before, quick=True)["weight"]["changed_fraction_050"]
        0.25
    """
    infos = [info for info in infos if info.name in tensors]
    if not infos:
        return {}
    given = reference or {}
    before = {i.name: _numbers(given[i.name]) for i in infos if _are_comparable(given.get(i.name), tensors[i.name])}
    now = {info.name: _numbers(tensors[info.name]) for info in infos}
    now |= {name: now[name].to(torch.promote_types(now[name].dtype, w_0.dtype)) for name, w_0 in before.items()}
    weights = Weights(now, [info.name for info in infos if info.role == ATTENTION])
    weights.set_initial(before)
    found = {"norm": weights.before()["norm"]}
    found["non_finite"] = weights.non_finite(found["norm"], gradient=False)
    spectral = {} if quick else weights.spectral_norms()
    changes = {} if reference is None else weights.changes() | ({} if quick else weights.quantiles())
    columns: dict[str, dict[str, float]] = {}
    for at, info in enumerate(infos):
        known = found | (changes if info.name in before else {}) | (spectral if weights.is_matrix[at] else {})
        columns[info.name] = {column: float(values[at]) for column, values in known.items()}
    return columns


def _are_comparable(reference: Tensor | None, tensor: Tensor) -> bool:
    """True if the same entries are stored."""
    if reference is None or reference.shape != tensor.shape or reference.layout != tensor.layout:
        return False
    if tensor.layout is torch.sparse_coo:
        return torch.equal(reference.detach().coalesce().indices(), tensor.detach().coalesce().indices())
    return stored(reference).shape == stored(tensor).shape


def _numbers(tensor: Tensor) -> Tensor:
    """What a tensor of any type stands for, dense and floating; of a sparse one the values that are stored."""
    values = stored(tensor.detach())
    if values.is_floating_point() and values.dtype.itemsize > 1 and not values.is_meta:
        return values
    matrix = torch.empty(shape_of(values), dtype=torch.float64)
    for block in blocks(tensor):
        matrix[block.rows, block.columns] = block.values.double()
    return matrix.reshape(values.shape)


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
