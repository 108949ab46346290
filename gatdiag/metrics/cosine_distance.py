"""MAD: mean cosine distance between nodes.

D_ij = 1 - cos(x_i, x_j) depends on directions only: features that are positive with one channel look smooth whatever
their differences. It does not satisfy the triangle inequality. Compare it with `smoothing.relative_mu`.
"""

import math

import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["mad"]


_SINGLE = torch.finfo(torch.float32).eps
_CHUNK = 1 << 15  # differences computed at a time, to fit a CPU cache; 512 times as many on other devices


def mad(x: Tensor, pairs: Tensor) -> Tensor:
    """Mean average cosine distance over given pairs: near 0 if the nodes of each pair point the same way.

        D_ij = 1 - cos(x_i, x_j),  Dbar_i = mean of D_ij over the pairs (i, j) with D_ij > 0,
        MAD = mean of Dbar_i over the nodes with Dbar_i > 0

    D is computed as half the squared distance of the unit vectors: never negative, and accurate near 0. It counts as 0
    if rows that point exactly the same way may differ as much by rounding: the unit vectors by less than eps of the
    entries plus sqrt(d) eps of the sums they come from, which are at least float32.

    Args:
        x: (N, d), node representations or their gradient, in the precision they were computed in. For several signals
            on one graph, a row for each node of each of that many copies of the graph.
        pairs: (2, P), rows i and j, as `edge_index` has them: the non-zero entries of the paper's mask.

    Returns:
        0-d, in [0, 2]. 0 if all distances are 0; NaN (undefined) without pairs. Two zero rows have distance 0, a zero
        row has distance 1 from any other row (1 in both cases for scikit-learn, which the authors use). NaN if a row of
        a pair contains a NaN or infinity.

    Raises:
        InputError: `x` or `pairs` does not have the shape above.

    Source:
        Chen et al., "Measuring and Relieving the Over-smoothing Problem for Graph Neural Networks from the Topological
        View", AAAI 2020.

    Example:
        >>> x, path = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-2.0, 0.0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> round(mad(x, path).item(), 12), round(mad(x, torch.tensor([[0], [2]])).item(), 12)
        (1.0, 2.0)
    """
    if x.dim() != 2 or pairs.dim() != 2 or len(pairs) != 2:
        raise InputError(
            f"expected x of shape (nodes, channels) and pairs of shape (2, pairs), got {tuple(x.shape)} and "
            f"{tuple(pairs.shape)}; pass node indices i in the first row and j in the second, not a dense mask"
        )
    distance = _cosine_distances(x, pairs)
    node = pairs[0]
    rounding = torch.finfo(x.dtype).eps + math.sqrt(x.shape[1]) * min(torch.finfo(x.dtype).eps, _SINGLE)
    distance = torch.where(distance <= rounding**2 / 2, 0.0, distance)
    counted = (distance != 0).double()  # NaN != 0, so a NaN stays in its node's mean
    sums, counts = (distance.new_zeros(len(x)).index_add(0, node, values) for values in (distance, counted))
    of_node = sums / torch.where(counts == 0, 1.0, counts)
    number = (of_node != 0).double().sum()
    mean = of_node.sum() / torch.where(number == 0, 1.0, number)
    return mean if len(node) else torch.full_like(mean, torch.nan)


def _cosine_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """1 - cos for each pair, in chunks, so that memory stays far below pairs times channels."""
    rows = x.double()
    length = torch.linalg.vector_norm(rows, dim=1)
    unit = rows / torch.where(length == 0, 1.0, length).unsqueeze(1)
    one_is_zero = (length == 0)[pairs[0]] != (length == 0)[pairs[1]]
    step = max(1, _CHUNK * (1 if x.device.type == "cpu" else 512) // max(1, x.shape[1]))
    pieces = zip(pairs[0].split(step), pairs[1].split(step), strict=True)
    half_squares = torch.cat(
        [(unit.index_select(0, i) - unit.index_select(0, j)).square().sum(1) / 2 for i, j in pieces]
    )
    return torch.where(one_is_zero, 2 * half_squares, half_squares)
