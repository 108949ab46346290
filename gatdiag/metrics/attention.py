"""How attention is distributed: its entropy at each target node.

Attention that stays uniform has learned nothing; attention on one edge passes gradients to one neighbor only. With
attention dropout in training mode, coefficients do not sum to one: measure in evaluation mode.
"""

import torch
from torch import Tensor

__all__ = ["attention_spread"]


def attention_spread(alpha: Tensor, target: Tensor, level: float = 0.99) -> tuple[Tensor, Tensor, Tensor]:
    """Mean entropy, mean relative entropy and fraction of peaked nodes, over heads and nodes, as a run records them.

    The entropy H_i = - sum_j alpha_ij log alpha_ij of a target node i, in nats, is 0 if all its attention is on one
    edge, and log d_i if it is uniform. If nearly all attention of a node is on one edge, the derivative of the softmax,
    a (1 - a), is nearly zero, and attention cannot learn.

    Args:
        alpha: (E,) or (E, H), coefficients that sum to one over each target's edges; each head of a node counts
            separately.
        target: (E,), `edge_index[1]`.
        level: Threshold above which a coefficient is a peak; at least 0.5, so that a node has at most one.

    Returns:
        The mean of H_i over the nodes with incoming edges; the mean of H_i / log d_i over the nodes with at least two,
        which is 1 for uniform attention and 0 for attention on one edge, whatever the degree d_i; and the fraction of
        the latter that have a peak. 0-d each, float64. NaN (undefined) if there are no such nodes, or if a coefficient
        is not finite. Synchronizes with the device.

    Example:
        >>> alpha, target = torch.tensor([0.999, 0.001, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 2])
        >>> [round(value.item(), 4) for value in attention_spread(alpha, target)]
        [0.2337, 0.5057, 0.5]
    """
    alpha, degree = alpha.double()[:, None].flatten(1), target.bincount()
    several = degree > 1
    of_edges = torch.special.entr(alpha).sum(1)  # per edge: sums over edges equal sums over nodes
    weight = torch.where(several, 1.0 / degree.double().log(), 0.0).index_select(0, target)
    peaks = ((alpha > level).sum(1) * (weight > 0)).sum().double()
    undefined = torch.where(alpha.sum().isfinite(), 1.0, torch.nan)
    nodes, chosen = (each.sum() * alpha.shape[1] * undefined for each in (degree > 0, several))
    return of_edges.sum() / nodes, torch.dot(of_edges, weight) / chosen, peaks / chosen
