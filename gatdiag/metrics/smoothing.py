"""mu: how different the rows of X are from each other; its decay with depth is oversmoothing.

For node representations X^(l) it is the representation similarity of a layer, for dLoss/dX^(l) the gradient
similarity. A small mu can also mean that X as a whole vanishes, so mu is read beside ||X||_F, or as `relative_mu`.
"""

import torch
from torch import Tensor

from gatdiag.errors import InputError


def mu(x: Tensor, *, batch: Tensor | None = None, num_graphs: int | None = None, mask: Tensor | None = None) -> Tensor:
    """Distance of X from having all rows equal: mu(X) = ||X - 1 gamma||_F with gamma = 1^T X / N.

    0 exactly if all rows are equal, and mu(X + Y) <= mu(X) + mu(Y). mu^2 = 1/(2N) sum_uv ||x_u - x_v||^2. It scales
    with X and does not change when one row vector is added to all rows.

    Args:
        x: (N, d), node representations or their gradient.
        batch: (N,), the graph of each node; None: one graph.
        num_graphs: How many graphs. None: the largest entry of `batch` plus one, which waits for the device.
        mask: (N,), boolean: only these nodes exist.

    Returns:
        0-d, or (num_graphs,) with `batch`. 0 for no node or a single one; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes.

    Source:
        Park & Kim, arXiv 2410.04824; Wu et al., "Demystifying Oversmoothing in Attention-Based Graph Neural
        Networks", NeurIPS 2023.

    Example:
        >>> mu(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0], [1.0, 2.0]])).item()
        2.0
    """
    rows, scale = _scaled(x, batch, num_graphs, mask)
    return _mu(rows, batch, num_graphs, mask) * scale


def relative_mu(
    x: Tensor, *, batch: Tensor | None = None, num_graphs: int | None = None, mask: Tensor | None = None
) -> Tensor:
    """mu(X) / ||X||_F in [0, 1]: 0 if all rows are equal, 1 if the mean row is zero. It does not depend on X's scale.

    It goes to 0 with depth only where the aggregation drives X to constant rows (a row-stochastic matrix, as GAT's in
    the forward direction). For other aggregations use `relative_mu_against`.

    Args:
        x: (N, d).
        batch: As in `mu`.
        num_graphs: As in `mu`.
        mask: As in `mu`.

    Returns:
        0-d, or (num_graphs,). NaN (undefined) if X is zero or empty; NaN if x holds a NaN or an infinity.

    Source:
        Park & Kim, arXiv 2410.04824; relative form after its reviews.

    Example:
        >>> round(relative_mu(torch.tensor([[1.0], [3.0]])).item(), 6)
        0.447214
    """
    rows, _ = _scaled(x, batch, num_graphs, mask)
    return _mu(rows, batch, num_graphs, mask) / _norm(rows, batch, num_graphs, mask)


