"""Recipe -> synthetic data: a graph, features and labels, drawn from the seed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch_geometric.utils import scatter, subgraph

from gatdiag.experiments.synthetic import block_model
from tests.bank.recipe import Recipe

_RING: Final = 12  # nodes of each of several graphs


class Examples(NamedTuple):
    """Model inputs, the rows of the output that count, and their labels."""

    args: tuple[Tensor, ...]
    rows: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """Data of a training.

    Attributes:
        x: Features (nodes, columns).
        edge_index: Edges (2, edges), in both directions.
        groups: The graph of each node (nodes,), the two ends of each pair (2, pairs), or None for tasks on nodes.
        y: Label of each example.
        training_y: Label of each example that the training sees.
        is_training: Which examples are for training.
        shift: Of the labels that the training sees, in whose units the model predicts.
    """

    x: Tensor
    edge_index: Tensor
    groups: Tensor | None
    y: Tensor
    training_y: Tensor
    is_training: Tensor
    shift: float = 0.0

    @property
    def out_channels(self) -> int:
        """Width of the model's output."""
        return 1 if self.y.is_floating_point() else int(self.y.max()) + 1

    def split(self, is_training: bool) -> Examples:
        """All examples for training, or all for validation, with their true labels."""
        rows = (self.is_training == is_training).nonzero().flatten()
        args = (self.x, self.edge_index) if self.groups is None else (self.x, self.edge_index, self.groups)
        return Examples(args, rows, self.y[rows])

    def sample(self, size: int, generator: Generator) -> Examples:
        """A random batch of the examples for training (0: all of them), with the labels that the training sees."""
        args, rows, _ = self.split(is_training=True)
        if not size:
            return Examples(args, rows, self.training_y[rows])
        return self.batch(rows[torch.randperm(len(rows), generator=generator)[:size]].sort().values, generator)

    def batch(self, rows: Tensor, generator: Generator) -> Examples:
        """The batch of some examples for training, with the labels that the training sees."""
        if self.groups is None:
            return self._node_batch(rows, generator)
        if self.groups.dim() == 2:
            args = (self.x, self.edge_index, self.groups[:, rows])
        else:
            kept = torch.isin(self.groups, rows).nonzero().flatten()
            args = (self.x[kept], self._induced_edges(kept), torch.searchsorted(rows, self.groups[kept]))
        return Examples(args, torch.arange(len(rows)), self.training_y[rows])

    def _node_batch(self, rows: Tensor, generator: Generator) -> Examples:
        """The subgraph of these nodes and as many random others."""
        others = torch.randperm(len(self.x), generator=generator)[: len(rows)]
        kept = torch.cat([rows, others]).unique()
        args = (self.x[kept], self._induced_edges(kept))
        return Examples(args, torch.searchsorted(kept, rows), self.training_y[rows])

    def _induced_edges(self, nodes: Tensor) -> Tensor:
        edges: Tensor = subgraph(nodes, self.edge_index, relabel_nodes=True, num_nodes=len(self.x))[0]
        return edges


def make_task(recipe: Recipe) -> Task:
    """The data of a recipe; equal recipes give equal data."""
    generator = torch.Generator().manual_seed(recipe.seed)
    x, edges, groups, y = _MAKERS[recipe.task](recipe, generator)
    if recipe.features == "dense":
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-3)
    change, number = recipe.inputs
    is_training = torch.rand(len(y), generator=generator) < recipe.train_share
    edges, shift = EDGES[recipe.edges](edges, len(x)), _FAR if recipe.labels == "far from zero" else 0.0
    return Task(INPUTS[change](x, number), edges, groups, y, LABELS[recipe.labels](y, generator), is_training, shift)


_Data = tuple[Tensor, Tensor, Tensor | None, Tensor]  # x, edge_index, groups, y


def _make_nodes(recipe: Recipe, generator: Generator) -> _Data:
    if recipe.graph == "blocks":
        graph = block_model(recipe.nodes, recipe.classes, recipe.columns, seed=recipe.seed)
        return graph.x, graph.edge_index, None, graph.y
    y = torch.arange(recipe.nodes) % recipe.classes
    links = GRAPHS[recipe.graph](y, generator)
    edges = torch.cat([links, links.flip(0)], dim=1).unique(dim=1)
    if recipe.graph not in ("other classes", "all linked"):
        y = _spread_classes(edges, recipe.nodes, recipe.classes, generator)
    x = torch.randn(recipe.classes, recipe.columns, generator=generator)[y]
    x = x + torch.randn(x.shape, generator=generator)
    return (x if recipe.features == "dense" else (x > 1).float()), edges, None, y


