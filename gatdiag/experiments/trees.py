"""Tree-NeighborsMatch as Alon & Yahav train it: their network, and steps on some trees instead of on all."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data
from torch_geometric.nn import GatedGraphConv, GINConv

from gatdiag.experiments.models import ACTIVATIONS, CONVOLUTIONS, NORMS
from gatdiag.experiments.settings import Experiment, Network
from gatdiag.experiments.training import Epoch, TrainingResult, optimizer_of
from gatdiag.recorder import Recorder

_PATIENCE: Final = 20  # epochs without a better accuracy
_BETTER: Final = 1e-4
_AT_ONCE: Final = 1024  # trees, where nothing is trained

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class TreeNetwork(nn.Module):
    """Two embeddings summed, convolutions of one width, a linear layer without bias.

    Each layer is norm(x + activation(conv(x))), without the skip if the network is not residual. The features of
    `gatdiag.experiments.synthetic.tree_neighbors_match` are one-hot, so that `first` is the sum of two embeddings.

    Args:
        network: Its settings; ``model`` is gcn, gat, gin or ggnn.
        in_channels: Number of features.
        out_channels: Number of classes.

    Source:
        Alon & Yahav, "On the Bottleneck of Graph Neural Networks and its Practical Implications", ICLR 2021, and their
        code; there the GAT is without activation, and the GGNN without activation, skip and normalization.

    Example:
        >>> model = TreeNetwork(Network(model="gat", layers=3, width=8, heads=4, bias=True), 10, 5)
        >>> model.first.weight.shape, len(model.convs)
        (torch.Size([32, 10]), 3)
    """

    def __init__(self, network: Network, in_channels: int, out_channels: int) -> None:
        super().__init__()
        width = network.heads * network.width
        norm: Callable[[int], nn.Module] = NORMS.get(network.norm, lambda _: nn.Identity())
        self.first = nn.Linear(in_channels, width, bias=False)
        nn.init.normal_(self.first.weight)  # as torch's embeddings
        self.convs = nn.ModuleList(_convolution(network, width) for _ in range(network.layers))
        self.norms = nn.ModuleList(norm(width) for _ in range(network.layers))
        self.last = nn.Linear(width, out_channels, bias=False)
        self.activation = ACTIVATIONS[network.activation]
        self.dropout = network.dropout
        self.residual = network.residual

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features (nodes, in_channels) and edges (2, edges) -> logits (nodes, out_channels), of roots or not."""
        x = self.first(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            out = F.dropout(self.activation(conv(x, edge_index)), self.dropout, self.training)
            x = norm(x + out if self.residual else out)
        logits: Tensor = self.last(x)
        return logits


def _convolution(network: Network, width: int) -> nn.Module:
    """A layer that keeps the width; a GIN's has batch normalization."""
    conv: nn.Module
    if network.model == "ggnn":
        conv = GatedGraphConv(width, num_layers=1, bias=network.bias)
    elif network.model == "gin":
        conv = GINConv(nn.Sequential(*_linear(width), *_linear(width)))
    else:
        conv = CONVOLUTIONS[network.model](network, width, network.width, network.heads)
    return conv


def _linear(width: int) -> tuple[nn.Module, ...]:
    return nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()


def train_trees(
    model: nn.Module,
    graph: Data,
    experiment: Experiment,
    recorder: Recorder | None = None,
    progress: Callable[[int, Epoch], None] | None = None,
) -> TrainingResult:
    """Train a classifier of roots, in each step on some of the trees that are for training, in random order.

    Args:
        model: As `gatdiag.experiments.training.train` has it.
        graph: From `gatdiag.experiments.synthetic.tree_neighbors_match`.
        experiment: Optimizer, limits, trees in a step and passes over them in an epoch. With the schedule ``plateau``
            the rate is halved after ten epochs without a higher training accuracy. Training ends, too, once all is
            right, or after 20 epochs that are no better.
        recorder: Its ``log`` gets the numbers of `Epoch` after each epoch.
        progress: Called after each epoch with its position and numbers.

    Returns:
        Of each epoch the mean loss, and the share of right answers that were given while training, which is what the
        benchmark reports; then the accuracies on the other trees. ``converged`` is also when all were right.

    Source:
        Alon & Yahav, ICLR 2021, and their code.

    Example:
        >>> from gatdiag.experiments.synthetic import tree_neighbors_match
        >>> graph = tree_neighbors_match(2)
        >>> experiment = Experiment(data="tree", model="gcn", layers=3, optimizer="Adam", trees=64, epochs=3)
        >>> len(train_trees(TreeNetwork(experiment, graph.num_features, 5), graph, experiment).epochs)
        3
    """
    optimizer = optimizer_of(experiment, model)
    scheduler = None
    if experiment.schedule == "plateau":
        scheduler = ReduceLROnPlateau(optimizer, mode="max", threshold_mode="abs", factor=0.5)
    mine, others, converged = _trees(graph, "train"), _trees(graph, "test"), False
    epochs: list[Epoch] = []
    best, best_at = 0.0, 0
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        while len(epochs) < experiment.epochs and not converged and len(epochs) - best_at < _PATIENCE:
            order = mine.repeat(experiment.passes)
            order = order[torch.randperm(len(order))]
            model.train()
            loss, share = _over(model, batches(graph, order, experiment.trees), optimizer)
            _, other = _over(model.eval(), batches(graph, others, _AT_ONCE))
            epochs.append(Epoch(loss, share, other, other))
            if scheduler is not None:
                scheduler.step(share)
            if share > best + _BETTER:
                best, best_at = share, len(epochs)
            converged = loss < experiment.stop_below or share == 1
            if recorder is not None:
                recorder.log(**vars(epochs[-1]))
            if progress is not None:
                progress(len(epochs) - 1, epochs[-1])
    model.train()
    return TrainingResult(tuple(epochs), converged)


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
