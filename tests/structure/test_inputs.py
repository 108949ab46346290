"""A sample of large inputs is a graph of the same kind; other inputs are not sampled; perturbation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data

from gatdiag.structure.inputs import perturb, sample_inputs


def edges_of(count: int, nodes: int, seed: int = 0) -> Tensor:
    return torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def many(graphs: int = 100, nodes: int = 20, links: int = 50) -> tuple[Tensor, Tensor]:
    """edge_index and batch."""
    ends = [edges_of(links, nodes, seed) + seed * nodes for seed in range(graphs)]
    return torch.cat(ends, dim=1), torch.arange(graphs).repeat_interleave(nodes)


def numbered(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32).unsqueeze(1)


def test_of_a_batch_whole_graphs_are_chosen() -> None:
    edge_index, batch = many()
    part = sample_inputs(
        (numbered(2000), edge_index, numbered(5000)), {"batch": batch, "u": numbered(100), "size": None}
    )

    assert part is not None
    (x, moved, marks), rest = part
    nodes, links, graphs = (t.flatten().long() for t in (x, marks, rest["u"]))
    assert 200 <= len(nodes) <= 300
    assert torch.equal(nodes[moved], edge_index[:, links])
    assert torch.equal(graphs[rest["batch"]], batch[nodes])
    assert len(nodes) == 20 * len(graphs)
    assert len(links) == 50 * len(graphs)
    assert rest["size"] is None


@pytest.mark.parametrize("links", [2500, 12000, 400000])
def test_of_one_graph_the_surroundings_of_a_node_with_all_edges_inside(links: int) -> None:
    edge_index = edges_of(links, 3000)
    part = sample_inputs((), {"x": numbered(3000), "edge_index": edge_index, "edge_weight": numbered(links)[:, 0]})

    assert part is not None
    nodes, marks = part[1]["x"].flatten().long(), part[1]["edge_weight"].long()
    assert len(nodes) == 256
    assert torch.equal(nodes[part[1]["edge_index"]], edge_index[:, marks])
    assert len(marks) == int(torch.isin(edge_index, nodes).all(0).sum())
    assert len(marks) >= 200


def test_scattered_pieces_are_put_together() -> None:
    pairs = torch.arange(4000).reshape(2, 2000)
    part = sample_inputs((numbered(4000), pairs), {})

    assert part is not None
    assert len(part[0][0]) >= 200
    assert 2 * part[0][1].shape[1] == len(part[0][0])


def test_graphs_of_pyg() -> None:
    graphs = [Data(numbered(20), edges_of(50, 20, seed), y=torch.ones(1)) for seed in range(100)]
    one = Data(numbered(3000), edges_of(9000, 3000), train_mask=torch.ones(3000, dtype=torch.bool))
    part, few = sample_inputs((one,), {}), sample_inputs((Batch.from_data_list(graphs),), {})

    assert part is not None
    assert few is not None
    assert part[0][0].num_nodes == len(part[0][0].train_mask) == 256
    assert few[0][0].num_nodes == 20 * few[0][0].num_graphs == 20 * len(few[0][0].y)
    assert few[0][0].num_graphs == 12


NODES, EDGES = 3000, 9000
X, LINKS = torch.zeros(NODES, 2), edges_of(EDGES, NODES)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X[:500], LINKS % 500), {}),
        ((X,), {}),
        ((X[:10], torch.zeros(2, 0, dtype=torch.int64)), {}),
        ((X, LINKS[:, :NODES]), {}),
        ((X, LINKS, torch.zeros(7, 2)), {}),
        ((X, LINKS, LINKS), {}),
        ((X, LINKS, torch.zeros(NODES, NODES)), {}),
        ((X, LINKS), {"num_nodes": NODES}),
        ((X, torch.eye(NODES).to_sparse()), {}),
        ((X.to_sparse(), LINKS), {}),
        (([X], LINKS), {}),
        (({"paper": X}, {("paper", "cites", "paper"): LINKS}), {}),
        ((Data(X[:500], LINKS % 500),), {}),
        ((Data(X, LINKS), X), {}),
    ],
)
def test_small_inputs_and_others_are_left_alone(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    assert sample_inputs(args, kwargs) is None


numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


def draw(tensor, seed=0):
    return perturb(tensor, torch.Generator().manual_seed(seed))


@given(numbers)
def test_stays_in_the_range_of_the_input_and_zero(values):
    x = torch.tensor(values, dtype=torch.float64)
    y = draw(x)
    low, high = min(0.0, *values), max(0.0, *values)
    high = 1.0 if low == high else high
    assert ((low - 1e-9 <= y) & (y <= high + 1e-9)).all()
    assert (y != x).all()
    assert ((y - x).abs() <= 0.2 * (high - low) + 1e-9).all()


def test_formula():
    x = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    share, place = 0.2 * torch.rand(3, generator=generator), torch.rand(3, generator=generator)
    expected = [
        (1 - t) * v + t * (-2 + 3 * p) for v, t, p in zip(x.tolist(), share.tolist(), place.tolist(), strict=True)
    ]
    assert torch.allclose(draw(x), torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.tensor([True, False]),
        torch.tensor([1j]),
        torch.empty(0, 3),
        torch.full((2,), torch.nan),
        torch.full((2,), -torch.inf),
    ],
)
def test_left_alone(tensor):
    assert torch.equal(torch.nan_to_num(draw(tensor)), torch.nan_to_num(tensor))


def test_attention_mask_keeps_its_infinities():
    mask = torch.tensor([0.0, -torch.inf])
    assert draw(mask)[1] == -torch.inf
    assert 0 < draw(mask)[0] < 1


SCALAR = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc}
BLOCKS = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()  # of one by two, stored where DENSE is not zero
DENSE = torch.tensor([[0.0, 2.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_sparse_csc,
        lambda dense: dense.to_sparse_bsr((1, 2)),
        lambda dense: dense.to_sparse_bsc((1, 2)),
    ],
)
def test_of_sparse_tensors_only_stored_values_move(make):
    sparse = make(DENSE)
    result = draw(sparse)
    assert (result.layout, result.dtype, result.shape) == (sparse.layout, sparse.dtype, sparse.shape)
    moved = result.to_dense() != DENSE
    stored = DENSE != 0 if sparse.layout in SCALAR else BLOCKS
    assert (moved <= stored).all()
    assert moved[DENSE != 0].all()
    assert (result.to_dense() >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_kept(dtype):
    assert draw(torch.ones(4, dtype=dtype)).dtype == dtype
