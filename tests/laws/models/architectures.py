"""Further architectures without a graph, most of them written by hand in awkward ways, for the zoo."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from tests.laws.models.graph import HID, HID2, IN, OUT, ROWS, Case, Factory


def on_rows(model: nn.Module, width: int = IN) -> Case:
    return Case(model, (torch.randn(ROWS, width),))


class Experts(nn.Module):
    """Three small networks mixed by a softmax gate, or the best one only."""

    def __init__(self, *, hard: bool) -> None:
        super().__init__()
        self.gate, self.hard = nn.Linear(IN, 3), hard
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(IN, HID2), nn.ReLU(), nn.Linear(HID2, OUT)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        if not self.hard:
            return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        best = weights.argmax(-1)
        out = torch.zeros(len(x), OUT, dtype=x.dtype)
        for i, expert in enumerate(self.experts):
            chosen = best == i
            out[chosen] = expert(x[chosen]) * weights[chosen, i : i + 1]
        return out


class Highway(nn.Module):
    """t * relu(W x) + (1 - t) * x."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(IN, HID), nn.Linear(HID, OUT)
        self.h, self.t = nn.Linear(HID, HID), nn.Linear(HID, HID)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.embed(x))
        t = torch.sigmoid(self.t(x))
        return self.read(t * F.relu(self.h(x)) + (1 - t) * x)


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank trained correction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, HID), nn.Linear(HID, OUT)
        self.first.weight.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, IN)), nn.Parameter(torch.randn(HID, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x) + 0.5 * (x @ self.a.t()) @ self.b.t()))


class InPlace(nn.Module):
    """The same network with in-place operations and slices written into zeros."""

    def __init__(self, *, slices: bool) -> None:
        super().__init__()
        self.first, self.other, self.second = nn.Linear(IN, HID), nn.Linear(IN, HID2), nn.Linear(HID + HID2, OUT)
        self.slices = slices

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.other(x)
        if self.slices:
            out = torch.zeros(len(x), HID + HID2, dtype=x.dtype)
            out[:, :HID] = a
            out[:, HID:] += b
            return self.second(out.relu_())
        a.mul_(2.0).relu_()
        b.clamp_(min=0).mul_(1.5)
        return self.second(torch.cat([a, b], dim=1))


class Scattered(nn.Module):
    """Only some units pass through the activation; the others are scaled and put in place by index."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(IN, 6), nn.Linear(6, OUT), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out = torch.zeros_like(h)
        out[:, [0, 2, 4]] = F.relu(h[:, [0, 2, 4]])
        out.index_copy_(1, torch.tensor([1, 3, 5]), h[:, 1::2] * self.scale)
        return self.second(out.flip(1).roll(2, 1))


class Equivariant(nn.Module):
    """EGNN-like: messages from squared distances, positions moved along differences; both are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * 3 + 1, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
        self.move, self.node = nn.Linear(4, 1, bias=False), nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, h: Tensor, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        source, target = edge_index
        difference = x[source] - x[target]
        message = self.edge(torch.cat([h[source], h[target], difference.square().sum(1, keepdim=True)], dim=1))
        x = x.index_add(0, target, difference * self.move(message))
        total = torch.zeros(len(h), 4, dtype=h.dtype).index_add(0, target, message)
        return {"h": h + self.node(torch.cat([h, total], dim=1)), "x": x}


def pruned() -> Case:
    model = nn.Sequential(nn.Linear(IN, HID), nn.ReLU(), nn.Linear(HID, OUT))
    prune.random_unstructured(model[0], "weight", amount=0.3)
    return on_rows(model)


def triples() -> tuple[Tensor, Tensor, Tensor]:
    links = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 3), torch.randn(5, 3), links


ZOO: dict[str, Factory] = {
    "nn.Bilinear": lambda: Case(nn.Bilinear(IN, 3, OUT), (torch.randn(ROWS, IN), torch.randn(ROWS, 3))),
    "prelu channelwise": lambda: on_rows(nn.Sequential(nn.Linear(IN, HID), nn.PReLU(HID), nn.Linear(HID, OUT))),
    "pruned": pruned,
    "in-place": lambda: on_rows(InPlace(slices=False)),
    "slices written": lambda: on_rows(InPlace(slices=True)),
    "scattered": lambda: on_rows(Scattered()),
    "experts": lambda: on_rows(Experts(hard=False)),
    "experts hard": lambda: on_rows(Experts(hard=True)),
    "highway": lambda: on_rows(Highway()),
    "lora": lambda: on_rows(Adapted()),
    "egnn": lambda: Case(Equivariant(), triples()),
}
