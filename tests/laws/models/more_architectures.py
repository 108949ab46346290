"""Architectures that choose neighbors or weights, throw results away, or move channels and pixels, for the zoo."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from tests.laws.models.graph import HID, HID2, IN, OUT, ROWS, Case, Factory
from tests.laws.models.more_convolutions import graph_of_types
from tests.laws.models.operations import written


class DynamicGraph(nn.Module):
    """DGCNN: edge convolutions over the nearest neighbors in the space of the features."""

    def __init__(self, nearest: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Linear(6, HID), nn.Linear(2 * HID, HID2), nn.Linear(HID2, OUT)
        self.nearest = nearest

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            neighbors = x[self.nearest(x)]
            center = x.unsqueeze(1).expand_as(neighbors)
            x = layer(torch.cat([center, neighbors - center], dim=-1)).relu().amax(1)
        return self.read(x)


def by_distance(x: Tensor) -> Tensor:
    return torch.cdist(x, x).topk(3, largest=False).indices


def by_products(x: Tensor) -> Tensor:
    squares = x.square().sum(1, keepdim=True)
    return (2 * x @ x.t() - squares - squares.t()).topk(3).indices


class ConvE(nn.Module):
    """Embeddings of a head and a relation as one image, convolved, and compared with every entity."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.entities, self.relations = nn.Embedding(5, 6), nn.Embedding(2, 6)
        self.conv, self.linear = nn.Conv2d(1, 2, 2, bias=bias), nn.Linear(12, 6)
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        image = torch.cat([self.entities(head).view(-1, 1, 2, 3), self.relations(relation).view(-1, 1, 2, 3)], 2)
        hidden = self.linear(self.conv(image).relu().flatten(1)).relu()
        return hidden @ self.entities.weight.t() + self.bias


