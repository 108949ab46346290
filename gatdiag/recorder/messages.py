"""What the edges that a layer is given do to its messages: negative weights, and nodes that no edge reaches."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.structure.modules import attributes_of

_MIN_EDGES: Final = 20  # fewer may be symmetric by chance
_MAX_EDGES: Final = 2_000_000  # to be sorted
_NEARLY_ALL: Final = 0.9
_ROUNDINGS: Final = 64  # by which rows that are computed alike may differ
_SINGLE: Final = 4  # bytes of a number; with fewer, not all operations are there


def edge_weights(inputs: Sequence[Any], edges: Tensor) -> Tensor | None:
    """The weights of the edges among the inputs of a layer: a floating-point vector of as many entries."""
    vectors = (x for x in inputs if issubclass(type(x), Tensor) and x.dim() == 1 and x.is_floating_point())
    return next((x.detach() for x in vectors if len(x) == edges.shape[1]), None)


def weight_statistics(module: nn.Module, weights: Tensor, edges: Tensor, nodes: int) -> dict[str, int]:
    """How many weights are negative, zero or NaN, and how many nodes have a negative sum, as they stand in meta.json.

    A layer that normalizes divides by the root of that sum, with one more for the self-loop that it adds.

    Example:
        >>> from torch_geometric.nn import GCNConv
        >>> edges = torch.tensor([[0, 1, 2], [1, 0, 0]])
        >>> weight_statistics(GCNConv(4, 4), torch.tensor([-3.0, 1.0, 1.0]), edges, nodes=3)
        {'count': 3, 'negative': 1, 'zeros': 0, 'non_finite': 0, 'negative_degrees': 1}
    """
    found = {
        "count": len(weights),
        "negative": int((weights < 0).sum()),
        "zeros": int((weights == 0).sum()),
        "non_finite": int((~weights.isfinite()).sum()),
    }
    degrees = torch.zeros(nodes, dtype=weights.dtype, device=weights.device).index_add_(0, edges[1], weights)
    loop = float(attributes_of(module).get("add_self_loops") is True)
    return {**found, "negative_degrees": int((degrees + loop < 0).sum()) if _normalizes(module) else 0}


def _normalizes(module: nn.Module) -> bool:
    """Whether a convolution of PyG divides by the roots of the degrees."""
    switch = attributes_of(module).get("normalize")
    is_symmetric = type(module).__name__ in ("ChebConv", "ARMAConv", "SGConv", "LGConv", "SSGConv")
    return bool(switch) if isinstance(switch, bool) else is_symmetric


def reached_nodes(edges: Tensor, nodes: int) -> Tensor:
    """Which nodes get a message from another one, (nodes,)."""
    reached = torch.zeros(nodes, dtype=torch.bool, device=edges.device)
    reached[edges[1][edges[0] != edges[1]]] = True
    return reached


def are_same_rows(o: Tensor) -> bool:
    """Whether there are several rows, all alike but for rounding.

    Example:
        >>> are_same_rows(torch.ones(3, 2)), are_same_rows(torch.eye(3)), are_same_rows(torch.ones(1, 2))
        (True, False, False)
    """
    if len(o) < 2 or not o.numel() or o.layout is not torch.strided:
        return False
    if not o.is_floating_point():
        return bool((o == o[:1]).all())
    rounding, o = _ROUNDINGS * torch.finfo(o.dtype).eps, o.float() if o.itemsize < _SINGLE else o
    return bool((o - o[:1]).abs().max() <= rounding * o.abs().max())


def is_rearranged(edges: Tensor, nodes: int) -> bool:
    """Whether pairs of nodes, in both directions, were cut into rows of another shape instead of transposed.

    A list of E pairs, `view(2, E)`, holds the first half of the pairs in its first row. Read as pairs again, each edge
    has its reverse; as they are given, they do not. Both is as good as impossible by chance, unless most pairs are
    of a node and itself, as where each edge is given twice.

    Example:
        >>> node = torch.arange(12)
        >>> pairs = torch.stack([node, node + 1, node + 1, node], 1).view(-1, 2)
        >>> is_rearranged(pairs.reshape(2, -1), nodes=13), is_rearranged(pairs.T, nodes=13)
        (True, False)
        >>> is_rearranged(torch.tensor([[0, 1, 2], [1, 2, 3]]).repeat_interleave(8, 1), nodes=4)
        False
    """
    if not _MIN_EDGES <= edges.shape[1] <= _MAX_EDGES or int(edges.min()) < 0:
        return False
    pairs = edges.reshape(-1, 2).T
    if 2 * int((pairs[0] == pairs[1]).sum()) > pairs.shape[1]:
        return False
    return _is_balanced(pairs, nodes) and _has_reverse(pairs, nodes) and not _has_reverse(edges, nodes)


def _is_balanced(edges: Tensor, nodes: int) -> bool:
    """Whether as many edges begin at each node as end there, which is quick to see."""
    return torch.equal(*(torch.bincount(ends, minlength=nodes) for ends in edges))


def _has_reverse(edges: Tensor, nodes: int) -> bool:
    """Whether each edge has its reverse."""
    numbers = (edges[0] * nodes + edges[1], edges[1] * nodes + edges[0])
    return torch.equal(*(each.sort().values for each in numbers))


def share_of_pairs(edges: Tensor, nodes: int) -> float:
    """Share of the pairs of different nodes that an edge joins in this direction; 0 if it is clearly below one."""
    between = edges[:, edges[0] != edges[1]]
    pairs = nodes * (nodes - 1)
    if not pairs or between.shape[1] < _NEARLY_ALL * pairs:
        return 0.0
    return len((between[0] * nodes + between[1]).unique()) / pairs


def kinds_of_edges(module: nn.Module, inputs: Sequence[Any]) -> tuple[int, list[int]] | None:
    """The number of relations that a layer has weights for, and those that its edges are of; None for other layers.

    Example:
        >>> from torch_geometric.nn import RGCNConv
        >>> edges, kinds = torch.tensor([[0, 1], [1, 0]]), torch.tensor([2, 0])
        >>> kinds_of_edges(RGCNConv(4, 4, num_relations=3), (torch.zeros(2, 4), edges, kinds))
        (3, [0, 2])
    """
    count = attributes_of(module).get("num_relations")
    kinds = [x for x in inputs if issubclass(type(x), Tensor) and x.dim() == 1 and x.dtype == torch.int64]
    if type(count) is not int or not kinds:
        return None
    return count, kinds[-1].unique().tolist()
