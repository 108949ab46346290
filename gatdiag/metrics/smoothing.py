"""How alike the rows of X are: mu, and what else one pass over a layer's output shows.

For node representations X^(l), mu is the representation similarity of a layer, for dLoss/dX^(l) the gradient
similarity; its decay with depth is oversmoothing. A small mu can also mean that X as a whole vanishes, so it is read
beside ||X||_F, or as `relative_mu`.

`measure` is what a recorder runs at every layer of every step; `mu`, `relative_mu` and `dead_fraction` are single
numbers of it. float32 on the CPU is added up in float32, few entries at a time, and these sums in float64; where mu is
much smaller than the norm once more after taking the mean row away: that leaves six digits (five where entries take
a few values only, whose squares are all rounded alike). All else is summed in float64, and so is float32 whose squares
over- or underflow, or whose rows are alike to the last digits.
"""

import math
from operator import mul
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

from gatdiag.errors import InputError

__all__ = [
    "as_rows",
    "dead_fraction",
    "measure",
    "mu",
    "relative_mu",
]

_CHUNK = 1 << 22  # entries that are held in float64 at a time
_SMALLEST, _LARGEST = 1e-28, 1e30  # squared norms between which float32 neither under- nor overflows
_MODERATE = 1e-13, 1e13  # largest entries between which squares are within float32 anyway
_TINY = 1e-30  # entries below this cannot be scaled up
_ALIKE = 0.1  # below this mu^2 / norm^2 the rounding of sums shows in mu
_FEW, _NARROW = 1 << 16, 8  # entries up to which float64 costs no more, and columns below which rounding of sums shows
_PIECE, _WIDE = 128, 512  # entries whose squares are added up in float32, and the longest row of which all are

Numbers: TypeAlias = tuple[float, float, float, float, float]


def as_rows(x: Tensor) -> Tensor:
    """The tensor with one row a node: the last axis is the channels, all others count nodes; a scalar is one entry."""
    axes = x.dim()
    if axes == 2:
        return x
    return x.reshape(-1, 1) if axes < 2 else x.flatten(0, -2)


def measure(x: Tensor) -> Numbers | Tensor:
    """Norm, mu, relative mu, dead fraction, and how many entries are not finite.

    Args:
        x: (N, d), floating: a layer's output, or the gradient that comes back to it. It is not differentiated.

    Returns:
        Five numbers; on another device than the CPU a tensor (5,), float64. ||X||_F is infinite if X holds an infinity
        and no NaN. mu, the relative mu (0 / 0 where X is zero) and, for NaN alone, the dead fraction are NaN where an
        entry is not finite.

    Example:
        >>> [round(value, 6) for value in measure(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))]
        [3.162278, 1.414214, 0.447214, 0.5, 0.0]
    """
    if x.numel() == 0:
        return 0.0, 0.0, math.nan, math.nan, 0.0
    if not x.is_cpu:
        return _in_float64(x)
    x = x.detach() if x.requires_grad else x
    found = None if x.dtype is not torch.float32 else _in_float32(x) or _out_of_range(x)
    if found is None:
        norm, size, relative, dead, broken = _in_float64(x).tolist()
        found = norm, size, relative, dead, broken
    return found


def mu(x: Tensor) -> Tensor:
    """Distance of X from having all rows equal: mu(X) = ||X - 1 gamma||_F with gamma = 1^T X / N.

    0 exactly if all rows are equal, and mu(X + Y) <= mu(X) + mu(Y). mu^2 = 1/(2N) sum_uv ||x_u - x_v||^2. It scales
    with X and does not change when one row vector is added to all rows.

    Args:
        x: (N, d), node representations or their gradient.

    Returns:
        0-d. 0 for no node or a single one; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Park & Kim, arXiv 2410.04824; Wu et al., "Demystifying Oversmoothing in Attention-Based Graph Neural
        Networks", NeurIPS 2023.

    Example:
        >>> mu(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0], [1.0, 2.0]])).item()
        2.0
    """
    return _number(x, 1)


def relative_mu(x: Tensor) -> Tensor:
    """mu(X) / ||X||_F in [0, 1]: 0 if all rows are equal, 1 if the mean row is zero. It does not depend on X's scale.

    It goes to 0 with depth only where the aggregation drives X to constant rows (a row-stochastic matrix, as GAT's in
    the forward direction).

    Args:
        x: (N, d).

    Returns:
        0-d. NaN (undefined) if X is zero or empty; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Park & Kim, arXiv 2410.04824; relative form after its reviews.

    Example:
        >>> round(relative_mu(torch.tensor([[1.0], [3.0]])).item(), 6)
        0.447214
    """
    return _number(x, 2)


def dead_fraction(x: Tensor) -> Tensor:
    """The part of the units (columns of X) that are exactly zero at every node.

    Of a ReLU layer's output: units that no node activates, and that no gradient reaches. Of dLoss/dX: units that
    receive no gradient.

    Args:
        x: (N, d), the output after the activation, or its gradient.

    Returns:
        0-d in [0, 1]. NaN (undefined) without a node or a unit; NaN if x holds a NaN.

    Raises:
        InputError: `x` does not have two axes.

    Example:
        >>> dead_fraction(torch.tensor([[0.0, 1.0], [0.0, 0.0]])).item()
        0.5
    """
    return _number(x, 3)


