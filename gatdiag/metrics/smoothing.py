"""How similar the rows of X are: mu, and other statistics of one pass over a layer's output.

Of node representations X^(l), mu is the representation similarity of a layer, of dLoss/dX^(l) the gradient similarity;
its decay with depth is oversmoothing. A small mu can also mean that X as a whole vanishes, so compare it with ||X||_F,
or use relative mu. On the CPU, float32 is summed in float32 in small chunks, and the chunks in float64; if mu is much
smaller than the norm, once more after subtracting the mean row. That leaves six digits (five if entries take only a few
values, whose squares have equal rounding errors). All else is summed in float64, including float32 whose squares over-
or underflow or whose rows agree to the last digits.
"""

import math
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

__all__ = ["OutputStatistics", "as_rows", "output_statistics"]

_CHUNK = 1 << 22  # entries converted to float64 at a time
_SMALLEST, _LARGEST = 1e-28, 1e30  # squared norms between which float32 neither under- nor overflows
_MODERATE = 1e-13, 1e13  # largest entries between which squares always fit float32
_TINY = 1e-30  # entries below this cannot be scaled up
_ALIKE = 0.1  # mu^2 / norm^2 below which rounding errors of the sums affect mu
_NARROW = 8  # columns below which rounding of sums matters
_FEW, _FEW_NARROW = 1 << 12, 1 << 16  # entries up to which float64 is as fast, in general and in narrow matrices
_PIECE, _WIDE = 128, 512  # entries whose squares are summed in float32, and the longest row summed as a whole


class OutputStatistics(NamedTuple):
    """What `output_statistics` computes: floats of one X on the CPU; else float64 tensors, of shape () or (B,)."""

    output_norm: Any
    mu: Any
    relative_mu: Any
    dead_fraction: Any
    non_finite: Any


def as_rows(x: Tensor, channels: int = -1) -> Tensor:
    """The tensor as (samples, channels): all axes but that of the channels are flattened, such as time and nodes."""
    axes = x.dim()
    if axes < 2:
        return x.reshape(-1, 1)
    if channels not in (-1, axes - 1):
        moved = x.movedim(channels, -1)
        if not moved.is_contiguous():  # by columns: a feature map is copied several times as fast
            return x.movedim(channels, 0).flatten(1).t()
        x = moved
    return x if axes == 2 else x.flatten(0, -2)


def output_statistics(x: Tensor) -> OutputStatistics:
    """Norm, mu, relative mu, dead fraction and number of non-finite entries.

        mu(X) = ||X - 1 gamma||_F with gamma = 1^T X / N,  mu^2 = 1/(2N) sum_uv ||x_u - x_v||^2

    mu, the distance of X from having all rows equal, is exactly 0 if they are, and mu(X + Y) <= mu(X) + mu(Y). It
    scales with X and does not change if one row vector is added to all rows. Relative mu, mu(X) / ||X||_F in [0, 1], is
    1 if the mean row is zero. It goes to 0 with depth only if aggregation makes rows constant (a row-stochastic matrix,
    such as GAT's in the forward pass). The dead fraction is that of the units (columns of X) that are exactly zero at
    every node: of a ReLU layer's output, units that no node activates; of dLoss/dX, units that get no gradient.

    Args:
        x: (N, d), floating point: a layer's output, or its gradient. Or (B, N, d), many of them, not empty, measured in
            float64 with as few kernels as one. Not differentiated.

    Returns:
        The statistics. ||X||_F is infinite if X contains an infinity and no NaN. mu and relative mu are NaN if an entry
        is not finite, relative mu also if X is zero (0 / 0), the dead fraction if an entry is NaN.

    Source:
        Park & Kim, arXiv 2410.04824; Wu et al., "Demystifying Oversmoothing in Attention-Based Graph Neural
        Networks", NeurIPS 2023.

    Example:
        >>> x = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
        >>> {name: round(value, 6) for name, value in output_statistics(x)._asdict().items()}
        {'output_norm': 3.162278, 'mu': 1.414214, 'relative_mu': 0.447214, 'dead_fraction': 0.5, 'non_finite': 0.0}
        >>> output_statistics(torch.stack([x, 0 * x])).mu
        tensor([1.4142, 0.0000], dtype=torch.float64)
    """
    if x.numel() == 0:
        return OutputStatistics(0.0, 0.0, math.nan, math.nan, 0.0)
    x = x.detach() if x.requires_grad else x
    if x.dim() == 3:
        return _in_float64(x)
    found = _in_float32(x) or _out_of_range(x) if x.is_cpu and x.dtype is torch.float32 else None
    return found or OutputStatistics(*(value.item() if x.is_cpu else value[0] for value in _in_float64(x.unsqueeze(0))))


