"""How alike the rows of X are: mu, and what else the moments of a layer's output show, in one pass over it.

For node representations X^(l), mu is the representation similarity of a layer, for dLoss/dX^(l) the gradient
similarity; its decay with depth is oversmoothing. A small mu can also mean that X as a whole vanishes, so it is read
beside ||X||_F, or as `relative_mu`.

`measure` and `finish` are what a recorder runs at every layer of every step; `mu`, `relative_mu` and `dead_fraction`
are single numbers of them. On the CPU, float32 is measured by the kernel that batch norm takes its statistics with, in
groups of few rows, and where mu is much smaller than the norm once more after taking the mean away: that leaves six
digits of mu, five of the norm, and a unit is dead below 1e-22 of what is largest. All else is summed in float64, and so
is float32 whose squares over- or underflow, or whose rows are alike to the last digits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag.errors import InputError

__all__ = [
    "ColumnMoments",
    "as_rows",
    "dead_fraction",
    "finish",
    "measure",
    "mu",
    "relative_mu",
]

_CHUNK = 1 << 22  # entries that are held in float64 at a time
_CACHED = 1 << 18  # entries that are shifted at a time
_SMALLEST, _LARGEST = 1e-28, 1e30  # squared norms between which float32 neither under- nor overflows
_MODERATE = 1e-13, 1e13  # largest entries between which squares are within float32 anyway
_TINY = 1e-30  # entries below this cannot be scaled up
_ALIKE = 1e-4  # below this mu^2 / norm^2 the rounding of the mean shows in mu
_CHAIN = 256  # rows that float32 adds up one after the other: rounding grows with it


@dataclass(frozen=True, slots=True)
class ColumnMoments:
    """Mean and variance of each column, of which the five numbers are made later, for all layers at once.

    Attributes:
        lengths: The rows are dealt out to groups of these many.
        width: d.
        means: Of each group, float32 of shapes (some groups * d,); of what the shift leaves.
        variances: The same.
        shift: (d,), what was taken from each row; None: nothing.
        scale: A power of two that all of these are to be multiplied by.
    """

    lengths: tuple[int, ...]
    width: int
    means: tuple[Tensor, ...]
    variances: tuple[Tensor, ...]
    shift: Tensor | None = None
    scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(part.nbytes for part in (*self.means, *self.variances))


Measured: TypeAlias = Tensor | ColumnMoments


def as_rows(x: Tensor) -> Tensor:
    """The tensor with one row a node: the last axis is the channels, all others count nodes; a scalar is one entry."""
    axes = x.dim()
    if axes == 2:
        return x
    return x.reshape(-1, 1) if axes < 2 else x.flatten(0, -2)


def measure(x: Tensor) -> Measured:
    """Moments of X, of which `finish` makes the five numbers for all layers together.

    Args:
        x: (N, d), floating: a layer's output, or the gradient that comes back to it. It is not differentiated.

    Returns:
        For `finish`: the moments, or the five numbers themselves, (5,), on the device of `x`.

    Example:
        >>> [round(value, 6) for value in finish([measure(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))])[0].tolist()]
        [3.162278, 1.414214, 0.447214, 0.5, 0.0]
    """
    if x.numel() == 0:
        return torch.tensor([0.0, 0.0, math.nan, math.nan, 0.0], dtype=torch.float64)
    if x.dtype is not torch.float32 or not x.is_cpu:
        return _in_float64(x)
    for attempt in (_in_float32, _out_of_range):
        if (found := attempt(x)) is not None:
            return found
    return _in_float64(x)


def finish(measured: Sequence[Measured]) -> Any:
    """The five numbers of each matrix: norm, mu, relative mu, dead fraction, and how many entries are not finite.

    Args:
        measured: What `measure` returned of each.

    Returns:
        (matrices, 5), float64; an array, or a tensor where one of them is on another device than the CPU.
        ||X||_F is infinite if X holds an infinity and no NaN. mu, the relative mu (0 / 0 where X is zero) and, for NaN
        alone, the dead fraction are NaN where an entry is not finite.
    """
    away = next((item.device for item in measured if isinstance(item, Tensor) and not item.is_cpu), None)
    if away is not None:
        return torch.stack([item.to(away) if isinstance(item, Tensor) else _alone(item).to(away) for item in measured])
    table = np.empty((len(measured), 5))
    alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for position, item in enumerate(measured):
        if isinstance(item, ColumnMoments):
            alike.setdefault((item.lengths, item.width), []).append(position)
        else:
            table[position] = item.numpy()
    for positions in alike.values():
        table[positions] = _combined([measured[position] for position in positions])
    return table


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


def _in_float32(x: Tensor) -> ColumnMoments | None:
    """None where squares over- or underflow, and where the rows are alike to the last digits."""
    moments = _moments(x)
    spread, square = _sizes(moments)
    if square < _LARGEST and spread <= _ALIKE * square:
        moments = _shifted_moments(x, moments)
        spread, square = _sizes(moments)
    is_within = _ALIKE * square < spread < _LARGEST > square and len(x) * spread > _SMALLEST
    return moments if is_within else None


def _out_of_range(x: Tensor) -> Measured | None:
    """Of a matrix whose squares over- or underflow, or that is not finite or zero; None if it is none of these."""
    x = x.detach()
    low, high = map(float, torch.aminmax(x))
    largest = max(-low, high)
    if not math.isfinite(low + high):
        values = x.numpy()
        broken = float(values.size - np.count_nonzero(np.isfinite(values)))
        if math.isnan(low):
            return torch.tensor([*[math.nan] * 4, broken], dtype=torch.float64)
        dead = float((values == 0).all(0).mean())
        return torch.tensor([math.inf, math.nan, math.nan, dead, broken], dtype=torch.float64)
    if largest == 0:
        return torch.tensor([0.0, 0.0, math.nan, 1.0, 0.0], dtype=torch.float64)
    if _TINY < largest < _MODERATE[0] or largest > _MODERATE[1]:
        scale = math.ldexp(1.0, math.frexp(largest)[1])
        found = _in_float32(x * (1.0 / scale))
        return None if found is None else replace(found, scale=scale)
    return None


def _moments(x: Tensor) -> ColumnMoments:
    rows, width = x.shape
    groups = max(1, rows // _CHAIN)
    length, left = divmod(rows, groups)
    whole = x[: rows - left] if left else x
    mean, variance = torch.batch_norm_update_stats(whole.reshape(length, groups * width), None, None, 0.0)
    if not left:
        return ColumnMoments((length,) * groups, width, (mean,), (variance,))
    rest = x[rows - left :].detach().flatten().clone()
    return ColumnMoments((length,) * groups + (1,) * left, width, (mean, rest), (variance, torch.zeros_like(rest)))


def _shifted_moments(x: Tensor, first: ColumnMoments) -> ColumnMoments:
    """Of X less about its mean row."""
    shift = first.means[0].view(-1, first.width).mean(0)
    pieces = x.split(max(1, _CACHED // x.shape[1])) if x.numel() > _CACHED else (x,)
    found = [_moments(piece - shift) for piece in pieces]
    return ColumnMoments(
        tuple(length for moments in found for length in moments.lengths),
        first.width,
        tuple(part for moments in found for part in moments.means),
        tuple(part for moments in found for part in moments.variances),
        shift,
    )


def _sizes(moments: ColumnMoments) -> tuple[float, float]:
    """About the variance, and the squared mean, of a row."""
    spread = sum(part.sum().item() for part in moments.variances)
    square = sum(part.dot(part).item() for part in moments.means)
    varied = sum(length > 1 for length in moments.lengths)
    return spread / max(1, varied), square / len(moments.lengths)


def _combined(items: Sequence[Any]) -> NDArray[np.float64]:
    """The five numbers of matrices of one shape."""
    lengths = np.array(items[0].lengths, dtype=np.float64)
    rows = lengths.sum()
    variances = np.array([_joined(item.variances, item.width) for item in items])
    means = np.array([_joined(item.means, item.width) for item in items], dtype=np.float64)
    mean = lengths @ means / rows
    apart = means - mean[:, np.newaxis]
    spread = (variances.sum(2) + np.einsum("ngd,ngd->ng", apart, apart)) @ lengths
    dead = ~(variances.any(1) | means.any(1))
    for row, item in zip(mean, items, strict=True):
        if item.shift is not None:
            row += item.shift.numpy()
    table = np.zeros((len(items), 5))
    table[:, 0] = np.sqrt(spread + rows * np.einsum("nd,nd->n", mean, mean))
    table[:, 1] = np.sqrt(spread)
    table[:, 2] = table[:, 1] / table[:, 0]
    table[:, 3] = (dead & (mean == 0)).mean(1)
    table[:, :2] *= np.array([[item.scale] for item in items])
    return table


def _joined(parts: tuple[Tensor, ...], width: int) -> NDArray[np.float32]:
    """(groups, d)."""
    joined: NDArray[np.float32] = (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy()
    return joined.reshape(-1, width)


def _alone(item: ColumnMoments) -> Tensor:
    return torch.from_numpy(_combined([item])[0])


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
    exact = torch.linalg.vector_norm(x, dtype=torch.float64)  # an infinity stays one: differences made it NaN
    undefined = torch.where(broken > 0, torch.nan, 1.0)
    dead = torch.where(x.isnan().any(), torch.nan, (x == 0).all(0).double().mean())
    return torch.stack([torch.where(broken > 0, exact, norm), mu * undefined, relative * undefined, dead, broken])


def _largest(x: Tensor) -> Tensor:
    largest = x.detach().abs().amax() if x.numel() else x.new_zeros(())
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def _number(x: Tensor, which: int) -> Tensor:
    return torch.as_tensor(finish([measure(_matrix(x).detach())])[0][which], dtype=torch.float64, device=x.device)


def _matrix(x: Tensor) -> Tensor:
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    return x
