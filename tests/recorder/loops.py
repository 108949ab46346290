"""Small models and training loops to watch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv

import gatdiag


class Gat(nn.Module):
    """Three GATv2 layers, with PyG's defaults."""

    def __init__(self, width: int = 6, layers: int = 3, dropout: float = 0.0, inputs: int = 5, **options: Any) -> None:
        super().__init__()
        sizes = [inputs, *[width] * (layers - 1), 3]
        self.convs = nn.ModuleList(GATv2Conv(a, b, dropout=dropout, **options) for a, b in pairwise(sizes))
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), self.dropout, self.training)
        return self.convs[-1](x, edge_index)


@dataclass
class Graph:
    x: Tensor
    edge_index: Tensor
    y: Tensor


def graph(nodes: int = 20, seed: int = 0) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    return Graph(
        torch.randn(nodes, 5, generator=generator),
        torch.randint(0, nodes, (2, 3 * nodes), generator=generator),
        torch.randint(0, 3, (nodes,), generator=generator),
    )


def loss_of(model: nn.Module, data: Graph) -> Tensor:
    return F.cross_entropy(model(data.x, data.edge_index), data.y)


def gradient_norm(model: nn.Module) -> float:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack([gradient.double().norm() for gradient in gradients]).norm().item()


def sgd(*parts: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for part in parts for parameter in part.parameters()], lr=lr, **options)


def train_step(model: nn.Module, data: Graph, optimizer: torch.optim.Optimizer) -> Tensor:
    """Make one step and clear the gradients; returns the loss."""
    loss = loss_of(model, data)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@dataclass
class Trained:
    """The result of a training loop."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    run: Any = None


def train(
    folder: Path | None = None,
    *,
    steps: int = 5,
    make_model: Callable[[], nn.Module] = Gat,
    make_optimizer: Callable[..., torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1),
    seed: int = 0,
    loss_of: Callable[[nn.Module, Graph], Tensor] = loss_of,
    before_step: Callable[[int, nn.Module], object] = lambda step, model: None,
    **options: Any,
) -> Trained:
    """A plain training loop, watched if there is a folder; `before_step` is called before each optimizer step."""
    torch.manual_seed(seed)
    data = graph()
    trained = Trained(make_model())
    optimizer = make_optimizer(trained.model.parameters())
    recorder = None if folder is None else gatdiag.watch(trained.model, folder, **options)
    for step in range(steps):
        loss = loss_of(trained.model, data)
        loss.backward()
        before_step(step, trained.model)
        optimizer.step()
        optimizer.zero_grad()
        trained.losses.append(loss.item())
        if recorder is not None:
            recorder.log(loss=loss)
    if recorder is not None:
        recorder.finish()
        trained.run = gatdiag.load(folder)
    return trained
