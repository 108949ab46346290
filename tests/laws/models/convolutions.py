"""Models with fixed neighborhood averages, for the zoo."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.graph import (
    HID,
    HID2,
    IN,
    OUT,
    Case,
    Factory,
    edge_features,
    edges,
    features,
    stack,
)


class LearnedSkip(nn.Module):
    """conv(x) + R x before the activation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(inputs, outputs)
        self.skip = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) + self.skip(x)


class Residual(nn.Module):
    """Encoder, layers h + relu(conv(h)), decoder."""

    def __init__(
        self, make: Callable[[int, int], nn.Module], depth: int = 3, norm: Callable[[int], nn.Module] | None = None
    ):
        super().__init__()
        self.encode = nn.Linear(IN, HID)
        self.convs = nn.ModuleList(make(HID, HID) for _ in range(depth))
        self.norms = nn.ModuleList(norm(HID) if norm else nn.Identity() for _ in range(depth))
        self.decode = nn.Linear(HID, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encode(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, edge_index)))
        return self.decode(x)


class InitialSkip(nn.Module):
    """GCNII: every layer also sees the encoded features."""

    def __init__(self, *, shared_weights: bool) -> None:
        super().__init__()
        self.encode = nn.Linear(IN, HID)
        self.convs = nn.ModuleList(
            gnn.GCN2Conv(HID, alpha=0.1, theta=0.5, layer=i + 1, shared_weights=shared_weights) for i in range(3)
        )
        self.decode = nn.Linear(HID, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = first = F.relu(self.encode(x))
        for conv in self.convs:
            x = F.relu(conv(x, first, edge_index))
        return self.decode(x)


class Propagated(nn.Module):
    """APPNP: an MLP, then propagation without weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, HID), nn.Linear(HID, OUT)
        self.propagate = gnn.APPNP(K=3, alpha=0.1, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(self.second(F.relu(self.first(x))), edge_index)


class Jumping(nn.Module):
    """Three GCN layers whose outputs are joined."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        widths = [(IN, HID), (HID, 4), (4, 3)] if mode == "cat" else [(IN, HID), (HID, HID), (HID, HID)]
        self.convs = nn.ModuleList(gnn.GCNConv(i, o) for i, o in widths)
        self.jump = gnn.JumpingKnowledge(mode, channels=HID, num_layers=3)
        self.decode = nn.Linear(HID + 7 if mode == "cat" else HID, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        outputs = []
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
            outputs.append(x)
        return self.decode(self.jump(outputs))


class Global(nn.Module):
    """GPSConv between an encoder and a decoder."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(IN, 4), nn.Linear(4, OUT)
        self.conv = gnn.GPSConv(4, gnn.GCNConv(4, 4), heads=2, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.decode(self.conv(self.encode(x), edge_index))


class Hetero(nn.Module):
    """Two node types, three edge types, two layers."""

    def __init__(self) -> None:
        super().__init__()
        types = [("p", "cites", "p"), ("a", "writes", "p"), ("p", "by", "a")]
        self.first = gnn.HeteroConv(
            {
                t: gnn.SAGEConv((4, 3) if t[0] == "p" and t[2] == "a" else (3, 4) if t[0] == "a" else (4, 4), HID)
                for t in types
            }
        )
        self.second = gnn.HeteroConv(
            {t: gnn.GATConv((HID, HID), OUT, add_self_loops=False) for t in types}, aggr="mean"
        )

    def forward(self, x: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        x = {key: F.relu(value) for key, value in self.first(x, edge_index).items()}
        return self.second(x, edge_index)


def hetero() -> Case:
    across = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 2], [0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 0]])
    links = {("p", "cites", "p"): edges(), ("a", "writes", "p"): across.flip(0), ("p", "by", "a"): across}
    return Case(Hetero(), ({"p": features(4), "a": features(3, 4)}, links))


def gin(norm: bool = False, train_eps: bool = True) -> Case:
    def mlp(i: int, o: int) -> nn.Module:
        middle = [nn.BatchNorm1d(4)] if norm else []
        return gnn.GINConv(nn.Sequential(nn.Linear(i, 4), *middle, nn.ReLU(), nn.Linear(4, o)), train_eps=train_eps)

    return stack(mlp)


def gine() -> Case:
    def mlp(i: int, o: int) -> nn.Module:
        return gnn.GINEConv(nn.Sequential(nn.Linear(i, 4), nn.ReLU(), nn.Linear(4, o)), edge_dim=3)

    return stack(mlp, edge_features())


def sage(**options: object) -> Case:
    case = stack(lambda i, o: gnn.SAGEConv(i, o, **options))
    by_target = edges()[:, edges()[1].argsort(stable=True)]  # the LSTM aggregation demands it
    return Case(case.model, (case.args[0], by_target))


def gcn(norm: Callable[[int], nn.Module] | None = None, bias: bool = True, **options: object) -> Case:
    norms = (norm(HID), norm(HID2)) if norm else ()
    return stack(lambda i, o: gnn.GCNConv(i, o, bias=bias), norms=norms, **options)


def on_graph(model: nn.Module) -> Case:
    return Case(model, (features(), edges()))


ZOO: dict[str, Factory] = {
    "gcn": gcn,
    "gcn elu": lambda: gcn(act=F.elu),
    "gcn identity skip": lambda: on_graph(Residual(gnn.GCNConv)),
    "gcn learned skip": lambda: stack(LearnedSkip),
    "gcn pair norm individually": lambda: gcn(lambda n: gnn.PairNorm(scale_individually=True)),
    "gcn mean subtraction norm": lambda: gcn(lambda n: gnn.MeanSubtractionNorm()),
    "sage mean": sage,
    "sage no root": lambda: sage(root_weight=False),
    "sage lstm": lambda: sage(aggr="lstm"),
    "graph conv": lambda: stack(lambda i, o: gnn.GraphConv(i, o)),
    "gin": gin,
    "gin batch norm": lambda: gin(norm=True),
    "gine": gine,
    "gcnii": lambda: on_graph(InitialSkip(shared_weights=True)),
    "appnp": lambda: on_graph(Propagated()),
    "jk max": lambda: on_graph(Jumping("max")),
    "gps": lambda: on_graph(Global()),
    "hetero": hetero,
}
