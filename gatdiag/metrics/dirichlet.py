"""Dirichlet energy: how much X differs across edges. Its decay with depth is oversmoothing, as the decay of mu is.

How edges count:

- Edges are (source, target) as in torch-geometric, and each stored entry counts one half. An undirected edge, stored in
  both directions, therefore counts once, and a directed graph is measured as (A + A^T) / 2.
- A weight multiplies its entry. Self loops add nothing to the sum; they count in degrees only.
- The degree of a node is half its incoming plus half its outgoing weights, a self loop counting once.

The measure of the survey on oversmoothing (Rusch, Bronstein & Mishra, arXiv 2303.10993), which takes each stored entry
once and the mean over nodes, is sqrt(2 E / N) with E the unnormalized energy of N nodes.
"""

from typing import Literal

import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["dirichlet_energy", "rayleigh_quotient"]

Laplacian = Literal["unnormalized", "symmetric"]

_CHUNK = 1 << 15  # differences held at a time, so that they stay in a CPU's cache; elsewhere 512 times as many


def dirichlet_energy(
    x: Tensor,
    edge_index: Tensor,
    *,
    edge_weight: Tensor | None = None,
    laplacian: Laplacian = "unnormalized",
    self_loops: bool = True,
) -> Tensor:
    """Dirichlet energy, tr(X^T L X), computed from differences, so that it keeps its digits as it goes to 0.

        unnormalized   E(X) = 1/2 sum_(i,j) w_ij ||x_i - x_j||^2                         L = D - A
        symmetric      E(X) = 1/2 sum_(i,j) w_ij ||x_i / sqrt(d_i) - x_j / sqrt(d_j)||^2 L = I - D^-1/2 A D^-1/2

    The unnormalized energy is 0 exactly if X is constant on each component, the symmetric one if each column is
    proportional to sqrt(degree) there, which is what GCN's aggregation leads to. Choose the one that fits the model's
    aggregation. Both scale with X squared.

    Args:
        x: (N, d), node representations or their gradient.
        edge_index: (2, E).
        edge_weight: (E,); None: all 1.
        laplacian: Which of the two.
        self_loops: For `symmetric`: degrees count one self loop of weight 1 at each node that has none (the D~ of GCN;
            d_i = 1 + degree in Cai & Wang). It makes no difference to `unnormalized`.

    Returns:
        0-d. 0 without edges. In `symmetric`, a node of degree 0 adds nothing and a negative degree gives NaN. NaN if x
        holds a NaN or an infinity, at isolated nodes too, or if a weight is NaN.

    Raises:
        InputError: The shapes of `x`, `edge_index` and `edge_weight` do not fit, or `laplacian` is not one of the two.

    Source:
        Cai & Wang, "A Note on Over-Smoothing for Graph Neural Networks", arXiv 2006.13318 (symmetric).

    Example:
        >>> x, path = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> dirichlet_energy(x, path).item()
        5.0
        >>> round(dirichlet_energy(x, path, laplacian="symmetric").item(), 6)  # degrees 2, 3, 2
        2.717177
    """
    weight = _checked_weight(x, edge_index, edge_weight)
    if laplacian == "symmetric":
        scale = _inverse_sqrt_degree(edge_index, weight, len(x), self_loops).unsqueeze(1)
    elif laplacian == "unnormalized":
        scale = None
    else:
        raise InputError(f"laplacian 'unnormalized' or 'symmetric' was expected, got {laplacian!r}")
    energy = (0.5 * weight * _squared_differences(x, edge_index, scale)).sum()
    return torch.where(x.isfinite().all(), energy, torch.nan)


def rayleigh_quotient(
    x: Tensor,
    edge_index: Tensor,
    *,
    edge_weight: Tensor | None = None,
    laplacian: Laplacian = "symmetric",
    self_loops: bool = True,
) -> Tensor:
    """Dirichlet energy over ||X||_F^2: the mean graph frequency of X, whatever its scale.

    Between 0 (smooth) and the largest eigenvalue of the Laplacian, at most 2 for the symmetric one.

    Args:
        x: (N, d).
        edge_index: As in `dirichlet_energy`.
        edge_weight: As in `dirichlet_energy`.
        laplacian: As in `dirichlet_energy`.
        self_loops: As in `dirichlet_energy`; with them the quotient stays below 2.

    Returns:
        0-d. NaN (undefined) if X is zero or empty; NaN if x holds a NaN or an infinity.

    Raises:
        InputError: As `dirichlet_energy`.

    Example:
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> round(rayleigh_quotient(torch.tensor([[1.0], [-1.0]]), pair, self_loops=False).item(), 12)
        2.0
    """
    energy = dirichlet_energy(x, edge_index, edge_weight=edge_weight, laplacian=laplacian, self_loops=self_loops)
    return energy / x.double().square().sum()


def _checked_weight(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    if x.dim() != 2:
        raise InputError(f"x of shape (nodes, channels) was expected, got {tuple(x.shape)}; flatten or unsqueeze it")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise InputError(f"edge_index of shape (2, edges) was expected, got {tuple(edge_index.shape)}")
    if edge_weight is None:
        return torch.ones_like(edge_index[0], dtype=torch.float64)
    if edge_weight.shape != edge_index.shape[1:]:
        raise InputError(f"edge_weight of shape ({edge_index.shape[1]},) was expected, got {tuple(edge_weight.shape)}")
    return edge_weight.double()


def _inverse_sqrt_degree(edge_index: Tensor, weight: Tensor, num_nodes: int, self_loops: bool) -> Tensor:
    source, target = edge_index
    degree = weight.new_zeros(num_nodes).index_add(0, source, weight / 2).index_add(0, target, weight / 2)
    if self_loops:
        loops = weight.new_zeros(num_nodes).index_add(0, target, (source == target).double())
        degree = degree + (loops == 0).double()
    return torch.where(degree == 0, 0.0, degree.rsqrt())


def _squared_differences(x: Tensor, edge_index: Tensor, scale: Tensor | None) -> Tensor:
    """||x_i - x_j||^2 an edge, in pieces, so that memory stays far below edges times channels."""

    def scaled(nodes: Tensor) -> Tensor:
        rows = x.index_select(0, nodes).double()
        return rows if scale is None else rows * scale.index_select(0, nodes)

    step = max(1, _CHUNK * (1 if x.device.type == "cpu" else 512) // max(1, x.shape[1]))
    pieces = zip(edge_index[0].split(step), edge_index[1].split(step), strict=True)
    return torch.cat([(scaled(source) - scaled(target)).square().sum(1) for source, target in pieces])