def _in_float32(x: Tensor) -> Numbers | None:
    """None where squares over- or underflow, and where the rows are alike to the last digits."""
    rows, columns = x.shape
    sums, square = _sums(x)
    values = sums.tolist()  # calls take longer here than arithmetic, so these are few
    spread = square - _squared(values) / rows
    if spread <= _ALIKE * square < _LARGEST:
        shift = (sums / rows).float()
        sums, left = _sums(x - shift)
        spread = left - _squared(sums.tolist()) / rows  # without what rounding left of the mean
        if not spread > _ALIKE * left:
            return None
        values = (sums + rows * shift.double()).tolist()
        square = spread + _squared(values) / rows
    if not _SMALLEST < spread < _LARGEST > square:
        return None
    norm, mu, dead = math.sqrt(square), math.sqrt(spread), 0.0
    if 0.0 in values:  # some columns cancel, perhaps
        dead = x.amax(0).logical_or(x.amin(0)).tolist().count(False) / columns
    return norm, mu, mu / norm, dead, 0.0


def _sums(x: Tensor) -> tuple[Tensor, float]:
    """Sums of the columns, and of all squares."""
    columns = x.shape[1]
    if x.numel() < _FEW:
        exact = x.double()
        entries = exact.reshape(-1)
        return exact.sum(0), torch.dot(entries, entries).item()
    if _NARROW <= columns <= _WIDE:
        lengths, sums = vector_norm(x, dim=1), x.sum(0)
    else:
        entries = x.reshape(-1)
        end = len(entries) // _PIECE * _PIECE
        lengths = torch.cat([vector_norm(entries[:end].view(-1, _PIECE), dim=1), entries[end:]])
        sums = x.sum(0, dtype=torch.float64) if columns < _NARROW else x.sum(0)
    return sums, float(vector_norm(lengths, dtype=torch.float64)) ** 2


def _squared(values: list[float]) -> float:
    total: float = sum(map(mul, values, values))
    return total


def _out_of_range(x: Tensor) -> Numbers | None:
    """Of a matrix whose squares over- or underflow, or that is not finite or zero; None if it is none of these."""
    low, high = map(float, torch.aminmax(x))
    largest = max(-low, high)
    if not math.isfinite(low + high):
        values = x.numpy()
        broken = float(values.size - np.count_nonzero(np.isfinite(values)))
        if math.isnan(low):
            return math.nan, math.nan, math.nan, math.nan, broken
        return math.inf, math.nan, math.nan, float((values == 0).all(0).mean()), broken
    if largest == 0:
        return 0.0, 0.0, math.nan, 1.0, 0.0
    if _TINY < largest < _MODERATE[0] or largest > _MODERATE[1]:
        scale = math.ldexp(1.0, math.frexp(largest)[1])
        if (found := _in_float32(x * (1.0 / scale))) is not None:
            return found[0] * scale, found[1] * scale, *found[2:]
    return None


def _in_float64(x: Tensor) -> Tensor:
    """The five numbers of any matrix, of which float64 is divided by its largest so that no square overflows.

    With r the first row and m the mean of X - 1 r, mu^2 = ||X - 1 r - 1 m||^2, so that equal rows give exactly 0, and
    ||X||^2 = mu^2 + N ||r + m||^2, a sum without cancellation.
    """
    scale = _largest(x) if x.dtype == torch.float64 else 1.0
    pieces = x.split(max(1, _CHUNK // x.shape[1])) if x.numel() > _CHUNK else (x,)
    first = x[0].double() / scale
    mean = torch.stack([(piece.double() / scale - first).sum(0) for piece in pieces]).sum(0) / len(x)
    spread = torch.zeros_like(first)
    for piece in pieces:
        centered = (piece.double() / scale - first).sub_(mean)
        spread += centered.mul_(centered).sum(0)
    row = first + mean
    mu = spread.sum().sqrt()
    norm = (mu * mu + len(x) * (row * row).sum()).sqrt()
    dead = ((spread == 0) & (row == 0)).double().mean()
    relative, mu, norm = mu / norm, mu * scale, norm * scale
    if x.is_cpu and bool(norm.isfinite()):
        return torch.stack([norm, mu, relative, dead, torch.zeros_like(norm)])
    broken = (~x.isfinite()).sum().double()
    exact = vector_norm(x, dtype=torch.float64)  # an infinity stays one: differences made it NaN
    undefined = torch.where(broken > 0, torch.nan, 1.0)
    dead = torch.where(x.isnan().any(), torch.nan, (x == 0).all(0).double().mean())
    return torch.stack([torch.where(broken > 0, exact, norm), mu * undefined, relative * undefined, dead, broken])


def _largest(x: Tensor) -> Tensor:
    largest = x.abs().amax()
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def _number(x: Tensor, which: int) -> Tensor:
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    return torch.as_tensor(measure(x.detach())[which], dtype=torch.float64, device=x.device)
