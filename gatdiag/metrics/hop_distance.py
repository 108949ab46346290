"""Pairs of nodes by the number of hops between them: the near and remote masks of MAD, as index pairs."""

import torch
from torch import Tensor

from gatdiag.errors import InputError

_CHUNK = 1 << 24  # entries of the source-by-node table held at a time


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
    if minimum < 0 or (maximum is not None and maximum < minimum):
        raise InputError(f"0 <= minimum <= maximum was expected, got {minimum} and {maximum}; give them in hops")
    starts = torch.arange(num_nodes, device=edge_index.device) if sources is None else sources
    found = [
        _from_sources(edge_index, num_nodes, minimum, maximum, some)
        for some in starts.split(max(1, _CHUNK // max(1, num_nodes)))
    ]
    return torch.cat(found, dim=1)


def _from_sources(edge_index: Tensor, num_nodes: int, minimum: int, maximum: int | None, sources: Tensor) -> Tensor:
    adjacency = torch.sparse_coo_tensor(
        edge_index.flip(0),
        torch.ones(edge_index.shape[1], device=edge_index.device),
        (num_nodes, num_nodes),
        check_invariants=True,
    )
    frontier = torch.zeros(num_nodes, len(sources), dtype=torch.bool, device=sources.device)
    frontier[sources, torch.arange(len(sources), device=sources.device)] = True
    seen, too_near = frontier, torch.zeros_like(frontier)
    if minimum > 0:
        seen, frontier = _spread(adjacency, seen, frontier, minimum - 1)
        too_near = seen
    if maximum is not None:
        seen, frontier = _spread(adjacency, seen, frontier, maximum - max(minimum - 1, 0))
    wanted = ~too_near if maximum is None else seen & ~too_near
    column, target = wanted.T.nonzero(as_tuple=True)
    return torch.stack([sources[column], target])


def _spread(adjacency: Tensor, seen: Tensor, frontier: Tensor, hops: int) -> tuple[Tensor, Tensor]:
    for _ in range(hops):
        frontier = (torch.sparse.mm(adjacency, frontier.float()) > 0) & ~seen
        if not frontier.any():
            break
        seen = seen | frontier
    return seen, frontier
