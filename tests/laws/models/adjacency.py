"""The forms in which an adjacency, its weights and a sub-graph can be handed to a model, for the zoo."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn
from torch_geometric.edge_index import EdgeIndex

from tests.laws.models.graph import HID, IN, NODES, OUT, Case, Factory, edge_weight, edges, features, stack


def sorted_edges() -> Tensor:
    return edges()[:, edges()[1].argsort(stable=True)]


def coo() -> Tensor:
    """The transposed adjacency with weights, as message passing expects it."""
    return torch.sparse_coo_tensor(edges().flip(0), edge_weight(), (NODES, NODES)).coalesce()


def csr() -> Tensor:
    return coo().to_sparse_csr()


def edge_index() -> EdgeIndex:
    return EdgeIndex(sorted_edges(), sparse_size=(NODES, NODES), sort_order="col")


class PlainSparse(nn.Module):
    """relu(A X W) written with torch.sparse.mm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, HID, bias=False), nn.Linear(HID, OUT)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.relu(torch.sparse.mm(adjacency, self.first(x)))
        return torch.sparse.mm(adjacency, self.second(x))


class Trimmed(nn.Module):
    """The seeds' rows of a GraphSAGE on a sampled sub-graph (batch_size first nodes)."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = gnn.GraphSAGE(IN, HID, 2, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch_size: int) -> Tensor:
        return self.gnn(x, edge_index)[:batch_size]


def trim_to_layer() -> Case:
    """Sub-graph in the order of hops: nodes 0-2, then 3-5, then 6-8; edges of hop one, then of hop two."""
    one = [(3, 0), (4, 0), (4, 1), (5, 1), (3, 2), (5, 2), (1, 2)]
    two = [(6, 3), (7, 3), (7, 4), (8, 4), (8, 5), (6, 5)]
    links = torch.tensor(one + two).t()
    hops = {"num_sampled_nodes_per_hop": [3, 3, 3], "num_sampled_edges_per_hop": [7, 6]}
    return Case(gnn.GraphSAGE(IN, HID, 2, OUT), (features(), links), hops)


def with_adjacency(conv: type[nn.Module], adjacency: Tensor, **options: Any) -> Case:
    case = stack(lambda i, o: conv(i, o, **options))
    return Case(case.model, (case.args[0], adjacency))


ZOO: dict[str, Factory] = {
    "gcn csr": lambda: with_adjacency(gnn.GCNConv, csr()),
    "gatv2 csr": lambda: with_adjacency(gnn.GATv2Conv, csr(), share_weights=True),
    "torch.sparse coo": lambda: Case(PlainSparse(), (features(), coo())),
    "subgraph": lambda: Case(Trimmed(), (features(), edges(), 4)),
    "subgraph trimmed by layer": trim_to_layer,
}
