"""Inputs that an analysis runs on in place of the user's: a part of large graphs, in general position."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

_LARGE = 1024  # nodes; smaller inputs are taken whole
_NODES = 256  # about as many are chosen
_SEEDS = 8  # nodes to start from where all that can be reached from others has been chosen
_STRENGTH = 0.2  # largest share of an entry that is replaced: far above rounding, and the input keeps its character

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def sample_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | None:
    """Smaller inputs of the same kind, if these are large graphs.

    Of a batch some graphs are chosen, each whole; of one graph the surroundings of a node, with all edges between the
    nodes chosen. Understood are tensors along nodes, edges and graphs, one of them an edge_index, and a `Data` or
    `Batch` of PyG.

    None is returned where the inputs are small, or not understood.

    Example:
        >>> ring = torch.stack([torch.arange(5000), torch.arange(1, 5001) % 5000])
        >>> (x, edge_index), _ = sample_inputs((torch.ones(5000, 3), torch.cat([ring, ring.flip(0)], dim=1)), {})
        >>> x.shape, edge_index.shape[1] < 512
        (torch.Size([256, 3]), True)
    """
    leaves = [leaf for leaf in (*args, *kwargs.values()) if leaf is not None and not isinstance(leaf, float | str)]
    if len(leaves) == 1 and hasattr(leaves[0], "subgraph"):
        parts = [_of_data(leaves[0])]
    elif all(type(leaf) in (Tensor, int, bool) for leaf in leaves):
        parts = _of_tensors(leaves)
    else:
        return None
    if not parts or parts[0] is None:
        return None
    chosen = {id(leaf): part for leaf, part in zip(leaves, parts, strict=True)}
    return (
        tuple(chosen.get(id(leaf), leaf) for leaf in args),
        {name: chosen.get(id(leaf), leaf) for name, leaf in kwargs.items()},
    )


def _of_data(data: Any) -> Any:
    """A part of PyG's `Data` or `Batch`, None if it is small."""
    edge_index = getattr(data, "edge_index", None)
    if not isinstance(edge_index, Tensor) or (data.num_nodes or 0) < _LARGE:
        return None
    if hasattr(data, "from_data_list"):
        return data.from_data_list(data.index_select(_some_graphs(data.num_graphs, data.num_nodes)))
    return data.subgraph(_surroundings(edge_index, data.num_nodes))


def _of_tensors(leaves: Sequence[Any]) -> list[Any]:
    """The same part of every tensor; nothing if it is not clear along what each of them counts."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    links = [tensor for tensor in tensors if tensor.dtype == torch.int64 and tensor.ndim == 2 and len(tensor) == 2]
    if len(links) != 1 or not links[0].numel() or any(tensor.layout != torch.strided for tensor in tensors):
        return []
    edge_index, edges = links[0], links[0].shape[1]
    along = [tensor for tensor in tensors if tensor is not edge_index]
    nodes = max((len(tensor) for tensor in along if len(tensor) != edges), default=0)
    if nodes < _LARGE or int(edge_index.max()) >= nodes:
        return []
    batch = next((tensor for tensor in along if _is_batch(tensor, nodes, edge_index)), None)
    graphs = 0 if batch is None else int(batch[-1]) + 1
    lengths = {nodes, edges, graphs}
    if any(len(tensor) not in lengths or lengths & set(tensor.shape[1:]) for tensor in along):
        return []
    if any(isinstance(leaf, int) and leaf in lengths and leaf > 1 for leaf in leaves):
        return []
    if batch is None:
        kept, chosen = _surroundings(edge_index, nodes), torch.zeros(0, dtype=torch.int64)
    else:
        chosen = _some_graphs(graphs, nodes).to(batch.device)
        kept = torch.isin(batch, chosen).nonzero().flatten()
    place = torch.full((nodes,), -1, device=kept.device).index_copy_(
        0, kept, torch.arange(len(kept), device=kept.device)
    )
    moved = place[edge_index]
    inside = (moved >= 0).all(0)
    part: dict[int, Tensor] = {id(edge_index): moved[:, inside]}
    if batch is not None:
        part[id(batch)] = torch.searchsorted(chosen, batch[kept])
    for tensor in along:
        by = {nodes: kept, edges: inside, graphs: chosen}[len(tensor)]
        part.setdefault(id(tensor), tensor[by])
    return [part.get(id(leaf), leaf) for leaf in leaves]


def _is_batch(tensor: Tensor, nodes: int, edge_index: Tensor) -> bool:
    """True where a tensor says to which of several graphs each node belongs."""
    if tensor.dtype != torch.int64 or tensor.shape != (nodes,) or int(tensor[0]) != 0 or int(tensor[-1]) == 0:
        return False
    steps = tensor.diff()
    ends = tensor[edge_index]
    return bool(((steps == 0) | (steps == 1)).all()) and torch.equal(ends[0], ends[1])


def _some_graphs(graphs: int, nodes: int) -> Tensor:
    """Evenly spaced ones, with about as many nodes as are wanted."""
    count = min(graphs, max(2, _NODES * graphs // nodes))
    return torch.arange(count) * graphs // count


def _surroundings(edge_index: Tensor, nodes: int) -> Tensor:
    """Nodes that are connected with each other, in ascending order."""
    inside = torch.zeros(nodes, dtype=torch.bool, device=edge_index.device)
    while (missing := _NODES - int(inside.sum())) > 0:
        reached = inside.clone()
        for start, end in (edge_index, edge_index.flip(0)):
            reached[end[inside[start]]] = True
        new = (reached & ~inside).nonzero().flatten()
        if not len(new):
            outside = edge_index[0][~inside[edge_index[0]]]
            new = outside[:: max(1, len(outside) // _SEEDS)][:_SEEDS]
        if not len(new):
            break
        inside[new[:missing]] = True
    return inside.nonzero().flatten()


def perturb(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with each entry x replaced by (1 - t) x + t r, so that no coincidence (equal weights) counts.

    t is uniform in [0, 0.2], r uniform between the smallest and the largest entry of the tensor and zero (between
    zero and one where all entries are zero): non-negative edge weights stay non-negative. Of a sparse tensor only the
    stored values move; what is not floating, NaN and infinite stays. The generator is on the CPU for every device.

    Example:
        >>> x = torch.tensor([1.0, 0.0, 2.0])
        >>> y = perturb(x, torch.Generator().manual_seed(0))
        >>> bool((y != x).all() and (y >= 0).all() and (y <= 2).all())
        True
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    if tensor.layout is not torch.strided:
        moved = tensor.clone()
        values = moved._values() if tensor.layout is torch.sparse_coo else moved.values()
        values.copy_(perturb(values, generator))
        return moved
    finite = tensor.isfinite()
    known = torch.where(finite, tensor, 0)
    low, high = known.min().clamp(max=0), known.max().clamp(min=0)
    high = torch.where(low == high, 1, high).to(tensor.dtype)
    share, place = (torch.rand(tensor.shape, generator=generator).to(tensor) for _ in range(2))
    share = _STRENGTH * share
    return torch.where(finite, (1 - share) * known + share * (low + place * (high - low)), tensor)
