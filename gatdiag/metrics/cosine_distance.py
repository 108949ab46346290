"""MAD and MADGap: mean cosine distance between nodes, near and far.

D_ij = 1 - cos(x_i, x_j). It sees directions only: features that shrink, or are all positive with one channel, look
smooth to it, and it does not satisfy the triangle inequality. Read it beside `smoothing.relative_mu`.
"""

from typing import Literal

import torch
from torch import Tensor

from gatdiag.errors import InputError

Mode = Literal["paper", "code"]

_CHUNK = 1 << 15  # differences held at a time, so that they stay in a CPU's cache; elsewhere 512 times as many


def mad(
    x: Tensor, pairs: Tensor, *, mode: Mode = "paper", batch: Tensor | None = None, num_graphs: int | None = None
) -> Tensor:
    """Mean average cosine distance over given pairs: near 0, the nodes of a pair point the same way.

        D_ij = 1 - cos(x_i, x_j),  Dbar_i = mean of D_ij over the pairs (i, j) with D_ij > 0,
        MAD = mean of Dbar_i over the nodes with Dbar_i > 0

    D is computed as half the squared distance of the unit vectors, so it is never negative and keeps its digits at 0.

    Args:
        x: (N, d), node representations or their gradient.
        pairs: (2, P), rows i and j: the non-zero entries of the paper's mask. `edge_index` itself, or
            `pairs_by_distance`.
        mode: `code` is the authors' implementation: 1e-8 added to both denominators, the result rounded to 4 digits.
        batch: (N,), the graph of each node; None: one graph.
        num_graphs: How many graphs. None: the largest entry of `batch` plus one, which waits for the device.

    Returns:
        0-d, or (num_graphs,) with `batch`; in [0, 2]. 0 if there are pairs and all their distances are 0; without pairs
        NaN (undefined) in `paper` and 0 in `code`. Two zero rows are at distance 0, a zero row is at distance 1 from
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
    total, number = (_total(values, batch, num_graphs) for values in (of_node, (of_node != 0).double()))
    mean = total / torch.where(number == 0, 1.0, number + small)
    if mode == "code":
        return mean.round(decimals=4)
    given = torch.zeros_like(of_node).index_fill(0, node, 1.0)
    return torch.where(_total(given, batch, num_graphs) == 0, torch.nan, mean)


def mad_gap(
    x: Tensor,
    near: Tensor,
    remote: Tensor,
    *,
    mode: Mode = "paper",
    batch: Tensor | None = None,
    num_graphs: int | None = None,
) -> Tensor:
    """MADGap = MAD of remote pairs - MAD of near pairs: large where distant nodes stay distinct, <= 0 if oversmoothed.

    Args:
        x: (N, d).
        near: (2, P), in the paper the pairs at most 3 hops apart: `pairs_by_distance(edge_index, N, 1, 3)`.
        remote: (2, R), in the paper the pairs at least 8 hops apart: `pairs_by_distance(edge_index, N, 8)`.
        mode: As in `mad`.
        batch: As in `mad`.
        num_graphs: As in `mad`.

    Returns:
        0-d, or (num_graphs,). NaN (undefined, mode `paper`) where there are no near or no remote pairs.

    Raises:
        InputError: As `mad`.

    Source:
        Chen et al., AAAI 2020.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> round(mad_gap(x, torch.tensor([[0], [1]]), torch.tensor([[0], [2]])).item(), 6)
        1.707107
    """
    far, close = (mad(x, pairs, mode=mode, batch=batch, num_graphs=num_graphs) for pairs in (remote, near))
    return far - close


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


def _total(values: Tensor, batch: Tensor | None, num_graphs: int | None) -> Tensor:
    if batch is None:
        return values.sum()
    size = num_graphs if num_graphs is not None else int(batch.max()) + 1 if batch.numel() else 0
    return values.new_zeros(size).index_add(0, batch, values)