def _in_float32(x: Tensor) -> OutputStatistics | None:
    """None if squares over- or underflow, or if rows agree to the last digits."""
    rows, columns = x.shape
    sums, square = _sums(x)
    values = sums.tolist()  # call overhead dominates here, so calls are few
    spread = square - _sum_of_squares(values) / rows
    if spread <= _ALIKE * square < _LARGEST:
        shift = (sums / rows).float()
        sums, left = _sums(x - shift)
        spread = left - _sum_of_squares(sums.tolist()) / rows  # minus the rounding error of the mean
        if not spread > _ALIKE * left:
            return None
        values = (sums + rows * shift.double()).tolist()
        square = spread + _sum_of_squares(values) / rows
    if not _SMALLEST < spread < _LARGEST > square:
        return None
    norm, mu, dead = math.sqrt(square), math.sqrt(spread), 0.0
    if 0.0 in values:  # a zero column, or one that cancels
        dead = x.amax(0).logical_or(x.amin(0)).tolist().count(False) / columns
    return OutputStatistics(norm, mu, mu / norm, dead, 0.0)


def _sums(x: Tensor) -> tuple[Tensor, float]:
    """Column sums, and the sum of all squares."""
    columns = x.shape[1]
    if x.numel() < (_FEW_NARROW if columns < _NARROW else _FEW):
        exact = x.double()
        entries = _entries(exact)
        return exact.sum(0), torch.dot(entries, entries).item()
    if _NARROW <= columns <= _WIDE and x.is_contiguous():
        lengths, sums = vector_norm(x, dim=1), x.sum(0)
    else:
        entries = _entries(x)
        end = len(entries) // _PIECE * _PIECE
        lengths = torch.cat([vector_norm(entries[:end].view(-1, _PIECE), dim=1), entries[end:]])
        sums = x.sum(0, dtype=torch.float64) if columns < _NARROW else x.sum(0)
    return sums, float(vector_norm(lengths, dtype=torch.float64)) ** 2


def _entries(x: Tensor) -> Tensor:
    """All entries, in the order in which they are stored by rows or by columns."""
    return (x if x.is_contiguous() else x.t()).reshape(-1)


def _sum_of_squares(values: list[float]) -> float:
    total: float = sum(map(mul, values, values))
    return total


def _out_of_range(x: Tensor) -> OutputStatistics | None:
    """The statistics if squares over- or underflow, or if X is zero or not finite; else None."""
    low, high = map(float, torch.aminmax(x))
    largest = max(-low, high)
    if not math.isfinite(low + high):
        values = x.numpy()
        broken = float(values.size - np.count_nonzero(np.isfinite(values)))
        if math.isnan(low):
            return OutputStatistics(math.nan, math.nan, math.nan, math.nan, broken)
        return OutputStatistics(math.inf, math.nan, math.nan, float((values == 0).all(0).mean()), broken)
    if largest == 0:
        return OutputStatistics(0.0, 0.0, math.nan, 1.0, 0.0)
    if _TINY < largest < _MODERATE[0] or largest > _MODERATE[1]:
        scale = math.ldexp(1.0, math.frexp(largest)[1])
        if (found := _in_float32(x * (1.0 / scale))) is not None:
            return found._replace(output_norm=found.output_norm * scale, mu=found.mu * scale)
    return None


def _in_float64(x: Tensor) -> OutputStatistics:
    """Of (B, N, d), on any device.

    float64 is divided by its largest entry so that no square overflows. With r the first row and m the mean of X - 1 r,
    mu^2 = ||X - 1 r - 1 m||^2, so that equal rows give exactly 0, and ||X||^2 = mu^2 + N ||r + m||^2, a sum without
    cancellation.
    """
    count, rows, columns = x.shape
    scale = _scale(x) if x.dtype == torch.float64 else 1.0
    pieces = x.split(max(1, _CHUNK // (count * columns)), 1) if x.numel() > _CHUNK else (x,)
    first = x[:, :1].double() / scale
    mean = torch.stack([(piece.double() / scale - first).sum(1, keepdim=True) for piece in pieces]).sum(0) / rows
    spread = torch.zeros_like(first)
    for piece in pieces:
        centered = (piece.double() / scale - first).sub_(mean)
        spread += centered.mul_(centered).sum(1, keepdim=True)
    row = first + mean
    mu = spread.sum((1, 2)).sqrt()
    norm = (mu * mu + rows * (row * row).sum((1, 2))).sqrt()
    dead = ((spread == 0) & (row == 0)).double().mean((1, 2))
    relative = mu / norm
    if isinstance(scale, Tensor):
        mu, norm = mu * scale[:, 0, 0], norm * scale[:, 0, 0]
    if x.is_cpu and bool(norm.isfinite().all()):
        return OutputStatistics(norm, mu, relative, dead, torch.zeros_like(norm))
    broken = (~x.isfinite()).sum((1, 2)).double()
    exact = vector_norm(x, dim=(1, 2), dtype=torch.float64)  # keeps infinities, which differences turn into NaN
    undefined = torch.where(broken > 0, torch.nan, 1.0)
    dead = torch.where(x.isnan().flatten(1).any(1), torch.nan, (x == 0).all(1).double().mean(1))
    norm = torch.where(broken > 0, exact, norm)
    return OutputStatistics(norm, mu * undefined, relative * undefined, dead, broken)


def _scale(x: Tensor) -> Tensor:
    largest = x.abs().amax((1, 2), keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
