"""MAD and MADGap: mean cosine distance between nodes, near and far.

D_ij = 1 - cos(x_i, x_j). It sees directions only: features that shrink, or are all positive with one channel, look
smooth to it, and it does not satisfy the triangle inequality. Read it beside `smoothing.relative_mu`.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = ["mad", "mad_gap", "pairs_by_distance"]

Mode = Literal["paper", "code"]

_ENTRIES = 1 << 24  # of the source-by-node table of hops held at a time
_CHUNK = 1 << 15  # differences held at a time, so that they stay in a CPU's cache; elsewhere 512 times as many


def mad(x: Tensor, pairs: Tensor, *, mode: Mode = "paper") -> Tensor:
    """Mean average cosine distance over given pairs: near 0, the nodes of a pair point the same way.

        D_ij = 1 - cos(x_i, x_j),  Dbar_i = mean of D_ij over the pairs (i, j) with D_ij > 0,
        MAD = mean of Dbar_i over the nodes with Dbar_i > 0

    D is computed as half the squared distance of the unit vectors, so it is never negative and keeps its digits at 0.

    Args:
        x: (N, d), node representations or their gradient.
        pairs: (2, P), rows i and j: the non-zero entries of the paper's mask. `edge_index` itself, or
            `pairs_by_distance`.
        mode: `code` is the authors' implementation: 1e-8 added to both denominators, the result rounded to 4 digits.

    Returns:
        0-d, in [0, 2]. 0 if there are pairs and all their distances are 0; without pairs NaN (undefined) in `paper` and
        0 in `code`. Two zero rows are at distance 0, a zero row is at distance 1 from
        any other (scikit-learn, which the authors call, has 1 for both). NaN if a row of a pair holds a NaN or an
        infinity.

    Raises:
        InputError: `x` or `pairs` does not have the shape above, or `mode` is not one of the two.

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
            f"x of shape (nodes, channels) and pairs of shape (2, pairs) were expected, got {tuple(x.shape)} and "
            f"{tuple(pairs.shape)}; pass node indices i in the first row and j in the second, not a dense mask"
        )
    if mode not in ("paper", "code"):
        raise InputError(f"mode 'paper' or 'code' was expected, got {mode!r}")
    small = 1e-8 if mode == "code" else 0.0
    distance = _cosine_distances(x, pairs)
    node = pairs[0]
    counted = (distance != 0).double()  # NaN != 0, so a NaN stays in its node's mean
    sums, counts = (distance.new_zeros(len(x)).index_add(0, node, values) for values in (distance, counted))
    of_node = sums / torch.where(counts == 0, 1.0, counts + small)
    number = (of_node != 0).double().sum()
    mean = of_node.sum() / torch.where(number == 0, 1.0, number + small)
    if mode == "code":
        return mean.round(decimals=4)
    return mean if len(node) else torch.full_like(mean, torch.nan)


def mad_gap(x: Tensor, near: Tensor, remote: Tensor, *, mode: Mode = "paper") -> Tensor:
    """MADGap = MAD of remote pairs - MAD of near pairs: large where distant nodes stay distinct, <= 0 if oversmoothed.

    Args:
        x: (N, d).
        near: (2, P), in the paper the pairs at most 3 hops apart: `pairs_by_distance(edge_index, N, 1, 3)`.
        remote: (2, R), in the paper the pairs at least 8 hops apart: `pairs_by_distance(edge_index, N, 8)`.
        mode: As in `mad`.

    Returns:
        0-d. NaN (undefined, mode `paper`) where there are no near or no remote pairs.

    Raises:
        InputError: As `mad`.

    Source:
        Chen et al., AAAI 2020.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> round(mad_gap(x, torch.tensor([[0], [1]]), torch.tensor([[0], [2]])).item(), 6)
        1.707107
    """
    return mad(x, remote, mode=mode) - mad(x, near, mode=mode)


def pairs_by_distance(
    edge_index: Tensor, num_nodes: int, minimum: int, maximum: int | None = None, *, sources: Tensor | None = None
) -> Tensor:
    """All pairs (i, j) with minimum <= hops from i to j <= maximum, by breadth-first search from many nodes at once.

    It depends on the graph alone, so it is computed once and given to `mad` at every step. Memory is that of the
    result: on a graph of N nodes the remote pairs are nearly N^2. For more than some ten thousand nodes restrict
    `sources`, over which MAD then averages (the `target_idx` of the authors' code).

    Args:
        edge_index: (2, E), followed from source to target; an undirected edge is stored in both directions.
        num_nodes: N.
        minimum: Fewest hops; 0 includes each (i, i).
        maximum: Most hops. None: no limit, and pairs with no path between them (infinitely far) belong to it.
        sources: (S,), distinct nodes i to start from; None: all.

    Returns:
        (2, P), sorted by source, on the edges' device. It waits for the device, because P is not known before.

    Raises:
        InputError: `minimum` is negative, or `maximum` is smaller.

    Source:
        Chen et al., AAAI 2020: neighbors are at most 3 hops away, remote nodes at least 8.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> pairs_by_distance(path, 4, 2).tolist()  # node 3 is isolated
        [[0, 0, 1, 2, 2, 3, 3, 3], [2, 3, 3, 0, 3, 0, 1, 2]]
        >>> pairs_by_distance(path, 4, 1, 1).tolist()
        [[0, 1, 1, 2], [1, 0, 2, 1]]
    """
    from scipy.sparse import csr_array  # heavy imports, and most who import metrics want none of this
    from scipy.sparse.csgraph import dijkstra

    if minimum < 0 or (maximum is not None and maximum < minimum):
        raise InputError(f"0 <= minimum <= maximum was expected, got {minimum} and {maximum}; give them in hops")
    starts = torch.arange(num_nodes) if sources is None else sources.cpu()
    source, target = edge_index.cpu().numpy()
    graph = csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes, num_nodes))
    found = [torch.zeros(2, 0, dtype=torch.long)]
    for some in starts.split(max(1, _ENTRIES // max(1, num_nodes))):
        if len(some):
            hops = dijkstra(graph, indices=some.numpy(), unweighted=True, limit=np.inf if maximum is None else maximum)
            is_wanted = hops >= minimum if maximum is None else np.isfinite(hops) & (hops >= minimum)
            row, column = (torch.from_numpy(place) for place in is_wanted.nonzero())
            found.append(torch.stack([some[row], column]))
    return torch.cat(found, dim=1).to(edge_index.device)


def _cosine_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """1 - cos a pair, in pieces, so that memory stays far below pairs times channels."""
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
