"""Effective and numerical rank: the number of directions in which the rows of X spread.

Both fall to 1 when all rows become proportional to one vector, even if mu and the energies do not change, and neither
depends on the scale of X. They need all singular values, O(N d^2) for N nodes and d <= N channels, which is more
expensive than the other metrics, and synchronize with the device: compute them every few steps only.

For float64, singular values are those of X itself. For float32 and lower precision, they are the roots of the
eigenvalues of X^T X in float64, in a fifth of the time; values below about 1e-7 of the largest, the rounding error of
float32, count as zero.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["Ranks", "ranks"]


class Ranks(NamedTuple):
    """What `ranks` computes, 0-d each."""

    effective_rank: Tensor
    numerical_rank: Tensor


def ranks(x: Tensor) -> Ranks:
    """Effective rank exp(- sum_k p_k log p_k), p_k = sigma_k / sum sigma, and numerical rank ||X||_F^2 / ||X||_2^2.

    Both are in [1, rank X]: k equal nonzero singular values give k; one that dominates all others gives 1. The
    numerical (stable) rank is less sensitive to small singular values.

    Args:
        x: (N, d), node representations, their gradient, or a weight.

    Returns:
        0 if X is zero or empty; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Roy & Vetterli, "The Effective Rank", EUSIPCO 2007; Rudelson & Vershynin, "Sampling from large matrices", JACM
        2007; for oversmoothing, Zhang et al., arXiv 2502.04591.

    Example:
        >>> [round(rank.item(), 6) for rank in ranks(torch.diag(torch.tensor([1.0, 1.0, 0.0])))]
        [2.0, 2.0]
    """
    sigma = _singular_values(x)
    total = sigma.sum()
    effective = torch.special.entr(sigma / torch.where(total == 0, 1.0, total)).sum().exp()
    largest = sigma.amax() if len(sigma) else total
    numerical = (sigma / torch.where(largest == 0, 1.0, largest)).square().sum()
    return Ranks(torch.where(total == 0, 0.0, effective), numerical)


def _singular_values(x: Tensor) -> Tensor:
    """Singular values; NaN if the matrix is not finite, for which the decomposition would fail."""
    if x.dim() != 2:
        raise InputError(f"expected x of shape (nodes, channels), got {tuple(x.shape)}; flatten or unsqueeze it")
    finite = x.isfinite().all()
    rows = torch.where(finite, x.double(), 0.0)
    if x.dtype == torch.float64 or not x.numel():
        return torch.where(finite, torch.linalg.svdvals(rows), torch.nan)
    squares = torch.linalg.eigvalsh(rows.mT @ rows if len(rows) > rows.shape[1] else rows @ rows.mT)
    rounding = len(squares) * torch.finfo(torch.float64).eps * squares[-1]
    return torch.where(finite, torch.where(squares > rounding, squares, 0.0).sqrt(), torch.nan)
