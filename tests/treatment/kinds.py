"""Small models of each kind that a fix is offered for, with what they are called with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    EdgeCNN,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    TransformerConv,
    global_mean_pool,
    to_hetero,
)

NODES: Final = 40
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 160), generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.rand(160, generator=torch.Generator().manual_seed(2))
TYPES: Final = (["a", "b"], [("a", "to", "b"), ("b", "to", "a")])
GRAPH: Final = {"x": X, "edge_index": EDGES}
HETERO: Final = {"x_dict": {"a": X, "b": X + 1}, "edge_index_dict": dict.fromkeys(TYPES[1], EDGES)}


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        make: Returns a new model.
        inputs: What it is called with, by name.
        is_by_name: Called with keywords.
    """

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Any]
    is_by_name: bool = False

    def call(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """The outputs."""
        out = model(**inputs) if self.is_by_name else model(*inputs.values())
        return out["a"] if isinstance(out, dict) else out


class Stack(nn.Module):
    """Graph convolutions with ReLU between them."""

    def __init__(self, *convs: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.convs, self.dropout = nn.ModuleList(convs), dropout

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        more = () if edge_weight is None else (edge_weight,)
        for conv in self.convs[:-1]:
            x = F.dropout(conv(x, edge_index, *more).relu(), self.dropout, self.training)
        return self.convs[-1](x, edge_index, *more)


class OfData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = GCNConv(8, 8), GCNConv(8, 8), GCNConv(8, 4)

    def forward(self, data: Data) -> Tensor:
        x = self.first(data.x, data.edge_index).relu()
        return self.last(self.second(x, data.edge_index).relu(), data.edge_index)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Stack(SAGEConv(8, 8), SAGEConv(8, 8), SAGEConv(8, 8)), nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.encoder(x, edge_index).relu(), batch))


class Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({one: SAGEConv((8, 8), width) for one in TYPES[1]}) for width in (8, 8, 4)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        for conv in self.convs[:-1]:
            x_dict = {name: x.relu() for name, x in conv(x_dict, edge_index_dict).items()}
        return self.convs[-1](x_dict, edge_index_dict)


class ByHand(nn.Module):
    """A layer that takes the adjacency matrix first."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(rows, columns) / rows**0.5), nn.Parameter(torch.zeros(columns))

    def forward(self, adj: Tensor, x: Tensor) -> Tensor:
        return adj @ x @ self.w + self.b


class OfHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([ByHand(8, 8), ByHand(8, 8), ByHand(8, 4)])

    def forward(self, adj: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(adj, x))
        return self.layers[-1](adj, x)


class AtRoot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.randn(8, width) / 3) for width in (8, 8, 4))
        self.a = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.relu(x @ self.w1) @ self.w2)
        return (x * torch.softmax(x @ self.a, 0)[:, None] * len(x)) @ self.w3


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.head = kind(8, 8, batch_first=True), kind(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.second(self.first(x)[0])
        return self.head(out[:, -1])


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.drop, self.head = nn.Dropout(0.9), nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.drop(self.layers(image).mean((-1, -2))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu())


class Unregistered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layers, self.head = torch.randn(8), [nn.Linear(8, 8), nn.Linear(8, 8)], nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x * self.scale).relu()
        return self.head(x)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def _normalized() -> nn.Module:
    model = _mlp()
    for place in (0, 2):
        nn.utils.parametrizations.weight_norm(model[place])
    return model


SEQUENCES: Final = X.reshape(10, 4, 8)
KINDS: Final[Mapping[str, Kind]] = {
    "Linear": Kind(_mlp, {"input": X}),
    "weight-normed": Kind(_normalized, {"input": X}),
    "GCN": Kind(lambda: GCN(8, 8, 4, 3, dropout=0.95), GRAPH),
    "GCN with layer norm": Kind(lambda: GCN(8, 8, 4, 3, norm="layer"), GRAPH),
    "GCN of weighted edges": Kind(
        lambda: Stack(GCNConv(8, 8), GCNConv(8, 8), GCNConv(8, 4)), {**GRAPH, "edge_weight": WEIGHTS}
    ),
    "GCN by name": Kind(lambda: GCN(8, 8, 4, 3), GRAPH, is_by_name=True),
    "of PyG's data": Kind(OfData, {"data": Data(**GRAPH)}),
    "GCN with batch norm": Kind(lambda: GCN(8, 8, 4, 3, norm="batch"), GRAPH),
    "GAT": Kind(lambda: GAT(8, 8, 4, 3), GRAPH),
    "GATv2 with heads": Kind(lambda: GAT(8, 8, 4, 3, heads=2, v2=True), GRAPH),
    "GraphSAGE": Kind(lambda: GraphSAGE(8, 8, 4, 3), GRAPH),
    "GIN": Kind(lambda: GIN(8, 8, 4, 3), GRAPH),
    "EdgeCNN": Kind(lambda: EdgeCNN(8, 8, 4, 3), GRAPH),
    "PNA": Kind(
        lambda: PNA(8, 8, 4, 3, aggregators=["mean"], scalers=["identity"], deg=torch.ones(9, dtype=torch.long)), GRAPH
    ),
    "TransformerConv": Kind(
        lambda: Stack(TransformerConv(8, 8), TransformerConv(8, 8), TransformerConv(8, 4), dropout=0.95), GRAPH
    ),
    "pooled graphs": Kind(Pooled, {**GRAPH, "batch": torch.arange(NODES) // 4}),
    "HeteroConv": Kind(Hetero, HETERO),
    "to_hetero": Kind(
        lambda: to_hetero(GraphSAGE(8, 8, 4, 3), TYPES),
        {"x": HETERO["x_dict"], "edge_index": HETERO["edge_index_dict"]},
    ),
    "by hand": Kind(OfHand, {"adj": torch.eye(NODES), "x": X}),
    "at the root": Kind(AtRoot, {"x": X}),
    "RNN": Kind(lambda: Recurrent(nn.RNN), {"x": SEQUENCES}),
    "LSTM": Kind(lambda: Recurrent(nn.LSTM), {"x": SEQUENCES}),
    "CNN": Kind(Convolutional, {"image": X.reshape(20, 1, 4, 4)}),
    "transformer": Kind(Attention, {"tokens": SEQUENCES}),
    "tied weights": Kind(Tied, {"x": X}),
    "unregistered": Kind(Unregistered, {"x": X}),
}