class WaveNet(nn.Module):
    """Gated convolutions with a residual stream, whose last state nothing reads."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.start, self.end = nn.Conv1d(1, width, 1), nn.Conv1d(width, OUT, 1)
        self.filters, self.gates = (nn.ModuleList(nn.Conv1d(width, width, 2) for _ in range(2)) for _ in range(2))
        self.streams, self.skips = (nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.start(x), list[Tensor]()
        for layer in range(2):
            gated = self.filters[layer](x).tanh() * self.gates[layer](x).sigmoid()
            skips.append(self.skips[layer](gated))
            x = x[..., -gated.shape[-1] :] + self.streams[layer](gated)
        return self.end(sum(skip[..., -gated.shape[-1] :] for skip in skips).relu())


class OneType(nn.Module):
    """HAN of which only one type of nodes is read."""

    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.conv, self.read = gnn.HANConv({"p": 4, "a": 3}, 4, metadata, heads=2), nn.Linear(4, OUT)

    def forward(self, x: dict[str, Tensor], links: dict[Any, Tensor]) -> Tensor:
        return self.read(self.conv(x, links)["p"])


class PairNorm(nn.Module):
    """Rows are centered and divided by a size, which the function gets with the epsilon."""

    def __init__(self, size: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Linear(IN, HID), nn.Linear(HID, HID2), nn.Linear(HID2, OUT)
        self.size, self.eps = size, 1e-6

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x - x.mean(0)
        return self.read(self.second(x / self.size(x, self.eps)).relu())


SIZES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "root": lambda x, eps: (x.square().sum(1).mean() + eps).sqrt(),
    "root first": lambda x, eps: eps + x.pow(2).sum(1).mean().sqrt(),
    "reciprocal root": lambda x, eps: 1 / torch.rsqrt(eps + x.norm(dim=1).pow(2).mean()),
    "row by row": lambda x, eps: (eps + x.pow(2).sum(1, keepdim=True)).sqrt(),
}


def large(weight: Tensor) -> Tensor:
    """The larger half of the entries."""
    chosen = weight.abs().flatten().topk(weight.numel() // 2).indices
    return weight * torch.zeros(weight.numel(), dtype=weight.dtype).index_fill(0, chosen, 1.0).view_as(weight)


def masked(mask: Callable[[Tensor], Tensor]) -> Case:
    return written(lambda x, a, b: F.relu(x @ mask(a).t()) @ mask(b).t(), a=(HID, IN), b=(OUT, HID))


def shuffled(shuffle: nn.Module) -> Case:
    layers = (nn.Conv2d(2, 6, 2), nn.ReLU(), shuffle, nn.Conv2d(6, 4, 2, groups=2), nn.ReLU())
    return on_images(*layers, nn.Flatten(), nn.Linear(16, OUT))


class ShuffledByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, channels, *size = x.shape
        return x.view(batch, 2, channels // 2, *size).transpose(1, 2).contiguous().view(batch, channels, *size)


def on_images(*layers: nn.Module) -> Case:
    return Case(nn.Sequential(*layers), (torch.randn(3, 2, 4, 4),))


def resampled(kind: str) -> Case:
    up = nn.Upsample(scale_factor=2, mode=kind)
    layers = (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.ReLU(), up, nn.ReplicationPad2d(1))
    return on_images(*layers, nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, OUT))


def by_patches() -> Case:
    windows = nn.Sequential(nn.Unfold(2, padding=1), nn.ReLU(), nn.Fold((4, 4), 2, padding=1))
    return on_images(nn.Conv2d(2, 3, 1), windows, nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, OUT))


def crossed() -> Case:
    return written(
        lambda x, a, b, c: torch.linalg.cross(x @ a.t(), x @ b.t()) @ c.t(), a=(3, IN), b=(3, IN), c=(OUT, 3)
    )


def above(threshold: float, value: float) -> Case:
    return written(lambda x, a, b: F.threshold(x @ a.t(), threshold, value) @ b.t(), a=(HID, IN), b=(OUT, HID))


def bags() -> Case:
    model = nn.Sequential(nn.EmbeddingBag(6, HID, mode="sum"), nn.ReLU(), nn.Linear(HID, OUT))
    return Case(model, (torch.tensor([[0, 1, 2], [3, 4, 5], [0, 3, 1], [5, 2, 2]]),))


def cloud(nearest: Callable[[Tensor], Tensor], points: int) -> Case:
    return Case(DynamicGraph(nearest), (torch.randn(points, 3),))


def one_type() -> Case:
    x, links, metadata = graph_of_types()
    return Case(OneType(metadata), (x, links))


ZOO: dict[str, Factory] = {
    "nearest by distance": lambda: cloud(by_distance, 8),
    "nearest of many by distance": lambda: cloud(by_distance, 30),
    "nearest by products": lambda: cloud(by_products, 8),
    "conve": lambda: Case(ConvE(bias=True), (torch.arange(5), torch.tensor([0, 1, 0, 1, 1]))),
    "conve no bias": lambda: Case(ConvE(bias=False), (torch.arange(5), torch.tensor([0, 1, 0, 1, 1]))),
    "weights above a magnitude": lambda: masked(lambda weight: weight * (weight.abs() > 0.1)),
    "larger half of the weights": lambda: masked(large),
    "wavenet": lambda: Case(WaveNet(), (torch.randn(4, 1, 6),)),
    "han read at one type": one_type,
    **{
        f"pair norm, {name}": partial(lambda size: Case(PairNorm(size), (torch.randn(ROWS, IN),)), size)
        for name, size in SIZES.items()
    },
    "channels shuffled": lambda: shuffled(nn.ChannelShuffle(2)),
    "channels shuffled by hand": lambda: shuffled(ShuffledByHand()),
    **{f"resampled {kind}": partial(resampled, kind) for kind in ("nearest", "bilinear")},
    "patches": by_patches,
    "cross product": crossed,
    "threshold at zero": lambda: above(0.0, 0.0),
    "threshold at zero to minus one": lambda: above(0.0, -1.0),
    "threshold elsewhere": lambda: above(0.3, 0.0),
    "bags of words": bags,
}
