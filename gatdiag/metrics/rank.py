"""Effective and numerical rank: in how many directions the rows of X still spread.

Both fall to 1 when all rows become proportional to one vector, also where mu and the energies do not move, and neither
depends on the scale of X. They need all singular values, O(N d^2) for N nodes and d <= N channels, which costs more
than any other metric here, and the decomposition waits for the device; they are for every few steps, not for each.
"""

import torch
from torch import Tensor

from gatdiag.errors import InputError


def effective_rank(
    x: Tensor, *, batch: Tensor | None = None, num_graphs: int | None = None, mask: Tensor | None = None
) -> Tensor:
    """Effective rank: exp( - sum_k p_k log p_k ), p_k = sigma_k / sum sigma, in [1, rank X].

    k equal singular values and no others give k; one dominating all others gives 1.

    Args:
        x: (N, d), node representations, their gradient, or a weight.
        batch: (N,), the graph of each node; None: one graph. Memory is then graphs times largest graph times d.
        num_graphs: How many graphs. None: the largest entry of `batch` plus one.
        mask: (N,), boolean: only these nodes exist.

    Returns:
        0-d, or (num_graphs,) with `batch`. 0 if X is zero or empty; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Roy & Vetterli, "The Effective Rank", EUSIPCO 2007; Zhang et al., arXiv 2502.04591, for oversmoothing.

    Example:
        >>> round(effective_rank(torch.eye(3)).item(), 6), round(effective_rank(torch.ones(5, 3)).item(), 6)
        (3.0, 1.0)
    """
    sigma = _singular_values(x, batch, num_graphs, mask)
    total = sigma.sum(-1, keepdim=True)
    share = sigma / torch.where(total == 0, 1.0, total)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) == 0, 0.0, rank)


def numerical_rank(
    x: Tensor, *, batch: Tensor | None = None, num_graphs: int | None = None, mask: Tensor | None = None
) -> Tensor:
    """Numerical (stable) rank: ||X||_F^2 / ||X||_2^2, in [1, rank X], and less moved by small singular values.

    Args:
        x: (N, d).
        batch: As in `effective_rank`.
        num_graphs: As in `effective_rank`.
        mask: As in `effective_rank`.

    Returns:
        0-d, or (num_graphs,). 0 if X is zero or empty; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Rudelson & Vershynin, "Sampling from large matrices", JACM 2007; Zhang et al., arXiv 2502.04591.

    Example:
        >>> round(numerical_rank(torch.diag(torch.tensor([2.0, 1.0]))).item(), 12)
        1.25
    """
    sigma = _singular_values(x, batch, num_graphs, mask)
    if sigma.shape[-1] == 0:
        return sigma.sum(-1)
    largest = sigma.amax(-1, keepdim=True)
    share = sigma / torch.where(largest == 0, 1.0, largest)
    return share.square().sum(-1)


def _singular_values(x: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None) -> Tensor:
    """(..., k), NaN where the matrix is not finite, on which the decomposition itself would fail."""
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    rows = x.double()
    if mask is not None:
        rows = torch.where(mask.unsqueeze(1), rows, 0.0)  # rows of zeros leave the singular values as they are
    matrix = rows if batch is None else _stacked(rows, batch, num_graphs)
    finite = matrix.isfinite().flatten(-2).all(-1)
    sigma = torch.linalg.svdvals(torch.where(finite[..., None, None], matrix, 0.0))
    return torch.where(finite.unsqueeze(-1), sigma, torch.nan)


def _stacked(rows: Tensor, batch: Tensor, num_graphs: int | None) -> Tensor:
    """(graphs, nodes of the largest, d): each graph's rows one below the other, the rest zeros."""
    order = batch.argsort(stable=True)
    sizes = batch.bincount(minlength=num_graphs or 0)
    place = torch.arange(len(batch), device=batch.device) - (sizes.cumsum(0) - sizes)[batch[order]]
    largest = int(sizes.max()) if len(sizes) else 0
    stacked = rows.new_zeros(len(sizes), largest, rows.shape[1])
    stacked[batch[order], place] = rows[order]
    return stacked
