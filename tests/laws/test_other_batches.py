"""A law of one batch holds in every other: which rows meet, and how many there are, is data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from gatdiag.laws import Laws, find_laws
from tests.laws.models.batches import (
    Buffered,
    Cell,
    Chosen,
    Experts,
    Featureless,
    Filtering,
    Joined,
    Kinds,
    Looked,
    Masked,
    Normed,
    Paired,
    Pictured,
    Product,
    Recurrent,
    SkipGram,
    Stack,
    Triples,
    Words,
)
from tests.laws.referee import leaves

Batch = tuple[Any, ...]


def pairs(rows: int, others: int, count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(size, (count,), generator=generator) for size in (rows, others))


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


def mask(*positions: int) -> Tensor:
    return torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(positions), True)


def words(*shape: int) -> Callable[[int], Batch]:
    return lambda seed: (torch.randint(9, shape, generator=torch.Generator().manual_seed(seed)),)


def attending(**options: Any) -> nn.Module:
    return Stack(gnn.GATConv(3, 4, **options), gnn.GATConv(4, 2, **options))


def without_nodes(batch: Batch, kind: str) -> Batch:
    """Without the nodes of a kind and their edges, and with few of the others."""
    x, links = batch
    return (
        {name: value[:0] if name == kind else value for name, value in x.items()},
        {ends: edges[:, :0] if kind in ends else edges[:, :6] for ends, edges in links.items()},
    )


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
    "transformer without nodes of a kind": (
        lambda: Stack(*(gnn.HGTConv(width, 4, (["a", "b"], list(typed(1, 0)[1])), heads=2) for width in (3, 4))),
        without_nodes(typed(0, 1), "b"),
        lambda seed: typed(9, seed),
    ),
    "transformer without edges of a kind": (
        lambda: Stack(*(gnn.HGTConv(width, 4, (["a", "b"], list(typed(1, 0)[1])), heads=2) for width in (3, 4))),
        typed(0, 0),
        lambda seed: typed(9, seed),
    ),
    "padding that is not zero": (lambda: Looked(padding_idx=0, pads=False), (torch.arange(1, 3),), words(8)),
    "padding that is trained": (lambda: Looked(padding_idx=0, tied=True), (torch.arange(1, 3),), words(8)),
    "words by frequency": (lambda: Looked(scale_grad_by_freq=True), (torch.arange(1, 3),), words(20)),
    "words without an image": (
        Pictured,
        (torch.tensor([1, 2]), torch.randn(2, 3)),
        lambda seed: (torch.tensor([0, seed, 0]), torch.randn(3, 3)),
    ),
    **{
        f"pairs of positions, {name}": (
            lambda read=read: Paired(read),
            (torch.randn(2, 3),),
            lambda seed: (torch.randn(2 + seed % 4, 3),),
        )
        for name, read in {
            "alike": lambda table, count: table(torch.arange(count)),
            "reversed": lambda table, count: table(torch.arange(count).flip(0)),
            "from the end": lambda table, count: table.weight[-count:],
        }.items()
    },
    **{
        f"{name}, {'all' if first else 'none'} masked": (
            lambda how=how: Masked(how),
            (torch.randn(3, 3), torch.tensor([first] * 3)),
            lambda seed: (torch.randn(4, 3), torch.tensor([True, False, True, False]).roll(seed)),
        )
        for name, how in {
            "replaced": lambda x, m, rows: x.scatter(0, m.nonzero().expand(-1, 4), rows),
            "joined": lambda x, m, rows: torch.cat([x[~m], rows]),
        }.items()
        for first in (False, True)
    },
    "an edge within a kind": (
        Kinds,
        (torch.randn(2, 3, 3), torch.tensor([[0], [1]])),
        lambda seed: (torch.randn(2, 3, 3), graph(6, 14, seed)[1]),
    ),
    "buffer in one step": (Buffered, (torch.randn(1, 5, 4),), lambda seed: (torch.randn(4, 5, 4),)),
    **{
        f"{name} in one step": (make, (torch.randn(1, 5, 4),), lambda seed: (torch.randn(4, 5, 4),))
        for name, make in {
            "rnn": lambda: Recurrent(nn.RNN(4, 3, nonlinearity="relu")),
            "projected lstm": lambda: Recurrent(nn.LSTM(4, 5, proj_size=3)),
            "rnn cell": lambda: Recurrent(nn.RNNCell(4, 3, nonlinearity="relu")),
            "cell by hand": lambda: Recurrent(nn.ModuleList([Cell()])),
            "cell on joined input and state": lambda: Recurrent(nn.ModuleList([Joined()])),
            "normalized cell": lambda: Recurrent(nn.ModuleList([Normed()])),
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


def test_a_model_that_sends_rows_to_other_experts_at_other_weights_has_laws() -> None:
    torch.manual_seed(0)
    laws = find_laws(Experts(), torch.randn(1, 3))

    assert len(laws) == 4  # of the one expert that these inputs reach
    assert any("branch" in exclusion.reason for exclusion in laws.excluded)
