import pytest
import torch

from gatdiag.metrics.direction import (
    constant_direction,
    dominant_direction,
    sqrt_degree_direction,
    stationary_direction,
)
from gatdiag.metrics.smoothing import relative_mu_against


def dense(edges, weight, n):
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for (s, t), w in zip(edges.T.tolist(), weight.tolist(), strict=True):
        matrix[t, s] += w
    return matrix


def dominant(matrix):
    values, vectors = torch.linalg.eig(matrix)
    vector = vectors[:, values.real.argmax()].real
    return vector / vector.norm() * vector.sum().sign()


@pytest.fixture(scope="module")
def graph(random_graph):
    edges = random_graph(12, seed=3, density=0.5)
    loops = torch.arange(12).expand(2, 12)
    return edges, torch.cat([edges, loops], 1)


def test_what_gcn_leads_to(graph, device):
    edges, looped = graph
    adjacency = dense(looped, torch.ones(looped.shape[1]), 12)
    degree = adjacency.sum(1)
    gcn = adjacency / (degree[:, None] * degree).sqrt()
    torch.testing.assert_close(sqrt_degree_direction(edges.to(device), 12).cpu(), dominant(gcn))
    torch.testing.assert_close(sqrt_degree_direction(looped, 12, self_loops=False), dominant(gcn))


def test_what_averaging_leads_to(graph, device):
    edges, looped = graph
    adjacency = dense(looped, torch.ones(looped.shape[1]), 12)
    average = adjacency / adjacency.sum(1, keepdim=True)
    torch.testing.assert_close(constant_direction(12, device=device).cpu(), dominant(average))
    torch.testing.assert_close(stationary_direction(edges.to(device), 12).cpu(), dominant(average.T))


@pytest.mark.parametrize("backward", [False, True])
def test_dominant_direction_of_a_weighted_directed_graph(graph, device, backward):
    _, looped = graph
    weight = torch.rand(looped.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = dense(looped, weight, 12)
    edges = looped.flip(0) if backward else looped
    found = dominant_direction(edges.to(device), weight.to(device), 12, iterations=300)
    torch.testing.assert_close(found.cpu(), dominant(matrix.T if backward else matrix), rtol=1e-12, atol=1e-12)
    warm = dominant_direction(edges.to(device), weight.to(device), 12, start=found, iterations=1)
    torch.testing.assert_close(warm, found)


def test_bipartite_graphs_do_not_oscillate():
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    expected = dominant(dense(path, torch.ones(6), 4))
    torch.testing.assert_close(dominant_direction(path, torch.ones(6), 4, iterations=300), expected)


def test_each_graph_has_its_own(random_graph):
    sparse, full = random_graph(6, seed=1, density=0.6), random_graph(6, density=1.0)
    joined, batch = torch.cat([sparse, full + 6], 1), torch.tensor([0] * 6 + [1] * 6)
    weight = torch.ones(joined.shape[1])
    found = dominant_direction(joined, weight, 12, batch=batch, iterations=500)
    torch.testing.assert_close(found[:6], dominant(dense(sparse, torch.ones(sparse.shape[1]), 6)))
    torch.testing.assert_close(found[6:], torch.full((6,), 6**-0.5, dtype=torch.float64))


def test_repeated_aggregation_of_gcn_is_seen_by_its_direction_only(graph):
    edges, looped = graph
    adjacency = dense(looped, torch.ones(looped.shape[1]), 12)
    degree = adjacency.sum(1)
    x = torch.linalg.matrix_power(adjacency / (degree[:, None] * degree).sqrt(), 64) @ torch.eye(12).double()[:, :3]
    assert relative_mu_against(x, sqrt_degree_direction(edges, 12)) < 1e-8
    assert relative_mu_against(x, constant_direction(12)) > 0.05


def test_edge_weights_and_isolated_nodes():
    edges, weight = torch.tensor([[0, 1], [1, 0]]), torch.tensor([4.0, 4.0], dtype=torch.float16)
    torch.testing.assert_close(
        sqrt_degree_direction(edges, 3, edge_weight=weight, self_loops=False),
        torch.tensor([2, 2, 0], dtype=torch.float64) / 8**0.5,
    )
    torch.testing.assert_close(
        stationary_direction(edges, 3, edge_weight=weight), torch.tensor([5, 5, 1], dtype=torch.float64) / 51**0.5
    )


def test_without_edges_or_nodes():
    none = torch.zeros(2, 0, dtype=torch.long)
    assert sqrt_degree_direction(none, 3, self_loops=False).tolist() == [0, 0, 0]
    assert stationary_direction(none, 3, self_loops=False).tolist() == [0, 0, 0]
    torch.testing.assert_close(dominant_direction(none, torch.zeros(0), 4), constant_direction(4))
    for direction in (
        constant_direction(0),
        sqrt_degree_direction(none, 0),
        stationary_direction(none, 0),
        dominant_direction(none, torch.zeros(0), 0),
        dominant_direction(none, torch.zeros(0), 0, batch=torch.zeros(0, dtype=torch.long)),
    ):
        assert direction.shape == (0,)


def test_nan_shows():
    edges = torch.tensor([[0, 1], [1, 0]])
    bad = torch.tensor([1.0, torch.nan])
    assert sqrt_degree_direction(edges, 2, edge_weight=bad).isnan().any()
    assert stationary_direction(edges, 2, edge_weight=bad).isnan().any()
    assert dominant_direction(edges, bad, 2).isnan().any()
    assert sqrt_degree_direction(edges, 2, edge_weight=torch.tensor([-5.0, 1.0])).isnan().any()
