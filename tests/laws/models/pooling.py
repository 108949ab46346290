"""Pooling, readout and recurrent models, for the zoo."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.graph import HID, HID2, IN, NODES, OUT, Case, Factory, batch, edges, features


class Readout(nn.Module):
    """GCN, readout over two graphs, linear."""

    def __init__(self, readout: nn.Module, width: int = HID2, joined: int | None = None) -> None:
        super().__init__()
        self.conv, self.readout = gnn.GCNConv(IN, width), readout
        self.read = nn.Linear(joined or width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        return self.read(self.readout(F.relu(self.conv(x, edge_index)), index))


class Pooled(nn.Module):
    """GCN, a pooling that keeps some nodes, GCN, mean."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.pool, self.second = gnn.GCNConv(IN, HID), pool, gnn.GCNConv(HID, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        pooled = self.pool(F.relu(self.first(x, edge_index)), edge_index, batch=index)
        return gnn.global_mean_pool(self.second(pooled[0], pooled[1]), pooled[3])


class EdgePooled(nn.Module):
    """EdgePooling merges pairs of nodes; its order is by score."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool, self.second = gnn.GCNConv(IN, HID), gnn.EdgePooling(HID), gnn.GCNConv(HID, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        x, edge_index, index, _ = self.pool(F.relu(self.first(x, edge_index)), edge_index, index)
        return gnn.global_mean_pool(self.second(x, edge_index), index)


class Squeeze(nn.Module):
    """MemPooling without its second output, clusters side by side."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.pool(x, index)[0].flatten(1)


class Diffused(nn.Module):
    """dense_diff_pool: soft clusters, its two auxiliary losses are outputs too."""

    def __init__(self, *, losses: bool) -> None:
        super().__init__()
        self.embed, self.assign = gnn.DenseGCNConv(IN, HID), gnn.DenseGCNConv(IN, 3)
        self.last, self.losses = gnn.DenseGCNConv(HID, OUT), losses

    def forward(self, x: Tensor, adjacency: Tensor) -> tuple[Tensor, ...]:
        hidden = F.relu(self.embed(x, adjacency))
        pooled, coarse, link, entropy = gnn.dense_diff_pool(hidden, adjacency, self.assign(x, adjacency))
        out = self.last(pooled, coarse)
        return (out, link, entropy) if self.losses else (out,)


class Sequence(nn.Module):
    """A recurrent layer over time, then linear."""

    def __init__(self, recurrent: nn.Module, width: int = 3) -> None:
        super().__init__()
        self.embed, self.recurrent, self.read = nn.Linear(2, 3), recurrent, nn.Linear(width, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.recurrent(F.relu(self.embed(x)))[0])


def readout(aggregation: nn.Module, width: int = HID2, joined: int | None = None) -> Case:
    return Case(Readout(aggregation, width, joined), (features(), edges(), batch()))


def within() -> Tensor:
    """Edges that stay inside their graph of the batch."""
    index = batch()
    source, target = edges()
    return edges()[:, index[source] == index[target]]


def pooled(pool: nn.Module) -> Case:
    return Case(Pooled(pool), (features(), within(), batch()))


def diffused(*, losses: bool) -> Case:
    adjacency = torch.zeros(1, NODES, NODES)
    adjacency[0, edges()[0], edges()[1]] = 1.0
    return Case(Diffused(losses=losses), (features().unsqueeze(0), adjacency))


def sequence(recurrent: nn.Module, width: int = 3) -> Case:
    return Case(Sequence(recurrent, width), (torch.randn(2, 5, 2),))


def attentional(inner: bool = False) -> Case:
    gate = nn.Sequential(nn.Linear(HID2, 4), nn.ReLU(), nn.Linear(4, 1))
    return readout(gnn.AttentionalAggregation(gate, nn.Linear(HID2, HID2) if inner else None))


def aggregator(name: str, **options: Any) -> Case:
    return readout(getattr(gnn, name)(**options))


ZOO: dict[str, Factory] = {
    "graph u-net": lambda: Case(gnn.GraphUNet(IN, 4, OUT, depth=2), (features(), edges())),
    "sag pooling": lambda: pooled(gnn.SAGPooling(HID, ratio=0.6)),
    "asap pooling": lambda: Case(Pooled(gnn.ASAPooling(HID, ratio=0.6)), (features(), within(), batch())),
    "edge pooling": lambda: Case(EdgePooled(), (features(), edges(), batch())),
    "mem pooling": lambda: readout(Squeeze(gnn.MemPooling(HID2, 4, 2, 2)), joined=8),
    "set2set": lambda: readout(gnn.Set2Set(3, 2), 3, 6),
    "attentional aggregation inner": lambda: attentional(inner=True),
    "sort aggregation": lambda: readout(gnn.SortAggregation(k=3), HID2, 3 * HID2),
    "softmax aggregation": lambda: aggregator("SoftmaxAggregation"),
    "power mean aggregation": lambda: aggregator("PowerMeanAggregation", p=2.0),
    "median aggregation": lambda: aggregator("MedianAggregation"),
    "mul aggregation": lambda: aggregator("MulAggregation"),
    "deep sets aggregation": lambda: readout(
        gnn.DeepSetsAggregation(nn.Sequential(nn.Linear(HID2, 4), nn.ReLU()), nn.Linear(4, HID2))
    ),
    "gru aggregation": lambda: readout(gnn.GRUAggregation(HID2, HID2)),
    "set transformer aggregation": lambda: readout(gnn.SetTransformerAggregation(2, heads=1), 2),
    "graph multiset transformer": lambda: readout(gnn.GraphMultisetTransformer(2, k=2), 2),
    "diff pool with losses": lambda: diffused(losses=True),
    "rnn relu": lambda: sequence(nn.RNN(3, 4, batch_first=True, nonlinearity="relu"), 4),
}
