"""Recipe -> what there is to learn: a graph and labels, made from a seed; nothing is downloaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch_geometric.utils import scatter, subgraph

from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.synthetic import block_model


class Examples(NamedTuple):
    """What one forward pass needs: inputs of the model, rows of its output that are judged, and their labels."""

    args: tuple[Tensor, ...]
    rows: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """What there is to learn.

    Attributes:
        x: Features (nodes, columns).
        edge_index: Links (2, links), both directions.
        join: The graph of each node, or the two ends of each pair (2, pairs); None where nodes are predicted.
        y: Label of each example.
        trained_on: Label of each example as the training sees it.
        is_training: Which examples are for training.
    """

    x: Tensor
    edge_index: Tensor
    join: Tensor | None
    y: Tensor
    trained_on: Tensor
    is_training: Tensor

    @property
    def out_channels(self) -> int:
        """Width of what the model gives out."""
        return 1 if self.y.is_floating_point() else int(self.y.max()) + 1

    def whole(self, is_training: bool) -> Examples:
        """All examples for training, or all others, with their true labels."""
        rows = (self.is_training == is_training).nonzero().flatten()
        args = (self.x, self.edge_index) if self.join is None else (self.x, self.edge_index, self.join)
        return Examples(args, rows, self.y[rows])

    def draw(self, size: int, generator: Generator) -> Examples:
        """Some of the examples for training at random (0: all of them), as a training sees them."""
        whole = self.whole(is_training=True)
        rows = whole.rows
        if not size:
            return Examples(whole.args, rows, self.trained_on[rows])
        rows = rows[torch.randperm(len(rows), generator=generator)[:size]].sort().values
        if self.join is None:
            return self._nodes(rows, generator)
        if self.join.dim() == 2:
            args: tuple[Tensor, ...] = (self.x, self.edge_index, self.join[:, rows])
        else:
            args = self._graphs(rows)
        return Examples(args, torch.arange(len(rows)), self.trained_on[rows])

    def _nodes(self, rows: Tensor, generator: Generator) -> Examples:
        """The graph of these nodes and as many others."""
        others = torch.randperm(len(self.x), generator=generator)[: len(rows)]
        kept = torch.cat([rows, others]).unique()
        edges, _ = subgraph(kept, self.edge_index, relabel_nodes=True, num_nodes=len(self.x))
        return Examples((self.x[kept], edges), torch.searchsorted(kept, rows), self.trained_on[rows])

    def _graphs(self, rows: Tensor) -> tuple[Tensor, ...]:
        assert self.join is not None
        kept = torch.isin(self.join, rows).nonzero().flatten()
        edges, _ = subgraph(kept, self.edge_index, relabel_nodes=True, num_nodes=len(self.x))
        return self.x[kept], edges, torch.searchsorted(rows, self.join[kept])


def make_task(recipe: Recipe) -> Task:
    """The task of a recipe, always the same."""
    generator = torch.Generator().manual_seed(recipe.seed)
    x, edges, join, y = _MAKERS[recipe.task](recipe, generator)
    if recipe.features == "dense":
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-3)
    change, number = recipe.inputs
    is_training = torch.rand(len(y), generator=generator) < recipe.train_share
    return Task(INPUTS[change](x, number), edges, join, y, LABELS[recipe.labels](y, generator), is_training)


_Made = tuple[Tensor, Tensor, Tensor | None, Tensor]


def _nodes(recipe: Recipe, generator: Generator) -> _Made:
    if recipe.graph == "blocks":
        graph = block_model(recipe.nodes, recipe.classes, recipe.columns, seed=recipe.seed)
        return graph.x, graph.edge_index, None, graph.y
    y = torch.arange(recipe.nodes) % recipe.classes
    links = GRAPHS[recipe.graph](y, generator)
    edges = torch.cat([links, links.flip(0)], dim=1).unique(dim=1)
    if recipe.graph != "other classes":
        y = _regions(edges, recipe.nodes, recipe.classes, generator)
    x = torch.randn(recipe.classes, recipe.columns, generator=generator)[y]
    x = x + torch.randn(x.shape, generator=generator)
    return (x if recipe.features == "dense" else (x > 1).float()), edges, None, y


def _regions(edges: Tensor, nodes: int, classes: int, generator: Generator) -> Tensor:
    """Classes that spread from a few nodes over links, until all have one: neighbors are mostly of one class."""
    y = torch.full((nodes,), -1)
    start = torch.randperm(nodes, generator=generator)[: 5 * classes]
    y[start] = torch.arange(len(start)) % classes
    reached = True
    while reached:
        new = edges[:, (y[edges[0]] >= 0) & (y[edges[1]] < 0)]
        y[new[1]] = y[new[0]]
        reached = new.shape[1] > 0
    apart = (y < 0).nonzero().flatten()
    y[apart] = torch.arange(len(apart)) % classes
    return y


def _other_classes(y: Tensor, generator: Generator) -> Tensor:
    """Links lead mostly from one class to the next; few stay within one."""
    ahead = (y[None, :] - y[:, None]) % (int(y.max()) + 1)
    chance = torch.where(ahead == 1, 0.1, 0.005)
    return (torch.rand(chance.shape, generator=generator) < chance).triu(1).nonzero().T


def _preferential(y: Tensor, generator: Generator) -> Tensor:
    """Each node links to three before it, the more likely the more links these have (Barabasi and Albert)."""
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
    """A ring with links to the next three nodes, a tenth of which lead elsewhere (Watts and Strogatz)."""
    node = torch.arange(len(y)).repeat(3)
    other = (node + torch.arange(1, 4).repeat_interleave(len(y))) % len(y)
    away = torch.rand(len(node), generator=generator) < 0.1
    other = torch.where(away, torch.randint(len(y), other.shape, generator=generator), other)
    return torch.stack([node, other])[:, node != other]


def _power_law(y: Tensor, generator: Generator) -> Tensor:
    """Expected degrees that fall off as a power (Chung and Lu): a few hubs, most nodes with a link or two, or none."""
    degree = torch.rand(len(y), generator=generator).clamp(min=1e-3) ** -0.6
    chance = (2 * degree[:, None] * degree[None, :] / degree.sum()).clamp(max=1)
    return (torch.rand(chance.shape, generator=generator) < chance).triu(1).nonzero().T


GRAPHS: Final[Mapping[str, Callable[[Tensor, Generator], Tensor]]] = MappingProxyType(
    {
        "other classes": _other_classes,
        "preferential": _preferential,
        "grid": _grid,
        "tree": _tree,
        "small world": _small_world,
        "power law": _power_law,
    }
)
"""(classes, generator) -> links, in one direction. Beside these there is "blocks", `synthetic.block_model`."""


def _regression(recipe: Recipe, generator: Generator) -> _Made:
    """What a node and its neighbors have of two random directions, one of them squared; variance 1."""
    x, edges, _, _ = _nodes(recipe, generator)
    mean = scatter(x[edges[0]], edges[1], dim_size=len(x), reduce="mean") + x
    first, second = (mean @ torch.randn(x.shape[1], 2, generator=generator)).T
    y = (first - first.mean()) / first.std() + 0.5 * ((second - second.mean()) / second.std()).square()
    return x, edges, None, ((y - y.mean()) / y.std())[:, None]


def _links(recipe: Recipe, generator: Generator) -> _Made:
    """Half of the links are to be told from as many pairs without one; the model sees the other half."""
    x, edges, _, _ = _nodes(recipe, generator)
    one_way = edges[:, edges[0] < edges[1]]
    one_way = one_way[:, torch.randperm(one_way.shape[1], generator=generator)]
    asked, seen = one_way.tensor_split(2, dim=1)
    free = torch.ones(len(x), len(x)).triu(1)
    free[edges[0], edges[1]] = 0
    absent = free.nonzero()
    absent = absent[torch.randperm(len(absent), generator=generator)[: asked.shape[1]]].T
    pairs = torch.cat([asked, absent], dim=1)
    y = (torch.arange(pairs.shape[1]) < asked.shape[1]).float()[:, None]
    return x, torch.cat([seen, seen.flip(0)], dim=1), pairs, y


def _graphs(recipe: Recipe, generator: Generator) -> _Made:
    """Rings with chords: their number of chords is the class, and one column in each class is a little larger."""
    size, count = 12, recipe.nodes // 5
    y = torch.arange(count) % recipe.classes
    edges = []
    for number, label in enumerate(y.tolist()):
        ring = torch.arange(size)
        chords = torch.randint(size, (2, 4 * label), generator=generator)
        both = torch.cat([torch.stack([ring, (ring + 1) % size]), chords[:, chords[0] != chords[1]]], dim=1)
        edges.append(torch.cat([both, both.flip(0)], dim=1) + number * size)
    join = torch.arange(count).repeat_interleave(size)
    x = torch.randn(count * size, recipe.columns, generator=generator)
    return x + F.one_hot(y[join], recipe.columns), torch.cat(edges, dim=1), join, y


_MAKERS: Final[Mapping[str, Callable[[Recipe, Generator], _Made]]] = MappingProxyType(
    {"nodes": _nodes, "graphs": _graphs, "links": _links, "regression": _regression}
)


def _first(x: Tensor, number: float, *columns: float) -> Tensor:
    """Another value in the first columns of some rows."""
    x = x.clone()
    for place, value in enumerate(columns):
        x[: int(number), place] = value
    return x


INPUTS: Final[Mapping[str, Callable[[Tensor, float], Tensor]]] = MappingProxyType(
    {
        "as they are": lambda x, number: x,
        "scaled": lambda x, number: number * x,
        "one column scaled": lambda x, number: torch.cat([number * x[:, :1], x[:, 1:]], dim=1),
        "row numbers": lambda x, number: torch.cat([number * torch.arange(len(x))[:, None], x[:, 1:]], dim=1),
        "shifted": lambda x, number: x + number,
        "all equal": lambda x, number: torch.full_like(x, number),
        "rows equal": lambda x, number: x[:1].expand_as(x).clone() * number,
        "NaN in rows": lambda x, number: _first(x, number, torch.nan),
        "infinity in rows": lambda x, number: _first(x, number, torch.inf, -torch.inf),
        "log": lambda x, number: x.log(),
        "columns never used": lambda x, number: F.pad(x, (0, int(number))),
    }
)
"""What is done to features, and a number of it."""

LABELS: Final[Mapping[str, Callable[[Tensor, Generator], Tensor]]] = MappingProxyType(
    {
        "true": lambda y, generator: y,
        "all one": lambda y, generator: torch.ones_like(y),
        "random": lambda y, generator: y[torch.randperm(len(y), generator=generator)],
    }
)
"""What is done to the labels that a training sees."""
