"""Dirichlet energy: how much X differs across edges. Like that of mu, its decay with depth is oversmoothing.

Conventions for edges:

- Edges are (source, target) as in torch-geometric, and each stored entry counts one half. An undirected edge, stored in
  both directions, counts once, and a directed graph is treated as (A + A^T) / 2.
- Self loops contribute to degrees only.
- The degree of a node is half its incoming plus half its outgoing edges, a self loop counting once.

The measure of the survey on oversmoothing (Rusch, Bronstein & Mishra, arXiv 2303.10993), which counts each stored entry
once and averages over nodes, is sqrt(2 E / N) with E the energy of N nodes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["Energies", "energies"]

_CHUNK = 1 << 16  # differences computed at a time, to fit a CPU cache; 256 times as many on other devices


class Energies(NamedTuple):
    """What `energies` computes, 0-d each."""

    dirichlet_energy: Tensor
    rayleigh_quotient: Tensor


def energies(x: Tensor, edge_index: Tensor) -> Energies:
    """Dirichlet energy and Rayleigh quotient of X, computed from differences, so that they are accurate near 0.

        E(X) = tr(X^T (D - A) X) = 1/2 sum_(i,j) ||x_i - x_j||^2
        R(X) = 1/2 sum_(i,j) ||x_i / sqrt(d_i) - x_j / sqrt(d_j)||^2 / ||X||_F^2

    The energy is exactly 0 if X is constant on each component, and scales with X squared. The quotient is the mean
    graph frequency of X, from 0 to 2. Its degrees include one self loop at each node that has none (the D~ of GCN;
    d_i = 1 + degree in Cai & Wang). It is 0 if each column of X is proportional to sqrt(degree) on each component, the
    limit of GCN's aggregation.

    Args:
        x: (N, d), node representations or their gradient. For several signals on one graph, a row for each node of each
            of that many copies of the graph: energies add up, and the quotient is that of the sums.
        edge_index: (2, E).

    Returns:
        The energy is 0 without edges, the quotient NaN (undefined) if X is zero or empty; both are NaN if x
        contains a NaN or infinity, even at isolated nodes.

    Raises:
        InputError: `x` or `edge_index` does not have the shape above.

    Source:
        Cai & Wang, "A Note on Over-Smoothing for Graph Neural Networks", arXiv 2006.13318.

    Example:
        >>> x, pair = torch.tensor([[1.0], [-1.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> [round(value.item(), 6) for value in energies(x, pair)]
        [4.0, 1.0]
    """
    if x.dim() != 2:
        raise InputError(f"expected x of shape (nodes, channels), got {tuple(x.shape)}; flatten or unsqueeze it")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise InputError(f"expected edge_index of shape (2, edges), got {tuple(edge_index.shape)}")
    source, target = edge_index
    rows = x.double()
    scaled = rows * _inverse_sqrt_degree(len(x), source, target)
    step = max(1, _CHUNK * (1 if x.is_cpu else 256) // max(1, x.shape[1]))
    pairs = [*zip(source.split(step), target.split(step), strict=True)]
    plain, symmetric = (_squared_differences(each, pairs) for each in (rows, scaled))
    half = torch.where(x.isfinite().all(), 0.5, torch.nan)
    return Energies(half * plain, half * symmetric / rows.square().sum())


def _squared_differences(x: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Sum of squared differences over edges, in chunks: memory stays far below edges times channels."""
    found = [torch.linalg.vector_norm(x.index_select(0, a).sub_(x.index_select(0, b)), dim=1) for a, b in pairs]
    return torch.cat(found).square().sum()


def _inverse_sqrt_degree(nodes: int, source: Tensor, target: Tensor) -> Tensor:
    ones = torch.ones_like(source, dtype=torch.float64)
    degree, loops = (ones.new_zeros(nodes) for _ in range(2))
    degree.index_add_(0, source, ones / 2).index_add_(0, target, ones / 2)
    loops.index_add_(0, target, (source == target).double())
    return (degree + (loops == 0).double()).rsqrt().unsqueeze(1)
