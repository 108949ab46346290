"""The edges between the rows of X, of which there are several for each node if a layer's output holds many signals.

A batch of signals on one graph, such as (time, nodes, channels), counts as that many copies of the graph without edges
between them, which is what torch-geometric makes of a batch of graphs. So X has a row for each node of each copy.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.structure.modules import attributes_of
from gatdiag.structure.tensors import items_of

_SEVERAL_KINDS = (
    "its inputs are given as a tuple or dict, as for nodes of several kinds, which no edges of one kind join"
)


def is_edge_index(item: Any) -> bool:
    """True for an integer tensor of shape [2, E]."""
    return (
        issubclass(type(item), Tensor)
        and item.layout == torch.strided
        and item.dim() == 2
        and len(item) == 2
        and item.dtype == torch.int64
    )


def find_edge_index(module: nn.Module, inputs: Sequence[Any]) -> Tensor | None:
    """The edges among the inputs of a layer; the integers given to an embedding are none."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None
    return next(filter(is_edge_index, inputs), None)


def has_several_kinds(inputs: Sequence[Any]) -> bool:
    """True if tensors are given in a tuple, list or dict, as to bipartite and heterogeneous layers."""
    return any(
        issubclass(type(part), Tensor)
        for item in inputs
        if issubclass(type(item), tuple | list | dict)
        for part in items_of(item)
    )


def node_axis(module: nn.Module, x: Tensor) -> int | None:
    """The axis along which a convolution of PyG propagates; None for any other module.

    Example:
        >>> from torch_geometric.nn import GATConv, GCNConv
        >>> x = torch.zeros(3, 7, 4)
        >>> node_axis(GCNConv(4, 4), x), node_axis(GCNConv(4, 4, node_dim=0), x), node_axis(nn.Linear(4, 4), x)
        (1, 0, None)
    """
    axis = attributes_of(module).get("node_dim") if hasattr(type(module), "propagate") else None
    if type(axis) is not int:
        return None
    return 0 if x.dim() == 1 else axis % x.dim() if -x.dim() <= axis < x.dim() else None


class Edges:
    """The edges of the layers of one forward pass: those that a layer was given, or the last ones given before it."""

    def __init__(self) -> None:
        self._edge_index: Tensor | None = None
        self._least = 0  # number of nodes that its entries need
        self._nodes: int | None = None  # number of nodes of the layer that was given it
        self._is_of_several_kinds = False  # a layer has been given nodes of several kinds

    def between_rows(
        self, module: nn.Module, inputs: Sequence[Any], output: Tensor, channels: int
    ) -> tuple[Tensor | None, str]:
        """The edges between the rows of the matrix that an output becomes, and why there are none.

        Of a convolution of PyG, the axis of the nodes is that along which it propagates. Of another layer it is the
        only one, besides that of the channels, that is as long as that of the convolution before it; without one, the
        only one that is long enough for the edges.

        Returns:
            (2, edges), and ""; or None and the reason, "" if the output is simply not on the graph.
        """
        given = find_edge_index(module, inputs)
        if (given is not None or any(issubclass(type(item), dict) for item in inputs)) and has_several_kinds(inputs):
            self._edge_index, self._is_of_several_kinds = None, True
            return None, _SEVERAL_KINDS
        self._take(given)
        if self._edge_index is None:
            return None, ""
        found = self._candidates(module, output, channels, is_given=given is not None)
        if len(found) != 1:
            shape = tuple(output.shape)
            return None, f"several axes of its output, of shape {shape}, may be that of the nodes" if found else ""
        if given is not None:
            self._nodes = output.shape[found[0]]
        return _of_rows(self._edge_index, output.shape, found[0], channels), ""

    def _take(self, given: Tensor | None) -> None:
        if given is None and self._is_of_several_kinds:
            self._edge_index = None  # nobody knows of which kind the nodes of this layer are
        elif given is not None and given is not self._edge_index:
            self._edge_index, self._nodes = given, None
            self._least = int(given.max()) + 1 if given.numel() else 0

    def _candidates(self, module: nn.Module, output: Tensor, channels: int, *, is_given: bool) -> list[int]:
        """The axes that may be that of the nodes."""
        axis = node_axis(module, output) if is_given else None
        others = (
            range(output.dim()) if output.dim() == 1 else sorted({*range(output.dim())} - {channels % output.dim()})
        )
        if axis is not None and axis in others:
            return [axis] if output.shape[axis] >= self._least else []
        if self._nodes is None:
            return [each for each in others if output.shape[each] >= self._least]
        return [each for each in others if output.shape[each] == self._nodes]


def _of_rows(edge_index: Tensor, shape: Sequence[int], nodes: int, channels: int) -> Tensor:
    """The edges of each copy of the graph, between rows as `as_rows` orders them."""
    if len(shape) < 3:
        return edge_index
    channels %= len(shape)
    before, after = (
        prod(length for axis, length in enumerate(shape) if axis != channels and axis in axes)
        for axes in (range(nodes), range(nodes + 1, len(shape)))
    )
    if before == after == 1:
        return edge_index
    first = torch.arange(before, device=edge_index.device) * (shape[nodes] * after)
    copies = (first.unsqueeze(1) + torch.arange(after, device=edge_index.device)).flatten()
    return (copies.view(1, -1, 1) + after * edge_index.unsqueeze(1)).flatten(1)
