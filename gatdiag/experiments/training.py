"""Training loops: cross-entropy on one graph, in each step all of it or some of its trees."""

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

_PATIENCE: Final = 20  # epochs on trees without a better accuracy
_BETTER: Final = 1e-4
_AT_ONCE: Final = 1024  # trees, where nothing is trained


@dataclass(frozen=True)
class Epoch:
    """One epoch: its loss, and the accuracies of the weights it led to, in [0, 1]."""

    loss: float
    train_accuracy: float
    val_accuracy: float
    test_accuracy: float


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Attributes:
        epochs: Each of them, in order.
        converged: Whether the loss fell below the threshold; of trees, or all were right.
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
    """Train a classifier of nodes, and evaluate it after each epoch.

    An epoch is a step on all training nodes. If the experiment has ``trees``, it is ``passes`` over the trees that are
    for training, in random order, so many of them in a step. Then its training accuracy is the share of right answers
    given while training, which is what the benchmark reports, the other accuracies are those on the other trees, the
    schedule ``plateau`` halves the rate after ten epochs without a higher training accuracy, and training ends, too,
    once all is right, or after 20 epochs that are no better.

    Args:
        model: Called as ``model(x, edge_index)``, or with ``inputs``; returns logits (nodes, classes). Its weights are
            trained in place.
        graph: With ``x``, ``edge_index``, ``y`` and one mask (nodes,) for each of train, val and test; of trees from
            `gatdiag.experiments.synthetic.tree_neighbors_match`.
        experiment: Optimizer, rate, limits, and seed of what is random in the forward pass (dropout).
        recorder: Its ``log`` gets loss and accuracies after each epoch, by the names of `Epoch`.
        progress: Called after each epoch with its position and numbers.
        inputs: Of a forward pass, in place of the graph's ``x`` and ``edge_index``.
        has_modes: Whether training differs from evaluation, as with dropout and batch norm. If not, the forward pass of
            the next step is the evaluation of this one, unless a recorder listens: equal numbers, a third less work.

    Returns:
        Loss and accuracies of each epoch. Equal models, graphs and settings give equal results on the CPU; torch's
        global random state is as it was.

    Source:
        Section 4 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023); of trees Alon & Yahav,
        "On the Bottleneck of Graph Neural Networks and its Practical Implications", ICLR 2021, and their code.

    Example:
        >>> from gatdiag.experiments.data import load_graph
        >>> from gatdiag.experiments.models import gcn
        >>> _ = torch.manual_seed(0)
        >>> result = train(gcn(64, 4, layers=2), load_graph("sbm"), Experiment(learning_rate=0.5, epochs=20))
        >>> len(result.epochs), result.epochs[-1].loss < result.epochs[0].loss
        (20, True)
    """
    optimizer = _optimizer_of(experiment, model)
    if experiment.trees:
        steps = _epochs_on_trees(model, graph, experiment, optimizer)
    else:
        passes_twice = has_modes or recorder is not None
        steps = _epochs(model, graph, experiment, optimizer, inputs or (graph.x, graph.edge_index), passes_twice)
    epochs, converged = list[Epoch](), False
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        for epoch, converged in islice(steps, experiment.epochs):
            epochs.append(epoch)
            if recorder is not None:
                recorder.log(**vars(epoch))
            if progress is not None:
                progress(len(epochs) - 1, epoch)
            if converged:
                break
    return TrainingResult(tuple(epochs), converged)


def _epochs(
    model: nn.Module,
    graph: Data,
    experiment: Experiment,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[Any, ...],
    passes_twice: bool,
) -> Iterator[tuple[Epoch, bool]]:
    """Make a step on all training nodes each time; yields its numbers, and whether training has converged."""
    scheduler = ReduceLROnPlateau(optimizer) if experiment.schedule == "plateau" else None
    model.train()
    logits = model(*inputs)
    while True:
        loss = _step(logits, graph, optimizer)
        logits = evaluated(model, inputs) if passes_twice else model(*inputs)
        if scheduler is not None:
            scheduler.step(F.cross_entropy(logits.detach()[graph.val_mask], graph.y[graph.val_mask]))
        yield Epoch(loss, *_shares(logits, graph)), loss < experiment.stop_below
        logits = model(*inputs) if passes_twice else logits


def _optimizer_of(experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
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


# --- trees ------------------------------------------------------------------------------------------------------------

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def _epochs_on_trees(
    model: nn.Module, graph: Data, experiment: Experiment, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[Epoch, bool]]:
    """Make steps on some trees each; yields the numbers of an epoch, and whether training has converged."""
    scheduler = None
    if experiment.schedule == "plateau":
        scheduler = ReduceLROnPlateau(optimizer, mode="max", threshold_mode="abs", factor=0.5)
    mine, others = _trees(graph, "train"), _trees(graph, "test")
    best, since = 0.0, 0
    while since < _PATIENCE:
        order = mine.repeat(experiment.passes)
        order = order[torch.randperm(len(order))]
        loss, share = _over(model.train(), batches(graph, order, experiment.trees), optimizer)
        _, other = _over(model.eval(), batches(graph, others, _AT_ONCE))
        model.train()
        if scheduler is not None:
            scheduler.step(share)
        best, since = (share, 0) if share > best + _BETTER else (best, since + 1)
        yield Epoch(loss, share, other, other), loss < experiment.stop_below or share == 1


def _over(
    model: nn.Module, batches: Iterator[Batch], optimizer: torch.optim.Optimizer | None = None
) -> tuple[float, float]:
    """Mean loss and share of right answers over batches of trees; with an optimizer, each is a step."""
    lost, right, count = 0.0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, edge_index, roots, y in batches:
            logits = model(x, edge_index)[roots]
            loss = F.cross_entropy(logits, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            lost += float(loss.detach()) * len(y)
            right += int((logits.argmax(1) == y).sum())
            count += len(y)
    return lost / count, right / count


def batches(graph: Data, numbers: Tensor, count: int) -> Iterator[Batch]:
    """Trees of a graph of trees, by their numbers, so many at once: x, edge_index, which nodes are roots, labels."""
    size = _size(graph)
    x = graph.x.view(-1, size, graph.num_features)
    links = graph.edge_index[:, graph.edge_index[1] < size]
    for chosen in numbers.split(count):
        roots = size * torch.arange(len(chosen), device=links.device)
        yield x[chosen].flatten(0, 1), (links[:, None] + roots[:, None]).flatten(1), roots, graph.y[size * chosen]


def _size(graph: Data) -> int:
    """Nodes of a tree: of these only the root has a label."""
    return int(graph.num_nodes or 0) // int((graph.y > 0).sum())


def _trees(graph: Data, split: str) -> Tensor:
    """Numbers of the trees whose roots are for this."""
    numbers: Tensor = graph[f"{split}_mask"][:: _size(graph)].nonzero().flatten()
    return numbers
