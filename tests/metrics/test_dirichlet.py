import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics import dirichlet
from gatdiag.metrics.dirichlet import energies
from tests.metrics.oracles import drawn


def random_edges(seed, num_nodes, num_edges):
    """Any multigraph: directed, with self loops, repeated edges and isolated nodes."""
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


def dense_adjacency(edges, num_nodes):
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for source, target in edges.T.tolist():
        adjacency[source, target] += 1
    return (adjacency + adjacency.T) / 2


def dense_energy(x, adjacency, *, symmetric):
    """tr(X^T L X), L = D - A, or D^-1/2 (D - A) D^-1/2 with a self loop at each node that has none."""
    if symmetric:
        adjacency = adjacency + torch.diag((adjacency.diagonal() == 0).double())
    degree = adjacency.sum(1)
    operator = torch.diag(degree) - adjacency
    if symmetric:
        operator = degree[:, None] ** -0.5 * operator * degree**-0.5
    return torch.trace(x.T @ operator @ x).item()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 7), num_edges=st.integers(0, 15))
def test_against_dense_laplacians(device, seed, num_nodes, num_edges):
    edges, x = random_edges(seed, num_nodes, num_edges), drawn(num_nodes, 3, seed=seed)
    adjacency = dense_adjacency(edges, num_nodes)
    energy, quotient = (value.item() for value in energies(x.to(device), edges.to(device)))
    assert energy == pytest.approx(dense_energy(x, adjacency, symmetric=False), abs=1e-12)
    expected = dense_energy(x, adjacency, symmetric=True) / x.square().sum().item()
    assert quotient == pytest.approx(expected, abs=1e-12)
    assert -1e-12 <= quotient <= 2 + 1e-12


def test_an_undirected_edge_counts_once_and_a_directed_one_half():
    x = torch.tensor([[0.0], [3.0]])
    assert energies(x, torch.tensor([[0, 1], [1, 0]]))[0] == 9
    assert energies(x, torch.tensor([[0], [1]]))[0] == 4.5
    assert energies(x, torch.tensor([[1], [0]]))[0] == 4.5
    assert energies(x, torch.tensor([[0, 1], [0, 1]]))[0] == 0


def test_small_energies_keep_their_digits(random_graph):
    x, edges = drawn(8, 3), random_graph(8)
    shifted = 1e4 + 1e-6 * x
    rounded = (shifted - 1e4) / 1e-6  # what float64 kept of x
    assert energies(shifted, edges)[0].item() == pytest.approx(1e-12 * energies(rounded, edges)[0].item())


def test_pieces_give_the_same(monkeypatch, random_graph):
    x, edges = drawn(8, 3), random_graph(8)
    whole = energies(x, edges)
    monkeypatch.setattr(dirichlet, "_CHUNK", 10)
    torch.testing.assert_close(energies(x, edges), whole)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_at_an_isolated_node_shows(value):
    x, pair = torch.tensor([[1.0], [2.0], [value]]), torch.tensor([[0, 1], [1, 0]])
    assert all(each.isnan() for each in energies(x, pair))


def test_wrong_arguments():
    x, edges = drawn(3, 2), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match=r"\(nodes, channels\).*\(3,\)"):
        energies(x[:, 0], edges)
    with pytest.raises(InputError, match=r"\(2, edges\).*\(3, 3\)"):
        energies(x, torch.ones(3, 3))
