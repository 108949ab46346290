"""How attention is spread: its entropy at each target node.

Attention that stays uniform has learned nothing; attention on one edge passes gradients to one neighbor only. In
training mode with attention dropout a layer's coefficients are those after dropout and do not sum to one: measure in
evaluation mode.
"""

import torch
from torch import Tensor

__all__ = ["attention_entropy", "mean_entropies", "peaked_fraction"]


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


def mean_entropies(alpha: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both entropies, averaged over heads and over the nodes where they are defined, as a run records them.

    Args:
        alpha: (E,) or (E, H), as in `attention_entropy`.
        target: (E,), `edge_index[1]`.

    Returns:
        The mean of H_i over the nodes with incoming edges, and of H_i / log d_i over those with at least two, 0-d each;
        the second is 1 where attention is uniform and 0 where it is on one edge, whatever the degree d_i. NaN
        (undefined) if there are no such nodes, or if a coefficient is not finite. It waits for the device.

    Example:
        >>> [round(mean.item(), 6) for mean in mean_entropies(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1]))]
        [0.346574, 1.0]
    """
    nodes = int(target.max()) + 1 if len(target) else 0
    entropy, degree = attention_entropy(alpha, target, nodes), _degrees(target, nodes)
    uniform = degree[degree > 1].log().view(-1, *[1] * (entropy.dim() - 1))
    relative = (entropy[degree > 1] / uniform).mean()
    return entropy[degree > 0].mean(), torch.where(alpha.isfinite().all(), relative, torch.nan)


def peaked_fraction(alpha: Tensor, target: Tensor, level: float = 0.99) -> Tensor:
    """Share of the nodes with at least two incoming edges that give one of them nearly all of their attention.

    There the slope of the softmax, a (1 - a), is next to zero, and attention cannot learn.

    Args:
        alpha: (E,) or (E, H), as in `attention_entropy`; each head of a node counts.
        target: (E,), `edge_index[1]`.
        level: What a coefficient has to exceed.

    Returns:
        0-d, in [0, 1]. NaN (undefined) if there is no such node, or if a coefficient is not finite.

    Example:
        >>> peaked_fraction(torch.tensor([0.999, 0.001, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 2]))
        tensor(0.5000, dtype=torch.float64)
    """
    nodes = int(target.max()) + 1 if len(target) else 0
    alpha = alpha.double()[:, None].flatten(1)
    place = target[:, None].expand_as(alpha)
    top = alpha.new_zeros(nodes, alpha.shape[1]).scatter_reduce(0, place, alpha, "amax")
    share = (top[_degrees(target, nodes) > 1] > level).double().mean()
    return torch.where(alpha.isfinite().all(), share, torch.nan)


def _degrees(target: Tensor, num_nodes: int) -> Tensor:
    ones = torch.ones_like(target, dtype=torch.float64)
    return ones.new_zeros(num_nodes).index_add(0, target, ones)
