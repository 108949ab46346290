"""What a report is, how one is declared, and what the rebuilt trainings have in common."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Rebuilt:
    """A training, small enough for a few seconds on one core.

    Attributes:
        model: The model that is watched.
        train: Trains it; called with a function that logs scalars.
        score: How well it does what it is for, whatever the loss says: 0 like a constant prediction, 1 perfect.
    """

    model: nn.Module
    train: Callable[[Callable[..., None]], None]
    score: Callable[[], float]


@dataclass(frozen=True)
class Report:
    """A training that somebody reported as not working.

    Attributes:
        name: A stable name.
        address: Of the report.
        fault: What was wrong, as it was found there.
        right: Codes of the causes that name it; empty if the diagnosis has no cause for it.
        near: Codes of causes that lead to the same place in the code.
        is_held_out: No rule was changed with it in view; a third of all, chosen before any was judged.
        build: Builds the training with the fault (True) or without it (False).
    """

    name: str
    address: str
    fault: str
    right: tuple[str, ...]
    near: tuple[str, ...]
    is_held_out: bool
    build: Callable[[bool], Rebuilt]


REPORTS: Final[dict[str, Report]] = {}
"""Name -> report; filled by the modules of this package."""


def report(
    address: str, fault: str, *, right: str = "", near: str = "", held_out: bool = False
) -> Callable[[Callable[[bool], Rebuilt]], Callable[[bool], Rebuilt]]:
    """Declare a report by the function that rebuilds it; codes are separated by spaces."""

    def declare(build: Callable[[bool], Rebuilt]) -> Callable[[bool], Rebuilt]:
        name = build.__name__.replace("_", "-")
        REPORTS[name] = Report(name, address, fault, tuple(right.split()), tuple(near.split()), held_out, build)
        return build

    return declare


# --- what the trainings have in common --------------------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def take_step(optimizer: Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def minimize(
    optimizer: Optimizer, losses: Callable[[Any], Tensor], batches: Iterable[Any], log: Callable[..., None]
) -> None:
    """The usual loop: a step for each batch, with the loss that is computed from it."""
    for batch in batches:
        log(loss=take_step(optimizer, losses(batch)))


def shuffled(count: int, size: int, epochs: int) -> list[Tensor]:
    """Indices of batches, in another order in each epoch."""
    generator = seeded(0)
    return [rows for _ in range(epochs) for rows in torch.randperm(count, generator=generator).split(size)]


def accuracy(out: Tensor, y: Tensor) -> float:
    """Accuracy of the largest output, relative to that of the most frequent label."""
    constant = y.bincount().max().item() / len(y)
    return float(((out.argmax(-1) == y).float().mean().item() - constant) / (1 - constant))


def explained(out: Tensor, y: Tensor) -> float:
    """Share of the variance of the targets that is explained."""
    return 1 - ((out - y) ** 2).mean().item() / y.var(correction=0).item()


@torch.no_grad()
def outputs(model: nn.Module, inputs: Sequence[Any]) -> Tensor:
    """The outputs in evaluation mode; the mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    out: Tensor = model(*inputs)
    for module, mode in modes.items():
        module.training = mode
    return out


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU after all but the last."""
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def clusters(count: int, columns: int, classes: int, *, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around a center for each class, and their classes, which take turns."""
    generator = seeded(seed)
    y = torch.arange(count) % classes
    centers = torch.randn(classes, columns, generator=generator)
    return centers[y] + noise * torch.randn(count, columns, generator=generator), y


class Autoencoder(nn.Module):
    """A variational one of 64 pixels, with four latent numbers."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(64, 48, 8), perceptron(4, 48, 64)
        self.last = last or nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + self.training * torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.last(self.decoder(z)), mean, log_variance


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """That of each latent number from a standard normal one."""
    return -0.5 * (1 + log_variance - mean**2 - log_variance.exp())