def mu_against(
    x: Tensor,
    direction: Tensor,
    *,
    batch: Tensor | None = None,
    num_graphs: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """mu_v(X) = ||X - v v^T X||_F: the distance of X from having every column proportional to a direction v.

    With v constant it is `mu`. What repeated aggregation by a matrix leaves of X is proportional to its dominant
    eigenvector: sqrt(degree) for GCN; for the gradients of a row-stochastic aggregation the stationary distribution
    (see `direction`). On a graph of several components give the components as `batch`.

    Args:
        x: (N, d).
        direction: (N,), of any scale: it is normalized within each graph. Zero: nothing is projected out.
        batch: As in `mu`.
        num_graphs: As in `mu`.
        mask: As in `mu`.

    Returns:
        0-d, or (num_graphs,). Rounding (about 1e-16 ||X||_F) if X's columns are proportional to v; NaN if x or v holds
        a NaN or an infinity.

    Raises:
        InputError: `x` does not have two axes, or `direction` not one entry a node.

    Source:
        The energy E_Proj of Zhang et al., arXiv 2502.04591; for v constant Park & Kim, arXiv 2410.04824.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> round(mu_against(x, torch.tensor([1.0, 2.0])).item(), 12), mu_against(x, torch.tensor([1.0, 0.0])).item()
        (0.0, 2.0)
    """
    rows, scale = _scaled(x, batch, num_graphs, mask)
    return _mu_against(rows, direction, batch, num_graphs, mask) * scale


def relative_mu_against(
    x: Tensor,
    direction: Tensor,
    *,
    batch: Tensor | None = None,
    num_graphs: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """mu_v(X) / ||X||_F in [0, 1]: 0 if every column of X is proportional to v, 1 if every column is orthogonal to it.

    Args:
        x: (N, d).
        direction: (N,), as in `mu_against`.
        batch: As in `mu`.
        num_graphs: As in `mu`.
        mask: As in `mu`.

    Returns:
        0-d, or (num_graphs,). NaN (undefined) if X is zero or empty; NaN if x or v holds a NaN or an infinity.

    Source:
        As `mu_against`.

    Example:
        >>> round(relative_mu_against(torch.tensor([[3.0], [4.0]]), torch.tensor([1.0, 0.0])).item(), 12)
        0.8
    """
    rows, _ = _scaled(x, batch, num_graphs, mask)
    return _mu_against(rows, direction, batch, num_graphs, mask) / _norm(rows, batch, num_graphs, mask)


def _mu(rows: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None) -> Tensor:
    shifted = rows - _minimum(rows, batch, num_graphs, mask)  # equal rows become exact zeros
    count = _total(torch.ones_like(rows[:, :1]), batch, num_graphs, mask).clamp(min=1)
    centered = shifted - _spread(_total(shifted, batch, num_graphs, mask) / count, batch)
    return _norm(centered, batch, num_graphs, mask)


def _mu_against(
    rows: Tensor, direction: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None
) -> Tensor:
    if direction.shape != rows.shape[:1]:
        raise InputError(f"a direction of shape ({len(rows)},) was expected, got {tuple(direction.shape)}")
    axis, _ = _scaled(direction.unsqueeze(1), batch, num_graphs, mask)
    length = _norm(axis, batch, num_graphs, mask).unsqueeze(-1)
    axis = axis / _spread(torch.where(length == 0, 1.0, length), batch)
    along = _total(axis * rows, batch, num_graphs, mask)
    return _norm(rows - axis * _spread(along, batch), batch, num_graphs, mask)


def _scaled(
    x: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | float]:
    """X in float64, and its largest entry (one a graph) that it was divided by where squares could overflow."""
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    if x.dtype != torch.float64 or x.numel() == 0:
        return x.double(), 1.0
    sizes = x.detach().abs().amax(1)
    sizes = sizes if mask is None else torch.where(mask, sizes, 0.0)
    if batch is None:
        largest = sizes.amax()
    else:
        largest = sizes.new_zeros(_size(batch, num_graphs)).scatter_reduce(0, batch, sizes, "amax")
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return x / (scale if batch is None else scale[batch].unsqueeze(1)), scale


def _size(batch: Tensor, num_graphs: int | None) -> int:
    return num_graphs if num_graphs is not None else int(batch.max()) + 1 if batch.numel() else 0


def _total(values: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None) -> Tensor:
    if mask is not None:
        values = torch.where(mask.unsqueeze(1), values, 0.0)
    if batch is None:
        return values.sum(0)
    return values.new_zeros(_size(batch, num_graphs), values.shape[1]).index_add(0, batch, values)


def _minimum(values: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None) -> Tensor:
    if mask is not None:
        values = torch.where(mask.unsqueeze(1), values, torch.inf)
    if len(values) == 0:
        return values
    if batch is None:
        return values.amin(0)
    lowest = values.new_full((_size(batch, num_graphs), values.shape[1]), torch.inf)
    return lowest.scatter_reduce(0, batch.unsqueeze(1).expand_as(values), values, "amin")[batch]


def _spread(of_graph: Tensor, batch: Tensor | None) -> Tensor:
    return of_graph if batch is None else of_graph[batch]


def _norm(values: Tensor, batch: Tensor | None, num_graphs: int | None, mask: Tensor | None) -> Tensor:
    return _total(values.square().sum(1, keepdim=True), batch, num_graphs, mask).squeeze(-1).sqrt()
