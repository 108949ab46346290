import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics import dirichlet
from gatdiag.metrics.dirichlet import dirichlet_energy, rayleigh_quotient


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_edges(seed, num_nodes, num_edges):
    """Any multigraph: directed, with self loops, repeated edges and isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return edges, torch.rand(num_edges, generator=generator, dtype=torch.float64)


def dense_adjacency(edges, weight, num_nodes):
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for (source, target), w in zip(edges.T.tolist(), weight.tolist(), strict=True):
        adjacency[source, target] += w
    return (adjacency + adjacency.T) / 2


def dense_energy(x, adjacency, laplacian, self_loops):
    """tr(X^T L X), with L = D^+/2 (D - A) D^+/2 for the symmetric one, so that degree 0 adds nothing."""
    if laplacian == "symmetric" and self_loops:
        adjacency = adjacency + torch.diag((adjacency.diagonal() == 0).double())
    degree = adjacency.sum(1)
    operator = torch.diag(degree) - adjacency
    if laplacian == "symmetric":
        scale = torch.tensor([d**-0.5 if d > 0 else 0.0 for d in degree.tolist()], dtype=torch.float64)
        operator = scale[:, None] * operator * scale
    return torch.trace(x.T @ operator @ x).item()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(1, 7),
    num_edges=st.integers(0, 15),
    laplacian=st.sampled_from(["unnormalized", "symmetric"]),
    self_loops=st.booleans(),
    weighted=st.booleans(),
)
def test_against_dense_laplacians(device, seed, num_nodes, num_edges, laplacian, self_loops, weighted):
    edges, weight = random_edges(seed, num_nodes, num_edges)
    x = drawn(num_nodes, 3, seed=seed)
    options = {"laplacian": laplacian, "self_loops": self_loops}
    if weighted:
        options["edge_weight"] = weight.to(device)
    adjacency = dense_adjacency(edges, weight if weighted else torch.ones(num_edges), num_nodes)
    expected = dense_energy(x, adjacency, laplacian, self_loops)
    assert dirichlet_energy(x.to(device), edges.to(device), **options).item() == pytest.approx(expected, abs=1e-12)
    quotient = rayleigh_quotient(x.to(device), edges.to(device), **options).item()
    assert quotient == pytest.approx(expected / x.square().sum().item(), abs=1e-12)
    if laplacian == "symmetric":
        assert -1e-12 <= quotient <= 2 + 1e-12


def test_an_undirected_edge_counts_once_and_a_directed_one_half():
    x = torch.tensor([[0.0], [3.0]])
    assert dirichlet_energy(x, torch.tensor([[0, 1], [1, 0]])) == 9
    assert dirichlet_energy(x, torch.tensor([[0], [1]])) == 4.5
    assert dirichlet_energy(x, torch.tensor([[1], [0]])) == 4.5
    assert dirichlet_energy(x, torch.tensor([[0, 1], [0, 1]])) == 0


def test_small_energies_keep_their_digits(random_graph):
    x, edges = drawn(8, 3), random_graph(8)
    shifted = 1e4 + 1e-6 * x
    rounded = (shifted - 1e4) / 1e-6  # what float64 kept of x
    assert dirichlet_energy(shifted, edges).item() == pytest.approx(1e-12 * dirichlet_energy(rounded, edges).item())


def test_pieces_give_the_same(monkeypatch, random_graph):
    x, edges = drawn(8, 3), random_graph(8)
    whole = dirichlet_energy(x, edges, laplacian="symmetric")
    monkeypatch.setattr(dirichlet, "_CHUNK", 10)
    torch.testing.assert_close(dirichlet_energy(x, edges, laplacian="symmetric"), whole)


def test_nan_at_an_isolated_node_and_in_a_weight_shows():
    edges = torch.tensor([[0, 1], [1, 0]])
    assert dirichlet_energy(torch.tensor([[1.0], [2.0], [torch.nan]]), edges).isnan()
    assert dirichlet_energy(drawn(2, 1), edges, edge_weight=torch.tensor([1.0, torch.nan])).isnan()
    symmetric = dirichlet_energy(
        drawn(2, 1), edges, edge_weight=torch.tensor([-5.0, 1.0]), laplacian="symmetric", self_loops=False
    )
    assert symmetric.isnan()


def test_wrong_arguments():
    x, edges = drawn(3, 2), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match=r"\(nodes, channels\).*\(3,\)"):
        dirichlet_energy(x[:, 0], edges)
    with pytest.raises(InputError, match=r"\(2, edges\).*\(3, 3\)"):
        dirichlet_energy(x, torch.ones(3, 3))
    with pytest.raises(InputError, match=r"\(2,\) was expected, got \(2, 1\)"):
        dirichlet_energy(x, edges, edge_weight=torch.ones(2, 1))
    with pytest.raises(InputError, match="'unnormalized' or 'symmetric' was expected, got 'random walk'"):
        dirichlet_energy(x, edges, laplacian="random walk")
