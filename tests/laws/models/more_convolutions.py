"""Further message-passing layers, beyond the listed ones, for the zoo."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.graph import (
    HID,
    IN,
    NODES,
    OUT,
    Case,
    Factory,
    Stack,
    edge_features,
    edges,
    features,
    stack,
)


class Between(nn.Module):
    """Encoder, layers that keep the width (called with the extra inputs), decoder; relu in between."""

    def __init__(self, *layers: nn.Module, width: int = HID) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(IN, width), nn.Linear(width, OUT)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        x = F.relu(self.encode(x))
        for layer in self.layers:
            x = F.relu(layer(x, *rest))
        return self.decode(x)


class Initial(Between):
    """As Between, for layers that also take the encoded features."""

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        x = first = F.relu(self.encode(x))
        for layer in self.layers:
            x = layer(x, first, *rest)
        return self.decode(x)


class Dense(nn.Module):
    """Two layers for dense batched adjacencies."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, adjacency)), adjacency)


class HeteroTwice(nn.Module):
    """Two layers on dictionaries."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: dict[str, Tensor], links: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        return self.second({k: F.relu(v) for k, v in self.first(x, links).items()}, links)


class Memory(nn.Module):
    """DNAConv: every layer attends over the outputs of all earlier ones."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(IN, 4), nn.Linear(4, OUT)
        self.layers = nn.ModuleList(gnn.DNAConv(4, heads, groups) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        past = F.relu(self.encode(x)).unsqueeze(1)
        for layer in self.layers:
            past = torch.cat([past, F.relu(layer(past, edge_index)).unsqueeze(1)], dim=1)
        return self.decode(past[:, -1])


class WithPositions(nn.Module):
    """Layers on (features, positions, edges)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, position: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, position, edge_index)), position, edge_index)


def between(*layers: nn.Module, rest: tuple[Any, ...] = (), width: int = HID, kind: type[Between] = Between) -> Case:
    return Case(kind(*layers, width=width), (features(), edges(), *rest))


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


def two(first: nn.Module, second: nn.Module, *rest: Any) -> Case:
    return Case(Stack(first, second), (features(), edges(), *rest))


def graph_of_types() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor], tuple[Any, ...]]:
    across = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 2, 3, 5], [0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 0, 0, 3]])
    links = {("p", "cites", "p"): edges(), ("a", "writes", "p"): across.flip(0), ("p", "by", "a"): across}
    return {"p": features(4), "a": features(3, 4)}, links, (["p", "a"], list(links))


def hetero(kind: type[nn.Module], width: int = 4, **options: Any) -> Case:
    x, links, metadata = graph_of_types()
    first = kind({"p": 4, "a": 3}, width, metadata, **options)
    return Case(HeteroTwice(first, kind(width, OUT, metadata)), (x, links))


def general(**options: Any) -> Case:
    return two(gnn.GeneralConv(IN, HID, **options), gnn.GeneralConv(HID, OUT, **options))


def dense(make: Any) -> Case:
    adjacency = torch.zeros(1, NODES, NODES)
    adjacency[0, edges()[0], edges()[1]] = 1.0
    return Case(Dense(make(IN, HID), make(HID, OUT)), (features().unsqueeze(0), adjacency))


def points(make: Any) -> Case:
    return Case(WithPositions(make(IN, HID), make(HID, OUT)), (features(), torch.randn(NODES, 3), edges()))


def kinds() -> Tensor:
    return torch.arange(edges().shape[1]) % 2


def hyperedges() -> Tensor:
    return torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 2, 6, 8], [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 1, 0, 1]])


def hyper(**options: Any) -> Case:
    attributes = (None, torch.randn(3, 4)) if options else ()
    layers = [gnn.HypergraphConv(IN, HID, **options), gnn.HypergraphConv(HID, OUT)]
    if not options:
        return Case(Stack(*layers), (features(), hyperedges()))
    return Case(layers[0], (features(), hyperedges(), *attributes))


def few() -> Tensor:
    """In-degrees 0, 1 and 2, all of them present."""
    return torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 3], [3, 4, 5, 5, 6, 7, 7, 8, 4, 8, 6]])


def arma(i: int, o: int) -> nn.Module:
    return gnn.ARMAConv(i, o, num_stacks=2, num_layers=2)


def resolved_gen(aggregation: str) -> Case:
    return two(gnn.GENConv(IN, 3, aggr=aggregation, norm="layer"), gnn.GENConv(3, OUT, aggr=aggregation, norm="layer"))


ZOO: dict[str, Factory] = {
    "cheb": lambda: stack(lambda i, o: gnn.ChebConv(i, o, K=3)),
    "tag": lambda: stack(lambda i, o: gnn.TAGConv(i, o, K=2)),
    "sg": lambda: stack(lambda i, o: gnn.SGConv(i, o, K=2)),
    "arma": lambda: two(arma(IN, 3), arma(3, OUT)),
    "le": lambda: stack(lambda i, o: gnn.LEConv(i, o)),
    "mixhop": lambda: two(gnn.MixHopConv(IN, 3, powers=[0, 1, 2]), gnn.MixHopConv(9, OUT, powers=[0, 1])),
    "res gated": lambda: stack(lambda i, o: gnn.ResGatedGraphConv(i, o)),
    "dir gnn sage": lambda: stack(lambda i, o: gnn.DirGNNConv(gnn.SAGEConv(i, o))),
    "gated graph": lambda: two(gnn.GatedGraphConv(4, 2), gnn.GCNConv(4, OUT)),
    "nn conv": lambda: two(gnn.NNConv(IN, 3, mlp(3, 12)), gnn.NNConv(3, OUT, mlp(3, 6)), edge_features()),
    "gmm separate": lambda: two(
        gnn.GMMConv(IN, 3, 2, 2, separate_gaussians=True), gnn.GMMConv(3, OUT, 2, 2), edge_features(2)
    ),
    "edge conv mean": lambda: two(gnn.EdgeConv(mlp(2 * IN, HID), "mean"), gnn.EdgeConv(mlp(2 * HID, OUT), "mean")),
    "fa": lambda: between(gnn.FAConv(HID), gnn.FAConv(HID), kind=Initial),
    "hgt": lambda: hetero(gnn.HGTConv, heads=2),
    "han": lambda: hetero(gnn.HANConv, heads=2),
    "general dot product attention": lambda: general(attention=True, attention_type="dot_product", heads=2),
    "cg batch norm": lambda: between(gnn.CGConv(HID, 3, batch_norm=True), rest=(edge_features(),)),
    "feast": lambda: stack(lambda i, o: gnn.FeaStConv(i, o, heads=2)),
    "agnn": lambda: between(gnn.AGNNConv(), gnn.AGNNConv(requires_grad=False)),
    "cluster gcn": lambda: stack(lambda i, o: gnn.ClusterGCNConv(i, o, diag_lambda=0.1)),
    "film relations": lambda: two(gnn.FiLMConv(IN, 3, 2), gnn.FiLMConv(3, OUT, 2), kinds()),
    "hypergraph": hyper,
    "hypergraph attention": lambda: hyper(use_attention=True, heads=2),
    "dna": lambda: Case(Memory(1, 1), (features(), edges())),
    "dense gat": lambda: dense(lambda i, o: gnn.DenseGATConv(i, o)),
    "gen add": lambda: resolved_gen("add"),
    "eg several": lambda: two(
        gnn.EGConv(IN, 4, ["sum", "max", "symnorm"], num_heads=2, num_bases=2), gnn.GCNConv(4, OUT)
    ),
    "pdn": lambda: two(gnn.PDNConv(IN, HID, 3, 4), gnn.PDNConv(HID, OUT, 3, 4), edge_features()),
    "antisymmetric relu": lambda: between(gnn.AntiSymmetricConv(4, num_iters=2, act="relu"), width=4),
    "mf": lambda: Case(Stack(gnn.MFConv(IN, 3, max_degree=2), gnn.MFConv(3, OUT, max_degree=2)), (features(), few())),
    "rgat multiplicative": lambda: two(
        gnn.RGATConv(IN, 3, 2, attention_mode="multiplicative-self-attention"), gnn.RGATConv(3, OUT, 2), kinds()
    ),
    "fast rgcn": lambda: two(gnn.FastRGCNConv(IN, HID, 2), gnn.FastRGCNConv(HID, OUT, 2), kinds()),
    "rgcn blocks": lambda: two(gnn.RGCNConv(IN, 4, 2, num_blocks=2), gnn.RGCNConv(4, OUT, 2, num_blocks=2), kinds()),
    "heat": lambda: Case(
        gnn.HEATConv(IN, 3, 2, 2, 2, 3, 2, heads=2),
        (features(), edges(), torch.arange(NODES) % 2, kinds(), edge_features()),
    ),
    "point net": lambda: points(lambda i, o: gnn.PointNetConv(mlp(i + 3, o), mlp(o, o))),
    "point transformer": lambda: points(lambda i, o: gnn.PointTransformerConv(i, o)),
    "lightgcn style embedding": lambda: Case(gnn.LightGCN(NODES, 4, 2), (edges(), edges()[:, :6])),
    "pmlp": lambda: Case(gnn.PMLP(IN, HID, OUT, 3), (features(), edges())),
    "linkx": lambda: Case(gnn.LINKX(NODES, IN, 3, OUT, 2), (features(), edges())),
    "attentive fp": lambda: Case(
        gnn.AttentiveFP(IN, 3, OUT, 3, 2, 1),
        (features(), edges(), edge_features(), torch.zeros(NODES, dtype=torch.long)),
    ),
    "deep gcn layer": lambda: between(
        gnn.DeepGCNLayer(gnn.GCNConv(HID, HID), nn.LayerNorm(HID), nn.ReLU(), block="res+"),
        gnn.DeepGCNLayer(gnn.GCNConv(HID, HID), nn.BatchNorm1d(HID), nn.ReLU(), block="res"),
    ),
}
