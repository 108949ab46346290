"""What a layer returns, and the gradient that comes back to it, as a matrix with a row a node -> five numbers.

The numbers are those of `gatdiag.metrics` (`frobenius_norm`, `mu`, `relative_mu`, `dead_fraction`,
`non_finite_counts`), computed together in as few passes over the matrix as they need: this runs at every layer of
every step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

COLUMNS = ("output_norm", "mu", "relative_mu", "dead_fraction", "non_finite")
GRADIENT_COLUMNS = (
    "output_gradient_norm",
    "gradient_mu",
    "relative_gradient_mu",
    "gradient_dead_fraction",
    "gradient_non_finite",
)

_CHUNK = 1 << 22  # entries that are held in float64 at a time
_SMALLEST, _LARGEST = 1e-28, 1e30  # squared norms between which float32 neither under- nor overflows
_ALIKE = 1e-10  # below this mu^2 / norm^2 rows are alike up to what float32 can tell


def as_rows(x: Tensor) -> Tensor | None:
    """The tensor with one row a node: the last axis is the channels, all others count nodes; None for a scalar."""
    if x.dim() == 0:
        return None
    return x.unsqueeze(1) if x.dim() == 1 else x.flatten(0, -2)


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each column, of which the five numbers are made later, for all layers at once."""

    rows: int
    mean: Tensor
    variance: Tensor


Measured: TypeAlias = Tensor | Moments


def measure(x: Tensor) -> Measured:
    """What the five numbers are made of.

    On the CPU float32 is measured by the kernel that batch norm takes its statistics with, where that leaves five
    digits: no square over- or underflows, and mu is not much smaller than the norm. A unit is then dead below 1e-22 of
    what is largest. Everything else is summed in float64.

    Args:
        x: (N, d), floating.

    Returns:
        The five numbers, (5,), float64; or moments, for `finished`.

    Example:
        >>> [round(value, 6) for value in finished([measure(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))])[0].tolist()]
        [3.162278, 1.414214, 0.447214, 0.5, 0.0]
    """
    if x.numel() == 0:
        return torch.tensor([0.0, 0.0, math.nan, math.nan, 0.0], dtype=torch.float64)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return _in_float64(x)
    mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    spread, square = float(variance.sum()), float(mean.dot(mean))
    if _ALIKE * (spread + square) < spread < _LARGEST > square and len(x) * (spread + square) > _SMALLEST:
        return Moments(len(x), mean, variance)
    return _in_float64(x)


def finished(measured: Sequence[Measured]) -> Tensor:
    """The five numbers of each, (layers, 5), float64: norm, mu, relative mu, dead fraction, count of not finite."""
    found: list[Tensor | None] = [None if isinstance(item, Moments) else item for item in measured]
    by_width: dict[int, list[int]] = {}
    for position, item in enumerate(measured):
        if isinstance(item, Moments):
            by_width.setdefault(len(item.mean), []).append(position)
    for positions in by_width.values():
        items = [item for position in positions if isinstance(item := measured[position], Moments)]
        for position, numbers in zip(positions, _combined(items), strict=True):
            found[position] = numbers
    return torch.stack([numbers for numbers in found if numbers is not None])


def _combined(items: Sequence[Moments]) -> Tensor:
    mean = torch.stack([item.mean for item in items]).double()
    variance = torch.stack([item.variance for item in items]).double()
    rows = torch.tensor([item.rows for item in items], dtype=torch.float64)
    spread = rows * variance.sum(1)
    mu, norm = spread.sqrt(), (spread + rows * mean.square_().sum(1)).sqrt()
    dead = (variance + mean == 0).double().mean(1)
    return torch.stack([norm, mu, mu / norm, dead, torch.zeros_like(norm)], 1)


def _in_float64(x: Tensor) -> Tensor:
    """The five numbers of any matrix.

    With r the first row and m the mean of X - 1 r, mu^2 = ||X - 1 r - 1 m||^2, so that equal rows give exactly 0, and
    ||X||^2 = mu^2 + N ||r + m||^2, a sum without cancellation.
    """
    pieces = x.split(max(1, _CHUNK // x.shape[1])) if x.numel() > _CHUNK else (x,)
    first = x[0].double()
    mean = _mean(pieces, first, len(x))
    spread = torch.zeros_like(mean)
    for piece in pieces:
        centred = (piece.double() - first).sub_(mean)
        spread += centred.mul_(centred).sum(0)
    row = first + mean
    mu = spread.sum().sqrt()
    norm = (mu * mu + len(x) * (row * row).sum()).sqrt()
    dead = ((spread == 0) & (row == 0)).double().mean()
    broken = _non_finite(x, norm)
    if broken is None:
        return torch.stack([norm, mu, mu / norm, dead, torch.zeros_like(norm)])
    exact = torch.linalg.vector_norm(x, dtype=torch.float64)  # an infinity stays one: differences made it NaN
    undefined = torch.where(broken > 0, torch.nan, 1.0)
    dead = torch.where(x.isnan().any(), torch.nan, (x == 0).all(0).double().mean())
    return torch.stack([torch.where(broken > 0, exact, norm), mu * undefined, mu / norm * undefined, dead, broken])


def _mean(pieces: tuple[Tensor, ...], first: Tensor, count: int) -> Tensor:
    total = torch.zeros_like(first)
    for piece in pieces:
        total += (piece.double() - first).sum(0)
    return total / count


def _non_finite(x: Tensor, norm: Tensor) -> Tensor | None:
    """How many entries are not finite; None if a finite norm on the CPU says that there are none."""
    if x.device.type == "cpu" and bool(norm.isfinite()):
        return None
    return (~x.isfinite()).sum().double()
