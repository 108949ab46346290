"""Training loops: cross-entropy on one graph, full-batch or in batches of trees."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data

from gatdiag.experiments.data import SPLITS
from gatdiag.experiments.settings import Experiment
from gatdiag.recorder import Recorder

_PATIENCE: Final = 20  # epochs on trees without a better training accuracy
_MIN_DELTA: Final = 1e-4  # of a better training accuracy
_EVALUATION_BATCH: Final = 1024  # trees


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
        converged: Whether the loss fell below the threshold or, on trees, all answers were right.
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

    An epoch is one step on all training nodes. If the experiment has ``trees``, an epoch is ``passes`` over the
    training trees, in random order and in batches of ``trees``. Then training accuracy is measured during training, as
    the benchmark reports it, the other accuracies are those on the test trees, the schedule ``plateau`` halves the
    learning rate after ten epochs without a higher training accuracy, and training also ends once all answers are
    right, or after 20 epochs without a higher training accuracy.

    Args:
        model: Called as ``model(x, edge_index)``, or with ``inputs``; returns logits (nodes, classes). Trained
            in place.
        graph: With ``x``, ``edge_index``, ``y`` and one mask (nodes,) for each of train, val and test; trees come from
            `gatdiag.experiments.synthetic.tree_neighbors_match`.
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
        Section 4 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023); for trees Alon & Yahav,
        "On the Bottleneck of Graph Neural Networks and its Practical Implications", ICLR 2021, and their code.

    Example:
        >>> from gatdiag.experiments.data import load_graph
        >>> from gatdiag.experiments.models import gcn
        >>> _ = torch.manual_seed(0)
        >>> result = train(gcn(64, 4, layers=2), load_graph("sbm"), Experiment(learning_rate=0.5, epochs=20))
        >>> len(result.epochs), result.epochs[-1].loss < result.epochs[0].loss
        (20, True)
    """
    optimizer = _make_optimizer(experiment, model)
    if experiment.trees:
        training = _train_on_trees(model, graph, experiment, optimizer)
    else:
        inputs = inputs or (graph.x, graph.edge_index)
        training = _train_full_batch(
            model, graph, experiment, optimizer, inputs, reuse_logits=not has_modes and recorder is None
        )
    epochs, converged = list[Epoch](), False
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        for epoch, converged in islice(training, experiment.epochs):
            epochs.append(epoch)
            if recorder is not None:
                recorder.log(**vars(epoch))
            if progress is not None:
                progress(len(epochs) - 1, epoch)
            if converged:
                break
    return TrainingResult(tuple(epochs), converged)


def _train_full_batch(
    model: nn.Module,
    graph: Data,
    experiment: Experiment,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[Any, ...],
    *,
    reuse_logits: bool,
) -> Iterator[tuple[Epoch, bool]]:
    """Make one step per epoch on all training nodes; yields its numbers, and whether training has converged."""
    scheduler = ReduceLROnPlateau(optimizer) if experiment.schedule == "plateau" else None
    model.train()
    logits = model(*inputs)
    while True:
        loss = _step(logits, graph, optimizer)
        logits = model(*inputs) if reuse_logits else evaluate(model, inputs)
        if scheduler is not None:
            scheduler.step(F.cross_entropy(logits.detach()[graph.val_mask], graph.y[graph.val_mask]))
        yield Epoch(loss, *_accuracies(logits, graph)), loss < experiment.stop_below
        if not reuse_logits:
            logits = model(*inputs)


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
    loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


# --- trees ------------------------------------------------------------------------------------------------------------

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def _train_on_trees(
    model: nn.Module, graph: Data, experiment: Experiment, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[Epoch, bool]]:
    """Make steps on batches of trees; yields the numbers of each epoch, and whether training has converged."""
    scheduler = None
    if experiment.schedule == "plateau":
        scheduler = ReduceLROnPlateau(optimizer, mode="max", threshold_mode="abs", factor=0.5)
    train_trees, test_trees = _tree_indices(graph, "train"), _tree_indices(graph, "test")
    best, bad_epochs = 0.0, 0
    while bad_epochs < _PATIENCE:
        order = train_trees.repeat(experiment.passes)
        order = order[torch.randperm(len(order))]
        loss, train_accuracy = _run_epoch(model.train(), tree_batches(graph, order, experiment.trees), optimizer)
        _, test_accuracy = _run_epoch(model.eval(), tree_batches(graph, test_trees, _EVALUATION_BATCH))
        model.train()
        if scheduler is not None:
            scheduler.step(train_accuracy)
        is_better = train_accuracy > best + _MIN_DELTA
        best, bad_epochs = (train_accuracy, 0) if is_better else (best, bad_epochs + 1)
        has_converged = loss < experiment.stop_below or train_accuracy == 1
        yield Epoch(loss, train_accuracy, test_accuracy, test_accuracy), has_converged


def _run_epoch(
    model: nn.Module, batches: Iterator[Batch], optimizer: torch.optim.Optimizer | None = None
) -> tuple[float, float]:
    """Mean loss and accuracy over batches of trees; with an optimizer, each batch is a step."""
    total_loss, correct, count = 0.0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, edge_index, roots, y in batches:
            logits = model(x, edge_index)[roots]
            loss = F.cross_entropy(logits, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total_loss += float(loss.detach()) * len(y)
            correct += int((logits.argmax(1) == y).sum())
            count += len(y)
    return total_loss / count, correct / count


def tree_batches(graph: Data, indices: Tensor, batch_size: int) -> Iterator[Batch]:
    """Batches of the trees with these indices: x, edge_index, indices of the roots, their labels."""
    size = _tree_size(graph)
    x = graph.x.view(-1, size, graph.num_features)
    links = graph.edge_index[:, graph.edge_index[1] < size]
    for batch in indices.split(batch_size):
        roots = size * torch.arange(len(batch), device=links.device)
        yield x[batch].flatten(0, 1), (links[:, None] + roots[:, None]).flatten(1), roots, graph.y[size * batch]


def _tree_size(graph: Data) -> int:
    """Number of nodes of a tree; only the root has a label."""
    return int(graph.num_nodes or 0) // int((graph.y > 0).sum())


def _tree_indices(graph: Data, split: str) -> Tensor:
    indices: Tensor = graph[f"{split}_mask"][:: _tree_size(graph)].nonzero().flatten()
    return indices
