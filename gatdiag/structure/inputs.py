"""Inputs that an analysis uses in place of the user's: a sample of large graphs, perturbed."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gatdiag.structure.copying import map_tensors
from gatdiag.structure.tensors import all_tensors

_LARGE = 1024  # nodes; smaller graphs are not sampled
_NODES = 256  # approximate size of a sample
_SEEDS = 8  # nodes to start from where the sample is a whole component and still too small
_STRENGTH = 0.2  # largest share of an entry that is replaced by noise: far above rounding, but the input stays similar

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def sample_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs | None:
    """A sample of the inputs, if they are large graphs: some whole graphs of a batch, or a subgraph of a single graph.

    Inputs may be PyG's `Data` or `Batch`, or tensors whose first dimension is nodes, edges or graphs, one of them an
    edge_index.

    Returns:
        The sampled args and kwargs; None if the inputs are small or of any other kind.

    Example:
        >>> ring = torch.stack([torch.arange(5000), torch.arange(1, 5001) % 5000])
        >>> (x, edge_index), _ = sample_inputs((torch.ones(5000, 3), torch.cat([ring, ring.flip(0)], dim=1)), {})
        >>> x.shape, edge_index.shape[1] < 512
        (torch.Size([256, 3]), True)
    """
    leaves = [leaf for leaf in (*args, *kwargs.values()) if leaf is not None and not isinstance(leaf, float | str)]
    if len(leaves) == 1 and hasattr(leaves[0], "subgraph"):
        parts = [_sample_data(leaves[0])]
    elif all(type(leaf) in (Tensor, int, bool) for leaf in leaves):
        parts = _sample_tensors(leaves)
    else:
        return None
    if not parts or parts[0] is None:
        return None
    sampled = {id(leaf): part for leaf, part in zip(leaves, parts, strict=True)}
    return (
        tuple(sampled.get(id(leaf), leaf) for leaf in args),
        {name: sampled.get(id(leaf), leaf) for name, leaf in kwargs.items()},
    )


def _sample_data(data: Any) -> Any:
    """A part of PyG's `Data` or `Batch`; None if it is small."""
    edge_index = getattr(data, "edge_index", None)
    if not isinstance(edge_index, Tensor) or (data.num_nodes or 0) < _LARGE:
        return None
    if hasattr(data, "from_data_list"):
        return data.from_data_list(data.index_select(_choose_graphs(data.num_graphs, data.num_nodes)))
    return data.subgraph(_choose_nodes(edge_index, data.num_nodes))


def _sample_tensors(leaves: Sequence[Any]) -> list[Any]:
    """The same part of every tensor; [] if it is unclear whether their rows are nodes, edges or graphs."""
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
        kept, chosen = _choose_nodes(edge_index, nodes), torch.zeros(0, dtype=torch.int64)
    else:
        chosen = _choose_graphs(graphs, nodes).to(batch.device)
        kept = torch.isin(batch, chosen).nonzero().flatten()
    position = torch.full((nodes,), -1, device=kept.device).index_copy_(
        0, kept, torch.arange(len(kept), device=kept.device)
    )
    renumbered = position[edge_index]
    inside = (renumbered >= 0).all(0)
    part: dict[int, Tensor] = {id(edge_index): renumbered[:, inside]}
    if batch is not None:
        part[id(batch)] = torch.searchsorted(chosen, batch[kept])
    for tensor in along:
        index = {nodes: kept, edges: inside, graphs: chosen}[len(tensor)]
        part.setdefault(id(tensor), tensor[index])
    return [part.get(id(leaf), leaf) for leaf in leaves]


def _is_batch(tensor: Tensor, nodes: int, edge_index: Tensor) -> bool:
    """Whether a tensor holds the index of each node's graph, of several graphs."""
    if tensor.dtype != torch.int64 or tensor.shape != (nodes,) or int(tensor[0]) != 0 or int(tensor[-1]) == 0:
        return False
    steps = tensor.diff()
    ends = tensor[edge_index]
    return bool(((steps == 0) | (steps == 1)).all()) and torch.equal(ends[0], ends[1])


def _choose_graphs(graphs: int, nodes: int) -> Tensor:
    """Evenly spaced indices of graphs with about `_NODES` nodes together."""
    count = min(graphs, max(2, _NODES * graphs // nodes))
    return torch.arange(count) * graphs // count


def _choose_nodes(edge_index: Tensor, nodes: int) -> Tensor:
    """Connected nodes, in ascending order."""
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


def fill_empty(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs | None:
    """The inputs with one entry in place of none along each axis of length zero; None if there is no such axis.

    A batch without edges runs through fewer operations than others: PyG's attention layers return early. With one edge
    (from the first node to itself) it runs through all.

    Example:
        >>> (x, edge_index), _ = fill_empty((torch.ones(3, 2), torch.zeros(2, 0, dtype=torch.int64)), {})
        >>> edge_index
        tensor([[0],
                [0]])
    """
    if all(tensor.numel() for tensor in all_tensors((args, kwargs))):
        return None
    return map_tensors((args, dict(kwargs)), _fill)


def _fill(tensor: Tensor) -> Tensor:
    if tensor.numel() or tensor.layout is not torch.strided:
        return tensor
    new = torch.ones if tensor.is_floating_point() or tensor.is_complex() else torch.zeros
    return new([length or 1 for length in tensor.shape], dtype=tensor.dtype, device=tensor.device)


def perturb(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Add noise to a tensor, so that it has no coincidences such as equal entries.

    Each entry x becomes (1 - t) x + t r, with t uniform in [0, 0.2] and r uniform between min(x, 0) and max(x, 0) of
    the tensor, or in [0, 1] if all entries are zero. So non-negative edge weights stay non-negative. Integers, complex
    numbers, NaN, infinities and the implicit zeros of sparse tensors do not change.

    Args:
        tensor: Any tensor.
        generator: A generator on the CPU, whatever the tensor's device.

    Example:
        >>> x = torch.tensor([1.0, 0.0, 2.0])
        >>> y = perturb(x, torch.Generator().manual_seed(0))
        >>> bool((y != x).all() and (y >= 0).all() and (y <= 2).all())
        True
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    if tensor.layout is not torch.strided:
        result = tensor.clone()
        values = result._values() if tensor.layout is torch.sparse_coo else result.values()
        values.copy_(perturb(values, generator))
        return result
    finite = tensor.isfinite()
    known = torch.where(finite, tensor, 0)
    low, high = known.min().clamp(max=0), known.max().clamp(min=0)
    high = torch.where(low == high, 1, high).to(tensor.dtype)
    share, noise = (torch.rand(tensor.shape, generator=generator).to(tensor) for _ in range(2))
    share = _STRENGTH * share
    return torch.where(finite, (1 - share) * known + share * (low + noise * (high - low)), tensor)
