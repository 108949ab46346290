"""How attention is distributed: its entropy at each target node.

Attention that stays uniform has learned nothing; attention on one edge passes gradients to one neighbor only. With
attention dropout in training mode, coefficients do not sum to one: measure in evaluation mode.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["AttentionSpread", "attention_spread"]


class AttentionSpread(NamedTuple):
    """What `attention_spread` computes: float64, of shape () or (B,)."""

    attention_entropy: Tensor
    relative_attention_entropy: Tensor
    attention_peak: Tensor


def attention_spread(alpha: Tensor, target: Tensor, level: float = 0.99) -> AttentionSpread:
    """Mean entropy, mean relative entropy and fraction of peaked nodes, over heads and nodes, as a run records them.

    The entropy H_i = - sum_j alpha_ij log alpha_ij of a target node i, in nats, is 0 if all its attention is on one
    edge, and log d_i if it is uniform. If nearly all attention of a node is on one edge, the derivative of the softmax,
    a (1 - a), is nearly zero, and attention cannot learn.

    Args:
        alpha: (E,) or (E, H), coefficients that sum to one over each target's edges; each head of a node counts
            separately. Or (B, E, H), those of many layers, measured with as few kernels as one.
        target: (E,), `edge_index[1]`; or (B, E).
        level: Threshold above which a coefficient is a peak; at least 0.5, so that a node has at most one.

    Returns:
        The mean of H_i over the nodes with incoming edges; the mean of H_i / log d_i over the nodes with at least two,
        which is 1 for uniform attention and 0 for attention on one edge, whatever the degree d_i; and the fraction of
        the latter that have a peak. NaN (undefined) if there are no such nodes, or if a coefficient
        is not finite.

    Example:
        >>> alpha, target = torch.tensor([0.999, 0.001, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 2])
        >>> [round(value.item(), 4) for value in attention_spread(alpha, target)]
        [0.2337, 0.5057, 0.5]
    """
    if target.dim() == 1:
        of_one = attention_spread(alpha.unsqueeze(0), target.unsqueeze(0), level)
        return AttentionSpread(*(value[0] for value in of_one))
    alpha = alpha.double().unsqueeze(-1).flatten(2)
    weight, nodes, chosen = _by_degree(target)
    of_edges = torch.special.entr(alpha).sum(2)  # sums over edges equal sums over nodes
    peaks = ((alpha > level).sum(2) * (weight > 0)).sum(1).double()
    heads = torch.where(alpha.sum((1, 2)).isfinite(), alpha.shape[2], torch.nan)
    nodes, chosen = nodes * heads, chosen * heads
    return AttentionSpread(of_edges.sum(1) / nodes, (of_edges * weight).sum(1) / chosen, peaks / chosen)


def _by_degree(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """1 / log d for each edge, (B, E), with d the degree of its target; the number of targets, and of those with d > 1.

    1 / log 1 counts as 0.
    """
    if target.is_cpu:
        degrees = [row.bincount() for row in target]
        weight = torch.stack([_weight(each).index_select(0, row) for each, row in zip(degrees, target, strict=True)])
        nodes, chosen = (torch.stack([(each > least).sum() for each in degrees]) for least in (0, 1))
        return weight, nodes, chosen
    ordered = target.sort(1).values  # counting would wait for the device
    degree = torch.searchsorted(ordered, target, right=True) - torch.searchsorted(ordered, target)
    nodes, chosen = (((degree > least) / degree.double()).sum(1).round() for least in (0, 1))
    return _weight(degree), nodes, chosen


def _weight(degree: Tensor) -> Tensor:
    return torch.where(degree > 1, 1.0 / degree.double().log(), 0.0)