def _spread_classes(edges: Tensor, nodes: int, classes: int, generator: Generator) -> Tensor:
    """Labels that spread over edges from a few seed nodes, so that neighbors mostly share a class."""
    y = torch.full((nodes,), -1)
    start = torch.randperm(nodes, generator=generator)[: 5 * classes]
    y[start] = torch.arange(len(start)) % classes
    reached = True
    while reached:
        new = edges[:, (y[edges[0]] >= 0) & (y[edges[1]] < 0)]
        y[new[1]] = y[new[0]]
        reached = new.shape[1] > 0
    unreached = (y < 0).nonzero().flatten()
    y[unreached] = torch.arange(len(unreached)) % classes
    return y


def _other_classes(y: Tensor, generator: Generator) -> Tensor:
    """A heterophilic graph: most edges join one class with the next."""
    ahead = (y[None, :] - y[:, None]) % (int(y.max()) + 1)
    chance = torch.where(ahead == 1, 0.1, 0.005)
    return (torch.rand(chance.shape, generator=generator) < chance).triu(1).nonzero().T


def _preferential(y: Tensor, generator: Generator) -> Tensor:
    """Preferential attachment of each node to three earlier ones (Barabasi and Albert)."""
    ends, links = [0, 1, 2], []
    for node in range(3, len(y)):
        others = {ends[int(place)] for place in torch.randint(len(ends), (3,), generator=generator)}
        links += [(other, node) for other in others]
        ends += [*others, *[node] * len(others)]
    return torch.tensor(links).T


def _grid(y: Tensor, generator: Generator) -> Tensor:
    side = int(len(y) ** 0.5)
    node = torch.arange(len(y))
    right, down = node[(node + 1) % side > 0], node[: len(y) - side]
    links = torch.cat([torch.stack([right, right + 1]), torch.stack([down, down + side])], dim=1)
    return links[:, links[1] < len(y)]


def _tree(y: Tensor, generator: Generator) -> Tensor:
    node = torch.arange(1, len(y))
    return torch.stack([(torch.rand(len(node), generator=generator) * node).long(), node])


def _small_world(y: Tensor, generator: Generator) -> Tensor:
    """A ring with edges to the next three nodes, a tenth of them rewired (Watts and Strogatz)."""
    node = torch.arange(len(y)).repeat(3)
    other = (node + torch.arange(1, 4).repeat_interleave(len(y))) % len(y)
    away = torch.rand(len(node), generator=generator) < 0.1
    other = torch.where(away, torch.randint(len(y), other.shape, generator=generator), other)
    return torch.stack([node, other])[:, node != other]


def _power_law(y: Tensor, generator: Generator) -> Tensor:
    """Expected degrees follow a power law (Chung and Lu): a few hubs, most nodes with two edges or fewer."""
    degree = torch.rand(len(y), generator=generator).clamp(min=1e-3) ** -0.6
    chance = (2 * degree[:, None] * degree[None, :] / degree.sum()).clamp(max=1)
    return (torch.rand(chance.shape, generator=generator) < chance).triu(1).nonzero().T


def _all_linked(y: Tensor, generator: Generator) -> Tensor:
    return torch.ones(len(y), len(y)).triu(1).nonzero().T


GRAPHS: Final[Mapping[str, Callable[[Tensor, Generator], Tensor]]] = {
    "other classes": _other_classes,
    "preferential": _preferential,
    "grid": _grid,
    "tree": _tree,
    "small world": _small_world,
    "power law": _power_law,
    "all linked": _all_linked,
}
"""Name -> function (labels, generator) -> edges in one direction. "blocks" is `synthetic.block_model`."""


def _make_regression(recipe: Recipe, generator: Generator) -> _Data:
    """Targets of variance 1: projections of neighborhood features on two random directions, the second squared."""
    x, edges, _, _ = _make_nodes(recipe, generator)
    mean = scatter(x[edges[0]], edges[1], dim_size=len(x), reduce="mean") + x
    first, second = (mean @ torch.randn(x.shape[1], 2, generator=generator)).T
    y = (first - first.mean()) / first.std() + 0.5 * ((second - second.mean()) / second.std()).square()
    return x, edges, None, ((y - y.mean()) / y.std())[:, None]


