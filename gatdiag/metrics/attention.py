"""How attention is spread: its entropy at each target node.

Attention that stays uniform has learned nothing; attention on one edge passes gradients to one neighbor only. In
training mode with attention dropout a layer's coefficients are those after dropout and do not sum to one: measure in
evaluation mode.
"""

import torch
from torch import Tensor

__all__ = ["attention_entropy", "attention_spread"]


def attention_entropy(alpha: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """H_i = - sum_j alpha_ij log alpha_ij at each target node i: 0 if all attention is on one edge, log d_i if uniform.

    Args:
        alpha: (E,) or (E, H), coefficients that sum to one over each target's edges.
        target: (E,), `edge_index[1]`.
        num_nodes: N.

    Returns:
        (N,) or (N, H), in nats. 0 at a node without incoming edges; NaN at a node with a NaN coefficient;
        -infinity at one with a negative coefficient.

    Example:
        >>> attention_entropy(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1]), 3)
        tensor([0.6931, 0.0000, 0.0000], dtype=torch.float64)
    """
    entropy: Tensor = torch.special.entr(alpha.double())
    return entropy.new_zeros(num_nodes, *alpha.shape[1:]).index_add(0, target, entropy)


def attention_spread(alpha: Tensor, target: Tensor, level: float = 0.99) -> tuple[Tensor, Tensor, Tensor]:
    """Both entropies averaged over heads and nodes, and the share of nodes with a peak, as a run records them.

    A node whose attention is nearly all on one edge has next to no slope of the softmax, a (1 - a), and cannot learn.

    Args:
        alpha: (E,) or (E, H), as in `attention_entropy`; each head of a node counts.
        target: (E,), `edge_index[1]`.
        level: What a coefficient has to exceed to be a peak: at least 0.5, so that a node has one at most.

    Returns:
        The mean of H_i over the nodes with incoming edges; of those with at least two the mean of H_i / log d_i, which
        is 1 where attention is uniform and 0 where it is on one edge, whatever the degree d_i; and the share of these
        that have a peak. 0-d each, float64. NaN (undefined) if there are no such nodes, or if a coefficient is not
        finite. It waits for the device.

    Example:
        >>> alpha, target = torch.tensor([0.999, 0.001, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 2])
        >>> [round(value.item(), 4) for value in attention_spread(alpha, target)]
        [0.2337, 0.5057, 0.5]
    """
    alpha, degree = alpha.double()[:, None].flatten(1), target.bincount()
    several = degree > 1
    of_edges = torch.special.entr(alpha).sum(1)  # whose sums over a node's edges, and over all nodes, are the same
    weight = torch.where(several, 1.0 / degree.double().log(), 0.0).index_select(0, target)
    peaks = ((alpha > level).sum(1) * (weight > 0)).sum().double()
    undefined = torch.where(alpha.sum().isfinite(), 1.0, torch.nan)
    nodes, chosen = (each.sum() * alpha.shape[1] * undefined for each in (degree > 0, several))
    return of_edges.sum() / nodes, torch.dot(of_edges, weight) / chosen, peaks / chosen
