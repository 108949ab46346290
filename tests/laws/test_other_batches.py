"""A law of one batch holds in every other: which rows meet, and how many there are, is data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.laws import Laws, find_laws
from tests.laws.referee import leaves

Batch = tuple[Any, ...]


def pairs(rows: int, others: int, count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(size, (count,), generator=generator) for size in (rows, others))


class Product(nn.Module):
    """Matrix factorization."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.u, self.v = nn.Embedding(9, 3), nn.Embedding(7, 3)
        self.shifts = nn.ModuleList([nn.Embedding(9, 1), nn.Embedding(7, 1)]) if bias else None

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        score = (self.u(a) * self.v(b)).sum(1)
        return score if self.shifts is None else score + self.shifts[0](a)[:, 0] + self.shifts[1](b)[:, 0]


class Triples(nn.Module):
    """DistMult, with one table for both ends; or with unit rows of the entities."""

    def __init__(self, *, unit: bool = False) -> None:
        super().__init__()
        self.entities, self.relations, self.unit = nn.Embedding(9, 4), nn.Parameter(torch.randn(3, 4)), unit

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        h, t = self.entities(head), self.entities(tail)
        if self.unit:
            h, t = F.normalize(h), F.normalize(t)
        return (h * self.relations[relation] * t).sum(-1)