def _make_links(recipe: Recipe, generator: Generator) -> _Data:
    """Half of the edges are positives, with as many negatives; the model gets the other half as its graph."""
    x, edges, _, _ = _make_nodes(recipe, generator)
    one_way = edges[:, edges[0] < edges[1]]
    one_way = one_way[:, torch.randperm(one_way.shape[1], generator=generator)]
    positive, shown = one_way.tensor_split(2, dim=1)
    is_absent = torch.ones(len(x), len(x)).triu(1)
    is_absent[edges[0], edges[1]] = 0
    absent = is_absent.nonzero()
    negative = absent[torch.randperm(len(absent), generator=generator)[: positive.shape[1]]].T
    pairs = torch.cat([positive, negative], dim=1)
    y = (torch.arange(pairs.shape[1]) < positive.shape[1]).float()[:, None]
    return x, torch.cat([shown, shown.flip(0)], dim=1), pairs, y


def _make_graphs(recipe: Recipe, generator: Generator) -> _Data:
    """Rings of nodes; the class sets the number of chords and the one feature that is larger."""
    size, count = _RING, recipe.nodes // 5
    y = torch.arange(count) % recipe.classes
    edges = []
    for number, label in enumerate(y.tolist()):
        ring = torch.arange(size)
        chords = torch.randint(size, (2, 4 * label), generator=generator)
        both = torch.cat([torch.stack([ring, (ring + 1) % size]), chords[:, chords[0] != chords[1]]], dim=1)
        edges.append(torch.cat([both, both.flip(0)], dim=1) + number * size)
    groups = torch.arange(count).repeat_interleave(size)
    x = torch.randn(count * size, recipe.columns, generator=generator)
    return x + F.one_hot(y[groups], recipe.columns), torch.cat(edges, dim=1), groups, y


_MAKERS: Final[Mapping[str, Callable[[Recipe, Generator], _Data]]] = {
    "nodes": _make_nodes,
    "graphs": _make_graphs,
    "links": _make_links,
    "regression": _make_regression,
}


def _overwrite(x: Tensor, rows: float, *values: float) -> Tensor:
    """Overwrite the first columns of the first rows, one value per column."""
    x = x.clone()
    for column, value in enumerate(values):
        x[: int(rows), column] = value
    return x


def _flip_signs(x: Tensor, seed: float) -> Tensor:
    """Half of the rows change their sign, so that no linear function tells classes apart."""
    return x * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(int(seed))).sign()


INPUTS: Final[Mapping[str, Callable[[Tensor, float], Tensor]]] = {
    "as they are": lambda x, number: x,
    "scaled": lambda x, number: number * x,
    "one column scaled": lambda x, number: torch.cat([number * x[:, :1], x[:, 1:]], dim=1),
    "row numbers": lambda x, number: torch.cat([number * torch.arange(len(x))[:, None], x[:, 1:]], dim=1),
    "shifted": lambda x, number: x + number,
    "all equal": lambda x, number: torch.full_like(x, number),
    "rows equal": lambda x, number: x[:1].expand_as(x).clone() * number,
    "NaN in rows": lambda x, number: _overwrite(x, number, torch.nan),
    "infinity in rows": lambda x, number: _overwrite(x, number, torch.inf, -torch.inf),
    "log": lambda x, number: x.log(),
    "signs flipped": _flip_signs,
    "columns never used": lambda x, number: F.pad(x, (0, int(number))),
    "rows shuffled": lambda x, number: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(int(number)))],
}
"""Name -> change of the features (x, argument)."""

EDGES: Final[Mapping[str, Callable[[Tensor, int], Tensor]]] = {
    "true": lambda edges, nodes: edges,
    "self-loops": lambda edges, nodes: torch.arange(nodes).repeat(2, 1),
    "pairs reshaped": lambda edges, nodes: edges.T.reshape(2, -1),
    "all pairs": lambda edges, nodes: (1 - torch.eye(nodes)).nonzero().T,
    "numbered in each graph": lambda edges, nodes: edges % _RING,
}
"""Name -> change of the edges (edge_index, number of nodes)."""

_FAR: Final = -100.0

LABELS: Final[Mapping[str, Callable[[Tensor, Generator], Tensor]]] = {
    "true": lambda y, generator: y,
    "all one": lambda y, generator: torch.ones_like(y),
    "random": lambda y, generator: y[torch.randperm(len(y), generator=generator)],
    "one in ten missing": lambda y, generator: torch.where(torch.rand(y.shape, generator=generator) < 0.1, math.nan, y),
    "far from zero": lambda y, generator: y + _FAR,
}
"""Name -> the labels that the training sees (true labels, generator)."""
