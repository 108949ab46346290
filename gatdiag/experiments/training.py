"""A plain training loop: full batch, cross-entropy, one graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data

from gatdiag.experiments.data import SPLITS
from gatdiag.experiments.settings import Experiment
from gatdiag.recorder import Recorder


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


def train(
    model: nn.Module,
    graph: Data,
    experiment: Experiment,
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
        experiment: Optimizer, rate, limits, and seed of what is random in the forward pass (dropout).
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
        >>> result = train(gcn(64, 4, layers=2), load_graph("sbm"), Experiment(learning_rate=0.5, epochs=20))
        >>> len(result.epochs), result.epochs[-1].loss < result.epochs[0].loss
        (20, True)
    """
    optimizer = optimizer_of(experiment, model)
    scheduler = ReduceLROnPlateau(optimizer) if experiment.schedule == "plateau" else None
    epochs: list[Epoch] = []
    inputs = inputs or (graph.x, graph.edge_index)
    passes_twice = has_modes or recorder is not None
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        logits = model(*inputs)
        for number in range(experiment.epochs):
            loss = _step(model(*inputs) if number and passes_twice else logits, graph, optimizer)
            logits = evaluated(model, inputs) if passes_twice else model(*inputs)
            epochs.append(Epoch(loss, *_shares(logits, graph)))
            if scheduler is not None:
                scheduler.step(F.cross_entropy(logits.detach()[graph.val_mask], graph.y[graph.val_mask]))
            if recorder is not None:
                recorder.log(**vars(epochs[-1]))
            if progress is not None:
                progress(number, epochs[-1])
            if loss < experiment.stop_below:
                return TrainingResult(tuple(epochs), converged=True)
    return TrainingResult(tuple(epochs), converged=False)


def optimizer_of(experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a model's parameters; Adam has torch's defaults."""
    kind: type[Any] = getattr(torch.optim, experiment.optimizer)
    made: torch.optim.Optimizer = kind(model.parameters(), lr=experiment.rate, weight_decay=experiment.weight_decay)
    return made


def accuracy(model: nn.Module, graph: Data) -> tuple[float, float, float]:
    """Share of the training, validation and test nodes that the model classifies correctly, in evaluation mode."""
    return _shares(evaluated(model, (graph.x, graph.edge_index)), graph)


def evaluated(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """The output in evaluation mode, without a gradient; the mode of the model stays."""
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
