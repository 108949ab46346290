"""A plain training loop: full batch, cross-entropy, one graph."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data

from gatdiag.errors import InputError
from gatdiag.experiments.data import SPLITS
from gatdiag.experiments.settings import Schedule


class Recorder(Protocol):
    """What the loop tells its numbers to, as `gatdiag.watch` gives it."""

    def log(self, **scalars: Any) -> None:
        """Take the numbers of one step by name."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. The defaults are those of "Are GATs Out of Balance?" for ten layers on Cora.

    Attributes:
        optimizer: ``SGD`` is gradient descent without momentum; ``Adam`` has torch's defaults.
        learning_rate: At first.
        weight_decay: As the optimizer defines it.
        epochs: At most so many; each is one step on all training nodes.
        stop_below: Training ends once the loss is less. The paper's text says 1e-4, its code 1e-5 for citation graphs
            and 1e-3 for heterophilic ones.
        seed: Of what is random in the forward pass (dropout); from 0 to 2**63 - 1.
        schedule: ``plateau``: the rate is divided by ten after ten epochs without a lower validation loss, by torch's
            `ReduceLROnPlateau`.

    Raises:
        InputError: A value with which nothing can be trained.
    """

    optimizer: Literal["SGD", "Adam"] = "SGD"
    learning_rate: float = 0.05
    weight_decay: float = 0.0
    epochs: int = 5000
    stop_below: float = 1e-4
    seed: int = 0
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        """Refuses what torch would refuse later, or not at all."""
        if self.optimizer not in ("SGD", "Adam"):
            raise InputError(f"Expected optimizer to be SGD or Adam, got {self.optimizer!r}")
        if self.epochs < 1:
            raise InputError(f"Expected epochs to be 1 or more, got {self.epochs}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"Expected learning_rate to be positive and finite, got {self.learning_rate}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Expected seed to be from 0 to 2**63 - 1, got {self.seed}")

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model's parameters."""
        kind: type[Any] = getattr(torch.optim, self.optimizer)
        made: torch.optim.Optimizer = kind(model.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        return made


@dataclass(frozen=True)
class Epoch:
    """One step: the loss it went down on, and the accuracies of the weights it led to, in [0, 1]."""

    loss: float
    train_accuracy: float
    val_accuracy: float
    test_accuracy: float


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Attributes:
        epochs: Each of them, in order.
        converged: Whether the loss fell below the threshold.
    """

    epochs: tuple[Epoch, ...]
    converged: bool

    @property
    def best(self) -> int:
        """Position of the first epoch of the highest validation accuracy; plus one, the paper's epochs to best."""
        return max(range(len(self.epochs)), key=lambda number: self.epochs[number].val_accuracy)

    @property
    def test_accuracy(self) -> float:
        """Of the best epoch by validation."""
        return self.epochs[self.best].test_accuracy


def train(
    model: nn.Module,
    graph: Data,
    settings: TrainingSettings = TrainingSettings(),
    recorder: Recorder | None = None,
    progress: Callable[[int, Epoch], None] | None = None,
    inputs: tuple[Any, ...] | None = None,
    *,
    has_modes: bool = True,
) -> TrainingResult:
    """Train a classifier of nodes on the whole graph, and evaluate it after each step.

    Args:
        model: Called as ``model(x, edge_index)``, or with ``inputs``; returns logits (nodes, classes). Its weights are
            trained in place.
        graph: With ``x``, ``edge_index``, ``y`` and one mask (nodes,) for each of train, val and test.
        settings: Optimizer and limits.
        recorder: Its ``log`` gets loss and accuracies after each step, by the names of `Epoch`.
        progress: Called after each epoch with its position and numbers.
        inputs: Of a forward pass, in place of the graph's ``x`` and ``edge_index``.
        has_modes: Whether training differs from evaluation, as with dropout and batch norm. If not, the forward pass of
            the next step is the evaluation of this one, unless a recorder listens: equal numbers, a third less work.

    Returns:
        Loss and accuracies of each epoch. Equal models, graphs and settings give equal results on the CPU; torch's
        global random state is as it was.

    Source:
        Section 4 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).

    Example:
        >>> from gatdiag.experiments.data import load_graph
        >>> from gatdiag.experiments.models import gcn
        >>> _ = torch.manual_seed(0)
        >>> result = train(gcn(64, 4, layers=2), load_graph("sbm"), TrainingSettings(learning_rate=0.5, epochs=20))
        >>> len(result.epochs), result.epochs[-1].loss < result.epochs[0].loss
        (20, True)
    """
    optimizer = settings.optimizer_of(model)
    scheduler = ReduceLROnPlateau(optimizer) if settings.schedule == "plateau" else None
    epochs: list[Epoch] = []
    inputs = inputs or (graph.x, graph.edge_index)
    passes_twice = has_modes or recorder is not None
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        logits = model(*inputs)
        for number in range(settings.epochs):
            loss = _step(model(*inputs) if number and passes_twice else logits, graph, optimizer)
            logits = _evaluated(model, inputs) if passes_twice else model(*inputs)
            epochs.append(Epoch(loss, *_shares(logits, graph)))
            if scheduler is not None:
                scheduler.step(F.cross_entropy(logits.detach()[graph.val_mask], graph.y[graph.val_mask]))
            if recorder is not None:
                recorder.log(**vars(epochs[-1]))
            if progress is not None:
                progress(number, epochs[-1])
            if loss < settings.stop_below:
                return TrainingResult(tuple(epochs), converged=True)
    return TrainingResult(tuple(epochs), converged=False)


def accuracy(model: nn.Module, graph: Data, inputs: tuple[Any, ...] | None = None) -> tuple[float, float, float]:
    """Share of the training, validation and test nodes that the model classifies correctly, in evaluation mode."""
    return _shares(_evaluated(model, inputs or (graph.x, graph.edge_index)), graph)


def _evaluated(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits: Tensor = model(*inputs)
    finally:
        model.train(training)
    return logits


def _shares(logits: Tensor, graph: Data) -> tuple[float, float, float]:
    right = logits.argmax(1) == graph.y
    train_, val, test = (float(right[graph[f"{split}_mask"]].float().mean()) for split in SPLITS)
    return train_, val, test


def _step(logits: Tensor, graph: Data, optimizer: torch.optim.Optimizer) -> float:
    loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
