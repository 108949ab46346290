"""Models with attention over neighbors, for the zoo."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn
from torch_geometric.utils import softmax

from gatdiag.remedies import lipschitz_normalize_
from tests.laws.models.graph import (
    HID,
    HID2,
    IN,
    OUT,
    Case,
    Factory,
    Stack,
    edge_features,
    edges,
    features,
    stack,
    undirected,
)


class LipschitzGAT(nn.Module):
    """GATv1 whose scores are divided by ||(a_s, a_t)|| * max_u ||W x_u|| (LipschitzNorm for additive scores)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.att_s = nn.Parameter(torch.randn(outputs))
        self.att_t = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        h = self.lin(x)
        size = (self.att_s.square().sum() + self.att_t.square().sum()).sqrt() * h.norm(dim=1).max()
        score = (h[source] @ self.att_s + h[target] @ self.att_t) / size
        alpha = softmax(score, target, num_nodes=len(x))
        return torch.zeros_like(h).index_add(0, target, alpha[:, None] * h[source])


def heads(conv: type[nn.Module], count: int, *, mean: bool = False, **options: object) -> Case:
    """Two layers of several heads (concatenated, or averaged) and a last layer of one head."""
    width = HID2 if mean else HID2 * count
    layers = [
        conv(IN, HID2, heads=count, concat=not mean, **options),
        conv(width, 2, heads=count, concat=not mean, **options),
        conv(2 if mean else 2 * count, OUT, heads=1, **options),
    ]
    return Case(Stack(*layers), (features(), edges()))


def mixed_heads() -> Case:
    layers = [
        gnn.GATv2Conv(IN, 2, heads=3, concat=True, share_weights=True),
        gnn.GATv2Conv(6, 4, heads=2, concat=False),
        gnn.GATv2Conv(4, OUT, heads=2, concat=False),
    ]
    return Case(Stack(*layers), (features(), edges()))


def gat_edges(conv: type[nn.Module], **options: object) -> Case:
    layers = [conv(i, o, edge_dim=3, **options) for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))]
    return Case(Stack(*layers), (features(), edges(), edge_features()))


def supergat(kind: str, **options: object) -> Case:
    layers = [
        gnn.SuperGATConv(i, o, attention_type=kind, is_undirected=True, **options)
        for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))
    ]
    return Case(Stack(*layers), (features(), undirected()))


shared = partial(gnn.GATv2Conv, share_weights=True, bias=False)
transformer = gnn.TransformerConv


def normalized(case: Case, remedy: Callable[[nn.Module], object] = lipschitz_normalize_) -> Case:
    remedy(case.model)
    return case


ZOO: dict[str, Factory] = {
    "gatv1": lambda: stack(lambda i, o: gnn.GATConv(i, o)),
    "gatv1 residual": lambda: stack(lambda i, o: gnn.GATConv(i, o, residual=True)),
    "gatv1 heads concat": lambda: heads(gnn.GATConv, 2),
    "gatv1 heads mean": lambda: heads(gnn.GATConv, 2, mean=True),
    "gatv2 shared": lambda: stack(shared),
    "gatv2 shared bias": lambda: stack(lambda i, o: gnn.GATv2Conv(i, o, share_weights=True)),
    "gatv2 unshared": lambda: stack(lambda i, o: gnn.GATv2Conv(i, o, bias=False)),
    "gatv2 unshared bias": lambda: stack(lambda i, o: gnn.GATv2Conv(i, o)),
    "gatv2 residual": lambda: stack(lambda i, o: gnn.GATv2Conv(i, o, residual=True)),
    "gatv2 heads concat": lambda: heads(gnn.GATv2Conv, 2, share_weights=True),
    "gatv2 heads concat unshared": lambda: heads(gnn.GATv2Conv, 2, bias=False),
    "gatv2 heads mean": lambda: heads(gnn.GATv2Conv, 2, mean=True, share_weights=True, bias=False),
    "gatv2 heads mean unshared": lambda: heads(gnn.GATv2Conv, 2, mean=True),
    "gatv2 heads mixed": mixed_heads,
    "gatv2 dropout": lambda: heads(gnn.GATv2Conv, 2, share_weights=True, bias=False, dropout=0.3),
    "gatv2 elu": lambda: stack(shared, act=F.elu),
    "lipschitz gat": lambda: stack(LipschitzGAT),
    "gatv2 lipschitz norm": lambda: normalized(heads(gnn.GATv2Conv, 2)),
    "transformer lipschitz norm": lambda: normalized(stack(lambda i, o: transformer(i, o))),
    "supergat MX": lambda: supergat("MX"),
    "supergat SD": lambda: supergat("SD"),
    "transformer no bias": lambda: stack(lambda i, o: transformer(i, o, bias=False)),
    "transformer edge features": lambda: gat_edges(transformer),
}
