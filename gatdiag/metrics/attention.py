"""How attention is spread: its entropy at each target node, its largest coefficient, and the largest score.

Attention that stays uniform has learned nothing; attention on one edge passes gradients to one neighbor only; and
scores that grow without limit come before exploding gradients. In training mode with attention dropout a layer's
coefficients are those after dropout and do not sum to one: measure in evaluation mode.
"""

import torch
from torch import Tensor


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


def relative_attention_entropy(alpha: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """H_i / log d_i in [0, 1], comparable between nodes of different degree: 1 if uniform, 0 if on one edge.

    Args:
        alpha: (E,) or (E, H), as in `attention_entropy`.
        target: (E,), `edge_index[1]`.
        num_nodes: N.

    Returns:
        (N,) or (N, H). NaN (undefined) at nodes with fewer than two incoming edges, and where a coefficient is NaN.

    Example:
        >>> relative_attention_entropy(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1]), 2)
        tensor([1., nan], dtype=torch.float64)
    """
    entropy = attention_entropy(alpha, target, num_nodes)
    degree = entropy.new_zeros(num_nodes).index_add(0, target, torch.ones_like(target, dtype=torch.float64))
    uniform = torch.where(degree > 1, degree.log(), torch.nan)
    return entropy / uniform.view(-1, *[1] * (alpha.dim() - 1))


def largest_attention(alpha: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """max_j alpha_ij at each target node i: 1 if one edge takes all, 1 / d_i if uniform.

    Args:
        alpha: (E,) or (E, H), non-negative.
        target: (E,), `edge_index[1]`.
        num_nodes: N.

    Returns:
        (N,) or (N, H). 0 at a node without incoming edges; NaN at a node with a NaN coefficient.

    Example:
        >>> largest_attention(torch.tensor([0.25, 0.75, 1.0]), torch.tensor([0, 0, 1]), 3)
        tensor([0.7500, 1.0000, 0.0000], dtype=torch.float64)
    """
    values = alpha.double()
    index = target.view(-1, *[1] * (alpha.dim() - 1)).expand_as(values)
    return values.new_zeros(num_nodes, *alpha.shape[1:]).scatter_reduce(0, index, values, "amax")


def largest_score(scores: Tensor) -> Tensor:
    """Largest |e_ij| over all edges (and heads): scores that differ by more than about 10 saturate the softmax.

    The first condition of the theorem in Dasoulas et al., ICML 2021, is that it stays below alpha.

    Args:
        scores: Any shape, what the softmax is applied to.

    Returns:
        0-d. 0 without edges; NaN if a score is NaN; infinity if one is infinite and none NaN.

    Example:
        >>> largest_score(torch.tensor([1.0, -7.0])).item()
        7.0
    """
    magnitudes = scores.double().abs()
    return magnitudes.amax() if magnitudes.numel() else magnitudes.sum()
