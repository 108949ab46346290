"""The directions that repeated aggregation drives the columns of X to, one entry a node.

X^(l+1) = A X^(l) W forgets everything but the dominant eigenvector of A as l grows; the gradients, which A^T carries
backwards, forget everything but the dominant eigenvector of A^T. `smoothing.mu_against` measures what is left beside
such a direction.

| aggregation A | X goes to | dLoss/dX goes to |
|---|---|---|
| D^-1 A (mean, attention without preference) | `constant_direction` | `stationary_direction` |
| D~^-1/2 A~ D~^-1/2 (GCN) | `sqrt_degree_direction` | `sqrt_degree_direction` |
| any other non-negative one (attention coefficients) | `dominant_direction` | the same, edges reversed |

Edges are (source, target) as in torch-geometric; an undirected edge is stored in both directions.
"""

import torch
from torch import Tensor


def constant_direction(num_nodes: int, *, device: torch.device | str | None = None) -> Tensor:
    """The unit vector 1 / sqrt(N): what a row-stochastic aggregation (GAT, mean) drives the columns of X to.

    Args:
        num_nodes: N.
        device: Where to make it.

    Returns:
        (N,), float64.

    Example:
        >>> constant_direction(4).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    return torch.full((num_nodes,), 1 / max(num_nodes, 1) ** 0.5, dtype=torch.float64, device=device)


def sqrt_degree_direction(
    edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None = None, self_loops: bool = True
) -> Tensor:
    """v_i proportional to sqrt(d_i): what the symmetric-normalized aggregation of a GCN drives the columns of X to.

    Args:
        edge_index: (2, E). The degree is the sum of a node's incoming weights.
        num_nodes: N.
        edge_weight: (E,), non-negative; None: all 1.
        self_loops: Add 1 to each degree, for the loop that GCN adds. False if the edges already have their loops.

    Returns:
        (N,), float64, of length 1. Zero if no node has a degree; NaN if a degree is negative.

    Source:
        Oono & Suzuki, "Graph Neural Networks Exponentially Lose Expressive Power for Node Classification", ICLR 2020.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> [round(v, 6) for v in sqrt_degree_direction(path, 3, self_loops=False).square().tolist()]
        [0.25, 0.5, 0.25]
    """
    return _unit((_degree(edge_index, num_nodes, edge_weight) + float(self_loops)).sqrt())


def stationary_direction(
    edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None = None, self_loops: bool = True
) -> Tensor:
    """v_i proportional to d_i: the stationary distribution of the random walk D^-1 A on an undirected graph.

    Gradients that pass back through a row-stochastic aggregation become proportional to it. On a directed graph it is
    not stationary; take `dominant_direction` with the edges reversed.

    Args:
        edge_index: (2, E), undirected.
        num_nodes: N.
        edge_weight: As in `sqrt_degree_direction`.
        self_loops: As in `sqrt_degree_direction`.

    Returns:
        (N,), float64, of length 1 (not of sum 1). Zero if no node has a degree.

    Source:
        Keriven, "Backward Oversmoothing"; the remark on reverse directions of Park & Kim, arXiv 2410.04824.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> direction = stationary_direction(path, 3, self_loops=False)
        >>> (direction / direction.sum()).tolist()
        [0.25, 0.5, 0.25]
    """
    return _unit(_degree(edge_index, num_nodes, edge_weight) + float(self_loops))


def dominant_direction(
    edge_index: Tensor,
    edge_weight: Tensor,
    num_nodes: int,
    *,
    start: Tensor | None = None,
    iterations: int = 100,
    batch: Tensor | None = None,
    num_graphs: int | None = None,
) -> Tensor:
    """Dominant eigenvector of the aggregation with entries A[target, source] = weight, by power iteration.

        v <- v + A v / ||A v||      (the added v keeps bipartite graphs, with their eigenvalue -1, from oscillating)

    Args:
        edge_index: (2, E) with every edge the layer uses, self loops included. `edge_index.flip(0)` gives A^T, which
            carries gradients back.
        edge_weight: (E,), non-negative: attention coefficients, normalized adjacency, ones.
        num_nodes: N.
        start: (N,), what an earlier call returned; None: constant.
        iterations: How many products with A. The error shrinks by about (1 + |second eigenvalue / first|) / 2 each.
        batch: (N,), the graph of each node, each of which has its own eigenvector; None: one graph.
        num_graphs: How many graphs. None: the largest entry of `batch` plus one, which waits for the device.

    Returns:
        (N,), float64, of length 1 (of length 1 in each graph, with `batch`). A graph without edges keeps its start.

    Example:
        >>> star = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
        >>> [round(v, 6) for v in dominant_direction(star, torch.ones(6), 4).square().tolist()]
        [0.5, 0.166667, 0.166667, 0.166667]
    """
    source, target = edge_index
    if batch is None:
        batch, num_graphs = torch.zeros(num_nodes, dtype=torch.long, device=edge_index.device), 1
    elif num_graphs is None:
        num_graphs = int(batch.max()) + 1 if batch.numel() else 0
    weight = edge_weight.double()
    ones = torch.ones(num_nodes, dtype=torch.float64, device=edge_index.device)
    vector = _unit_in_each(ones if start is None else start.double(), batch, num_graphs)
    for _ in range(iterations):
        moved = torch.zeros_like(vector).index_add(0, target, weight * vector[source])
        vector = _unit_in_each(vector + _unit_in_each(moved, batch, num_graphs), batch, num_graphs)
    return vector


def _degree(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None) -> Tensor:
    target = edge_index[1]
    weight = torch.ones_like(target, dtype=torch.float64) if edge_weight is None else edge_weight.double()
    return torch.zeros(num_nodes, dtype=torch.float64, device=target.device).index_add(0, target, weight)


def _unit(vector: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vector)
    return vector / torch.where(length == 0, 1.0, length)


def _unit_in_each(vector: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    length = vector.new_zeros(num_graphs).index_add(0, batch, vector.square()).sqrt()
    return vector / torch.where(length == 0, 1.0, length)[batch]
