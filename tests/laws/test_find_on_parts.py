"""Laws of models on large graphs: checked on a part of the inputs, and the same as on all of them."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.laws import Laws, find, find_laws
from gatdiag.structure.replica import Replica
from tests.structure.test_inputs import edges_of, many

NODES = 1500
LINKS = edges_of(4 * NODES, NODES)


class Deep(nn.Module):
    def __init__(self, first: nn.Module, *others: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([first, *others])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index) if isinstance(layer, gnn.MessagePassing) else layer(x)
        return x


class Molecules(nn.Module):
    """As PyG's example of PNA: embeddings of nodes and edges, towers, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.bonds = nn.Embedding(7, 6), nn.Embedding(3, 4)
        aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
        options = {"deg": torch.tensor([0, 20, 30, 10]), "edge_dim": 4, "towers": 2}
        self.convs = nn.ModuleList(gnn.PNAConv(6, 6, aggregators, scalers, **options) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: Tensor, edge_index: Tensor, bonds: Tensor, batch: Tensor) -> Tensor:
        x, e = self.nodes(x), self.bonds(bonds)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index, e)))
        return self.head(gnn.global_add_pool(x, batch))


def molecules() -> tuple[nn.Module, tuple[Tensor, ...]]:
    edge_index, batch = many(graphs=60)
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(7, (len(batch),), generator=generator)
    return Molecules(), (kinds, edge_index, torch.randint(3, (edge_index.shape[1],), generator=generator), batch)


def plain() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = gnn.GCNConv(3, 5), nn.BatchNorm1d(5), nn.ReLU(), gnn.GATv2Conv(5, 4), nn.ReLU(), gnn.SAGEConv(4, 2)
    return Deep(*layers), (torch.randn(NODES, 3), LINKS)


def table_of_directions() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Each row has a scale of its own, of which a part shows some."""
    layers = nn.Embedding(NODES, 3), nn.LayerNorm(3, eps=0), gnn.GCNConv(3, 2)
    return Deep(*layers), (torch.arange(NODES), LINKS)


def rare_kind() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A row of the embedding is used by one node, which a part most likely leaves out."""
    kinds = torch.arange(NODES) % 3
    kinds[-1] = 3
    layers = nn.Embedding(5, 3), nn.LayerNorm(3, eps=0), gnn.GCNConv(3, 2)
    return Deep(*layers), (kinds, LINKS)


def describe(laws: Laws) -> tuple[list[object], list[str]]:
    return [(law.name, law.kind, law.exact, law.terms) for law in laws], sorted(map(str, laws.excluded))


@pytest.mark.parametrize(
    ("make", "is_enough"),
    [(molecules, True), (plain, True), (table_of_directions, False), (rare_kind, False)],
)
def test_the_same_laws_as_on_the_whole_inputs(
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, args = make()
    sizes: list[int] = []
    run = Replica.run

    def counted(replica: Replica, *given: object) -> object:
        if torch.is_grad_enabled():
            sizes.append(len(replica.args[0]))
        return run(replica, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "run", counted)
    found = find_laws(model, *args)
    monkeypatch.setattr(find, "sample_inputs", lambda *_: None)

    assert describe(found) == describe(find_laws(model, *args))
    if is_enough:
        first = sizes.index(len(args[0]))
        assert max(sizes[:first]) <= 300
