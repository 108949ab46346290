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
_CACHED = 1 << 18  # entries that are shifted at a time
_SMALLEST, _LARGEST = 1e-28, 1e30  # squared norms between which float32 neither under- nor overflows
_ALIKE = 1e-4  # below this mu^2 / norm^2 the rounding of the mean shows in mu
_CHAIN = 256  # rows that float32 adds up one after the other: rounding grows with it


def as_rows(x: Tensor) -> Tensor | None:
    """The tensor with one row a node: the last axis is the channels, all others count nodes; None for a scalar."""
    if x.dim() == 0:
        return None
    return x.unsqueeze(1) if x.dim() == 1 else x.flatten(0, -2)


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each column, of which the five numbers are made later, for all layers at once.

    Attributes:
        lengths: The rows are dealt out to groups of these many.
        shift: (d,), what was taken from each row; None: nothing.
        mean: (groups, d), of what was left.
        variance: (groups, d).
    """

    lengths: tuple[int, ...]
    shift: Tensor | None
    mean: Tensor
    variance: Tensor


Measured: TypeAlias = Tensor | Moments


def measure(x: Tensor) -> Measured:
    """What the five numbers are made of.

    On the CPU float32 is measured by the kernel that batch norm takes its statistics with, in groups of few rows, and
    where mu is much smaller than the norm once more after taking the mean away: that leaves six digits of mu, five of
    the norm. A unit is then dead below 1e-22 of what is largest. All else is summed in float64, and so is float32 whose
    squares over- or underflow, or whose rows are alike to the last digits.

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
    moments = _moments(x, None)
    spread, square = _sizes(moments)
    if square < _LARGEST and spread <= _ALIKE * square:
        moments = _shifted_moments(x, moments.mean.mean(0))
        spread, square = _sizes(moments)
    if _ALIKE * square < spread < _LARGEST > square and len(x) * spread > _SMALLEST:
        return moments
    return _in_float64(x)


def _moments(x: Tensor, shift: Tensor | None) -> Moments:
    rows, width = x.shape
    groups = max(1, rows // _CHAIN)
    length, left = divmod(rows, groups)
    whole = x[: rows - left] if left else x
    mean, variance = torch.batch_norm_update_stats(whole.reshape(length, groups * width), None, None, 0.0)
    lengths = (length,) * groups
    if left:
        last_mean, last_variance = torch.batch_norm_update_stats(x[rows - left :], None, None, 0.0)
        mean, variance, lengths = torch.cat([mean, last_mean]), torch.cat([variance, last_variance]), (*lengths, left)
    return Moments(lengths, shift, mean.view(-1, width), variance.view(-1, width))


def _shifted_moments(x: Tensor, shift: Tensor) -> Moments:
    pieces = x.split(max(1, _CACHED // x.shape[1])) if x.numel() > _CACHED else (x,)
    found = [_moments(piece - shift, shift) for piece in pieces]
    if len(found) == 1:
        return found[0]
    lengths = tuple(length for moments in found for length in moments.lengths)
    mean, variance = torch.cat([part.mean for part in found]), torch.cat([part.variance for part in found])
    return Moments(lengths, shift, mean, variance)


def _sizes(moments: Moments) -> tuple[float, float]:
    """About the variance, and the squared mean, of a row."""
    groups, mean = len(moments.lengths), moments.mean.view(-1)
    return float(moments.variance.sum()) / groups, float(mean.dot(mean)) / groups


def finished(measured: Sequence[Measured]) -> Tensor:
    """The five numbers of each, (layers, 5), float64: norm, mu, relative mu, dead fraction, count of not finite."""
    found: list[Tensor | None] = [None if isinstance(item, Moments) else item for item in measured]
    by_shape: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for position, item in enumerate(measured):
        if isinstance(item, Moments):
            by_shape.setdefault((item.lengths, item.mean.shape[1]), []).append(position)
    for positions in by_shape.values():
        items = [item for position in positions if isinstance(item := measured[position], Moments)]
        for position, numbers in zip(positions, _combined(items), strict=True):
            found[position] = numbers
    return torch.stack([numbers for numbers in found if numbers is not None])


def _combined(items: Sequence[Moments]) -> Tensor:
    lengths = torch.tensor(items[0].lengths, dtype=torch.float64)
    rows = lengths.sum()
    variances = torch.stack([item.variance for item in items])
    means = torch.stack([item.mean for item in items]).double()
    mean = lengths @ means / rows
    apart = (means - mean.unsqueeze(1)).square_().sum(2)
    spread = (variances.sum(2).double() + apart) @ lengths
    mean += torch.stack([mean.new_zeros(mean.shape[1]) if item.shift is None else item.shift for item in items])
    mu, norm = spread.sqrt(), (spread + rows * mean.square().sum(1)).sqrt()
    dead = ((variances == 0).all(1) & (means == 0).all(1) & (mean == 0)).double().mean(1)
    return torch.stack([norm, mu, mu / norm, dead, torch.zeros_like(norm)], 1)


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
    broken = _non_finite(x, norm)
    if broken is None:
        return torch.stack([norm, mu, relative, dead, torch.zeros_like(norm)])
    exact = torch.linalg.vector_norm(x, dtype=torch.float64)  # an infinity stays one: differences made it NaN
    undefined = torch.where(broken > 0, torch.nan, 1.0)
    dead = torch.where(x.isnan().any(), torch.nan, (x == 0).all(0).double().mean())
    return torch.stack([torch.where(broken > 0, exact, norm), mu * undefined, relative * undefined, dead, broken])


def _largest(x: Tensor) -> Tensor:
    largest = x.abs().amax()
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def _non_finite(x: Tensor, norm: Tensor) -> Tensor | None:
    """How many entries are not finite; None if a finite norm on the CPU says that there are none."""
    if x.device.type == "cpu" and bool(norm.isfinite()):
        return None
    return (~x.isfinite()).sum().double()
