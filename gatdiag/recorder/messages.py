"""What the edges that a layer is given do to its messages: negative weights, and nodes that no edge reaches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def edge_weights(inputs: Sequence[Any], edges: Tensor) -> Tensor | None:
    """The weights of the edges among the inputs of a layer: a floating-point vector of as many entries."""
    vectors = (x for x in inputs if isinstance(x, Tensor) and x.dim() == 1 and x.is_floating_point())
    return next((x.detach() for x in vectors if len(x) == edges.shape[1]), None)


def weight_statistics(module: nn.Module, weights: Tensor, edges: Tensor, nodes: int) -> dict[str, int]:
    """How many weights are negative or NaN, and how many nodes have a negative sum, as they stand in meta.json.

    A layer that normalizes divides by the root of that sum, with one more for the self-loop that it adds.

    Example:
        >>> from torch_geometric.nn import GCNConv
        >>> edges = torch.tensor([[0, 1, 2], [1, 0, 0]])
        >>> weight_statistics(GCNConv(4, 4), torch.tensor([-3.0, 1.0, 1.0]), edges, nodes=3)
        {'count': 3, 'negative': 1, 'non_finite': 0, 'negative_degrees': 1}
    """
    found = {
        "count": len(weights),
        "negative": int((weights < 0).sum()),
        "non_finite": int((~weights.isfinite()).sum()),
    }
    degrees = torch.zeros(nodes, dtype=weights.dtype, device=weights.device).index_add_(0, edges[1], weights)
    loop = float(getattr(module, "add_self_loops", False))
    return {**found, "negative_degrees": int((degrees + loop < 0).sum()) if _normalizes(module) else 0}


def _normalizes(module: nn.Module) -> bool:
    """Whether a convolution of PyG divides by the roots of the degrees."""
    switch = getattr(module, "normalize", None)
    is_symmetric = type(module).__name__ in ("ChebConv", "ARMAConv", "SGConv", "LGConv", "SSGConv")
    return bool(switch) if isinstance(switch, bool) else is_symmetric


def reached_nodes(edges: Tensor, nodes: int) -> Tensor:
    """Which nodes get a message from another one, (nodes,)."""
    reached = torch.zeros(nodes, dtype=torch.bool, device=edges.device)
    reached[edges[1][edges[0] != edges[1]]] = True
    return reached
