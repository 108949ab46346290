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
        level: What a coefficient has to exceed to be a peak.

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
    nodes = int(target.max()) + 1 if len(target) else 0
    alpha = alpha.double()[:, None].flatten(1)
    entropy, degree = attention_entropy(alpha, target, nodes), target.bincount(minlength=nodes)
    several = degree > 1
    top = torch.zeros_like(entropy).scatter_reduce(0, target[:, None].expand_as(alpha), alpha, "amax")
    relative = (entropy[several] / degree[several].double().log()[:, None]).mean()
    undefined = torch.where(alpha.isfinite().all(), 1.0, torch.nan)
    peaked = (top[several] > level).double().mean()
    return entropy[degree > 0].mean() * undefined, relative * undefined, peaked * undefined