class SkipGram(nn.Module):
    """The score of one word against several others, by a batched matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.center, self.context = nn.Embedding(9, 3), nn.Embedding(9, 3)

    def forward(self, word: Tensor, others: Tensor) -> Tensor:
        return F.logsigmoid(torch.bmm(self.context(others), self.center(word).unsqueeze(2)))


class Filtering(nn.Module):
    """Neural collaborative filtering: a product of rows beside a network of joined rows."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.u, self.v = Product(), nn.Embedding(9, 3), nn.Embedding(7, 3)
        self.hidden, self.out = nn.Linear(6, 4), nn.Linear(7, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        joined = self.hidden(torch.cat([self.u(a), self.v(b)], 1)).relu()
        return self.out(torch.cat([self.product.u(a) * self.product.v(b), joined], 1))


class Words(nn.Module):
    """Tokens and positions; rows of positions by a range, by a slice, or as an input."""

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(9, 4), nn.Embedding(6, 4)
        self.hidden, self.out, self.positions = nn.Linear(4, 5), nn.Linear(5, 2), positions

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        place = self.place.weight[:length] if self.positions == "slice" else self.place(torch.arange(length))
        return self.out(self.hidden(self.token(words) + place).relu())


class Featureless(nn.Module):
    """A graph whose nodes have learned features."""

    def __init__(self, conv: type[nn.Module] = gnn.GCNConv) -> None:
        super().__init__()
        self.features = nn.Embedding(8, 3)
        self.convs = nn.ModuleList([conv(3, 4), conv(4, 2)])

    def forward(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        x = self.features(nodes)
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x


class Chosen(nn.Module):
    """Rows by a mask, a gather, a selection and two indices at once."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.out, self.how = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(4, 3)), how

    def forward(self, index: Tensor) -> Tensor:
        rows = self.how(self.table, index)
        return rows * self.out[: len(rows)]


class Stack(nn.Module):
    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Any, edge_index: Any, *more: Any) -> Any:
        for conv in self.convs:
            x = conv(x, edge_index, *more)
            x = {kind: value.relu() for kind, value in x.items()} if isinstance(x, dict) else x.relu()
        return x


def graph(nodes: int, edges: int, seed: int, relations: int | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    more = () if relations is None else (torch.randint(relations, (edges,), generator=generator),)
    return (torch.randn(nodes, 3, generator=generator), edge_index, *more)


def typed(edges: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = {kind: torch.randn(5, 3, generator=generator) for kind in "ab"}
    links = {("a", "to", "b"): edges, ("b", "to", "a"): 12, ("a", "near", "a"): 12}
    return x, {kind: torch.randint(5, (2, count), generator=generator) for kind, count in links.items()}


def hetero(make: Callable[[], nn.Module]) -> Stack:
    layers = [gnn.HeteroConv({kind: make() for kind in typed(3, 0)[1]}) for _ in range(2)]
    return Stack(*layers)


class Recurrent(nn.Module):
    """Over the first axis, from a state of zeros."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core, self.out = core, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.core, nn.RNNBase):
            return self.out(self.core(x)[0].relu())
        state = x.new_zeros(x.shape[1], 3)
        for step in x:
            state = self.core(step, state) if isinstance(self.core, nn.RNNCell) else self.core[0](step, state)
        return self.out(state)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.stay = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return (self.enter(x) + self.stay(state)).relu()


def mask(*positions: int) -> Tensor:
    return torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(positions), True)


def words(*shape: int) -> Callable[[int], Batch]:
    return lambda seed: (torch.randint(9, shape, generator=torch.Generator().manual_seed(seed)),)


def attending(**options: Any) -> nn.Module:
    return Stack(gnn.GATConv(3, 4, **options), gnn.GATConv(4, 2, **options))


DIAGONAL = (torch.tensor([0, 1]), torch.tensor([0, 1]))
CASES: dict[str, tuple[Callable[[], nn.Module], Batch, Callable[[int], Batch]]] = {
    # name -> model, first batch, other batches
    "factors": (Product, DIAGONAL, lambda seed: pairs(9, 7, 12, seed)),
    "factors of one pair": (Product, pairs(9, 7, 1, 0), lambda seed: pairs(9, 7, 12, seed)),
    "factors and shifts": (lambda: Product(bias=True), DIAGONAL, lambda seed: pairs(9, 7, 12, seed)),
    "triples": (Triples, (*DIAGONAL, DIAGONAL[0] + 2), lambda seed: (*pairs(9, 3, 12, seed), pairs(9, 9, 12, seed)[1])),
    "triples of unit rows": (
        lambda: Triples(unit=True),
        (*DIAGONAL, DIAGONAL[0] + 2),
        lambda seed: (*pairs(9, 3, 12, seed), pairs(9, 9, 12, seed)[1]),
    ),
    "skip-gram": (
        SkipGram,
        (torch.tensor([0, 1]), torch.tensor([[2, 3], [4, 5]])),
        lambda seed: (*words(8)(seed), *words(8, 3)(seed + 9)),
    ),
    "collaborative filtering": (Filtering, DIAGONAL, lambda seed: pairs(9, 7, 12, seed)),
    "words of one sentence": (lambda: Words("range"), (torch.arange(3)[None],), words(3, 6)),
    "words in slices": (lambda: Words("slice"), (torch.arange(3)[None],), words(3, 6)),
    "learned features": (
        Featureless,
        (torch.arange(2), torch.tensor([[0], [1]])),
        lambda seed: (torch.arange(8), graph(8, 20, seed)[1]),
    ),
    "learned features, separate": (
        lambda: Featureless(gnn.SAGEConv),
        (torch.arange(8), torch.tensor([[0, 2, 4, 6], [1, 3, 5, 7]])),
        lambda seed: (torch.arange(8), graph(8, 20, seed)[1]),
    ),
    "rows by a mask": (lambda: Chosen(lambda w, i: w[i]), (mask(0, 1),), lambda seed: (mask(seed, 5),)),
    "rows by a gather": (
        lambda: Chosen(lambda w, i: w.gather(0, i[:, None].expand(-1, 3))),
        (torch.tensor([0, 1]),),
        lambda seed: (torch.tensor([seed, 5]),),
    ),
    "rows by a selection": (
        lambda: Chosen(lambda w, i: w.index_select(0, i)),
        (torch.tensor([0, 1]),),
        lambda seed: (torch.tensor([seed, 5]),),
    ),
    "entries by two indices": (
        lambda: Chosen(lambda w, i: w[i, i % 3, None]),
        (torch.tensor([0, 1]),),
        lambda seed: (torch.tensor([seed, 5]),),
    ),
    "rows put in their places": (
        lambda: Chosen(lambda w, i: torch.zeros(2, 3).to(w).index_copy(0, i, w[:2])),
        (torch.tensor([0, 1]),),
        lambda seed: (torch.tensor([seed % 2, 1 - seed % 2]),),
    ),
    "rows written over others": (
        lambda: Chosen(lambda w, i: w[:2].scatter(0, i[:, None].expand(-1, 3), w[2:4])),
        (torch.tensor([0, 0]),),
        lambda seed: (torch.tensor([seed % 2, 1]),),
    ),
    "attention without edges": (
        lambda: attending(add_self_loops=False),
        graph(5, 0, 0),
        lambda seed: graph(5, 12, seed),
    ),
    "attention of one node": (lambda: attending(add_self_loops=False), graph(1, 0, 0), lambda seed: graph(5, 12, seed)),
    "attention of one node and a loop": (attending, graph(1, 0, 0), lambda seed: graph(5, 12, seed)),
    "an absent relation": (
        lambda: Stack(gnn.RGCNConv(3, 4, 3), gnn.RGCNConv(4, 2, 3)),
        graph(5, 2, 1, relations=1),
        lambda seed: graph(5, 20, seed, relations=3),
    ),
    "an absent relation, fast": (
        lambda: Stack(gnn.FastRGCNConv(3, 4, 3), gnn.FastRGCNConv(4, 2, 3)),
        graph(5, 2, 1, relations=1),
        lambda seed: graph(5, 20, seed, relations=3),
    ),
    "absent degrees": (
        lambda: Stack(gnn.MFConv(3, 4, max_degree=4), gnn.MFConv(4, 2, max_degree=4)),
        graph(5, 1, 1),
        lambda seed: graph(5, 14, seed),
    ),
    "no edges of a kind": (lambda: hetero(lambda: gnn.SAGEConv((-1, -1), 4)), typed(0, 0), lambda seed: typed(9, seed)),
    "no edges of a kind, attention": (
        lambda: hetero(lambda: gnn.GATConv((-1, -1), 4, add_self_loops=False)),
        typed(0, 0),
        lambda seed: typed(9, seed),
    ),
    "transformer without edges of a kind": (
        lambda: Stack(*(gnn.HGTConv(width, 4, (["a", "b"], list(typed(1, 0)[1])), heads=2) for width in (3, 4))),
        typed(0, 0),
        lambda seed: typed(9, seed),
    ),
    **{
        f"{name} in one step": (make, (torch.randn(1, 5, 4),), lambda seed: (torch.randn(4, 5, 4),))
        for name, make in {
            "rnn": lambda: Recurrent(nn.RNN(4, 3, nonlinearity="relu")),
            "projected lstm": lambda: Recurrent(nn.LSTM(4, 5, proj_size=3)),
            "rnn cell": lambda: Recurrent(nn.RNNCell(4, 3, nonlinearity="relu")),
            "cell by hand": lambda: Recurrent(nn.ModuleList([Cell()])),
        }.items()
    },
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_law_of_the_first_batch_holds_in_every_other(name: str) -> None:
    make, first, other = CASES[name]
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        model(*other(0))  # lazy layers
    laws = find_laws(model, *first)

    assert len(laws) or laws.excluded
    for seed in range(1, 5):
        assert worst(model, laws, other(seed)) < 1e-9


def worst(model: nn.Module, laws: Laws, batch: Batch) -> float:
    """The largest delta at random weights, relative to its terms, in float64."""
    model.double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.zero_grad()
    outputs = list(leaves(model(*map(as_double, batch))))
    torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    return float(laws.normalized_delta().max()) if len(laws) else 0.0


def as_double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_double(item) for key, item in value.items()}
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
