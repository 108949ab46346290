"""The little graphs and the generic wrappers that the models of the zoo share."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NODES = 9
ROWS = 7
IN, HID, HID2, OUT = 4, 5, 3, 2


class Case(NamedTuple):
    """A model with example inputs: model(*args, **kwargs)."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})


Factory = Callable[[], Case]


def edges() -> Tensor:
    """A connected directed graph without self-loops, in-degrees 2 to 4, no symmetry."""
    ring = [(i, (i + 1) % NODES) for i in range(NODES)]
    skip = [(i, (i + 3) % NODES) for i in range(NODES)]
    extra = [(0, 5), (2, 7), (4, 1), (6, 3), (8, 5), (5, 0), (7, 2)]
    return torch.tensor(ring + skip + extra).t().contiguous()


def undirected() -> Tensor:
    both = torch.cat([edges(), edges().flip(0)], dim=1)
    return torch.unique(both, dim=1)


def features(width: int = IN, nodes: int = NODES) -> Tensor:
    return torch.randn(nodes, width)


def edge_weight() -> Tensor:
    return torch.rand(edges().shape[1]) + 0.2


def edge_features(width: int = 3) -> Tensor:
    return torch.randn(edges().shape[1], width)


def batch() -> Tensor:
    """Two graphs of four and five nodes (used by pooling only; edges may cross)."""
    return torch.tensor([0] * 4 + [1] * 5)


class Stack(nn.Module):
    """Graph layers with an activation (and perhaps a norm) between them; extra inputs go to every layer."""

    def __init__(
        self,
        *layers: nn.Module,
        act: Callable[[Tensor], Tensor] = F.relu,
        norms: tuple[nn.Module, ...] = (),
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(norms)
        self.act = act
        self.residual = residual

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            new = layer(x, *rest, **named)
            if not last and i < len(self.norms):
                new = self.norms[i](new)
            new = new if last else self.act(new)
            x = x + new if self.residual and x.shape == new.shape else new
        return x


def stack(make: Callable[[int, int], nn.Module], *rest: Any, **options: Any) -> Case:
    """Three layers IN -> HID -> HID2 -> OUT made by `make(in, out)`, with `edges()` and `rest` as further inputs."""
    layers = [make(i, o) for i, o in ((IN, HID), (HID, HID2), (HID2, OUT))]
    return Case(Stack(*layers, **options), (features(), edges(), *rest))
