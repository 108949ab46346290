"""What a layer returns, and the gradient that comes back to it, as a matrix with a row a node -> five numbers.

The numbers are those of `gatdiag.metrics` (`frobenius_norm`, `mu`, `relative_mu`, `dead_fraction`,
`non_finite_counts`), computed together in as few passes over the matrix as they need: this runs at every layer of
every step.
"""

import math

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
_SCALE = 2.0**64  # for what is smaller: vanishing gradients
_ALIKE = 1e-10  # below this mu^2 / norm^2 rows are alike up to what float32 can tell


def as_rows(x: Tensor) -> Tensor | None:
    """The tensor with one row a node: the last axis is the channels, all others count nodes; None for a scalar."""
    if x.dim() == 0:
        return None
    return x.unsqueeze(1) if x.dim() == 1 else x.flatten(0, -2)


class Scratch:
    """Memory that is used over and over: fresh memory of this size costs as much as the arithmetic."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._held = torch.empty(0)

    def like(self, x: Tensor) -> Tensor:
        """Uninitialised float32 memory of this shape on the CPU, until the next call."""
        if x.numel() > self._held.numel():
            self._held = torch.empty(x.numel())
        return self._held[: x.numel()].view(x.shape)


def measure(x: Tensor, scratch: Scratch | None = None) -> Tensor:
    """Norm, mu, relative mu, fraction of dead units, and number of entries that are not finite.

    float32 on the CPU is summed in float32, where that leaves six digits: no square over- or underflows, and mu is not
    much smaller than the norm. Everything else is summed in float64.

    Args:
        x: (N, d), floating.
        scratch: Memory to work in.

    Returns:
        (5,), float64 on the tensor's device.

    Example:
        >>> [round(value, 6) for value in measure(torch.tensor([[3.0, 0.0], [1.0, 0.0]])).tolist()]
        [3.162278, 1.414214, 0.447214, 0.5, 0.0]
    """
    if x.numel() == 0:
        return torch.tensor([0.0, 0.0, torch.nan, torch.nan, 0.0], dtype=torch.float64, device=x.device)
    quick = None
    if x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() and x.numel() <= _CHUNK:
        quick = _in_float32(x, scratch or Scratch())
    return _in_float64(x) if quick is None else torch.tensor(quick, dtype=torch.float64)


def _in_float32(x: Tensor, scratch: Scratch, *, is_scaled: bool = False) -> tuple[float, ...] | None:
    """The five numbers; None where float32 is not enough for them."""
    flat = x.view(-1)
    square = float(torch.dot(flat, flat))
    if square <= _SMALLEST and not is_scaled:
        scaled = _in_float32(x * _SCALE, scratch, is_scaled=True)
        return None if scaled is None else (scaled[0] / _SCALE, scaled[1] / _SCALE, *scaled[2:])
    if not _SMALLEST < square < _LARGEST:
        return None
    mean = x.mean(0)
    centred = torch.sub(x, mean, out=scratch.like(x))
    rest = centred.mean(0)  # what rounding left of the mean
    spread = float(torch.dot(centred.view(-1), centred.view(-1))) - len(x) * float(torch.dot(rest, rest))
    if spread < _ALIKE * square:
        return None
    norm, mu = math.sqrt(square), math.sqrt(spread)
    empty = (mean == 0).logical_and_(x[0] == 0)
    if bool(empty.any()):  # sums of absolute values are 0 only where every entry is
        empty.logical_and_(centred.abs_().sum(0) == 0)
    return norm, mu, mu / norm, float(empty.sum()) / x.shape[1], 0.0


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
