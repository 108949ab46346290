"""The training loop: cross-entropy on all training nodes of one graph."""

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
    """The loss of an epoch, and accuracies after it, in [0, 1]."""

    loss: float
    train_accuracy: float
    val_accuracy: float
    test_accuracy: float


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    Attributes:
        epochs: All epochs, in order.
        converged: Whether the loss fell below the threshold.
    """

    epochs: tuple[Epoch, ...]
    converged: bool

    @property
    def best_epoch(self) -> int:
        """Index of the first epoch with the highest validation accuracy."""
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
    """Train a node classifier, and evaluate it after each epoch.

    An epoch is one step on all training nodes.

    Args:
        model: Called as ``model(x, edge_index)``, or with ``inputs``; returns logits (nodes, classes). Trained
            in place.
        graph: With ``x``, ``edge_index``, ``y`` and one mask (nodes,) for each of train, val and test.
        experiment: Optimizer, learning rate, limits, and random seed of dropout.
        recorder: Logs loss and accuracies after each epoch, by the names of `Epoch`.
        progress: Called after each epoch with its index and numbers.
        inputs: Inputs of the forward pass instead of the graph's ``x`` and ``edge_index``.
        has_modes: Whether the forward pass differs between training and evaluation mode, as with dropout. If not, and
            without a recorder, one forward pass serves for evaluation and for the next step: equal numbers, a third
            less work.

    Returns:
        Loss and accuracies of each epoch. Equal models, graphs and settings give equal results on the CPU; torch's
        global random state does not change.

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
    optimizer = _make_optimizer(experiment, model)
    scheduler = ReduceLROnPlateau(optimizer) if experiment.schedule == "plateau" else None
    inputs = inputs or (graph.x, graph.edge_index)
    reuse_logits = not has_modes and recorder is None
    epochs, converged = list[Epoch](), False
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        model.train()
        logits = model(*inputs)
        while not converged and len(epochs) < experiment.epochs:
            if epochs and not reuse_logits:
                logits = model(*inputs)
            loss = _step(logits, graph, optimizer)
            logits = model(*inputs) if reuse_logits else evaluate(model, inputs)
            if scheduler is not None:
                scheduler.step(F.cross_entropy(logits.detach()[graph.val_mask], graph.y[graph.val_mask]))
            epochs.append(Epoch(loss, *_accuracies(logits, graph)))
            converged = loss < experiment.stop_below
            if recorder is not None:
                recorder.log(**vars(epochs[-1]))
            if progress is not None:
                progress(len(epochs) - 1, epochs[-1])
    return TrainingResult(tuple(epochs), converged)


def _make_optimizer(experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
    kind: type[Any] = getattr(torch.optim, experiment.optimizer)
    made: torch.optim.Optimizer = kind(model.parameters(), lr=experiment.rate, weight_decay=experiment.weight_decay)
    return made


def accuracy(model: nn.Module, graph: Data) -> tuple[float, float, float]:
    """Training, validation and test accuracy in evaluation mode."""
    return _accuracies(evaluate(model, (graph.x, graph.edge_index)), graph)


def evaluate(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """The output in evaluation mode, without gradients; restores the mode of the model."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits: Tensor = model(*inputs)
    finally:
        model.train(training)
    return logits


def _accuracies(logits: Tensor, graph: Data) -> tuple[float, float, float]:
    correct = logits.argmax(1) == graph.y
    train_, val, test = (float(correct[graph[f"{split}_mask"]].float().mean()) for split in SPLITS)
    return train_, val, test


def _step(logits: Tensor, graph: Data, optimizer: torch.optim.Optimizer) -> float:
    loss = training_loss(logits, graph)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def training_loss(logits: Tensor, graph: Data) -> Tensor:
    """Cross-entropy on the training nodes."""
    return F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
