import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics import hop_distance
from gatdiag.metrics.hop_distance import pairs_by_distance


def floyd_warshall(edges, num_nodes):
    hops = [[0 if i == j else math.inf for j in range(num_nodes)] for i in range(num_nodes)]
    for s, t in edges.T.tolist():
        hops[s][t] = min(hops[s][t], 1)
    for k in range(num_nodes):
        for i in range(num_nodes):
            for j in range(num_nodes):
                hops[i][j] = min(hops[i][j], hops[i][k] + hops[k][j])
    return hops


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(1, 9),
    num_edges=st.integers(0, 14),
    minimum=st.integers(0, 4),
    extra=st.one_of(st.none(), st.integers(0, 3)),
)
def test_against_all_shortest_paths(device, seed, num_nodes, num_edges, minimum, extra):
    edges = torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))
    maximum = None if extra is None else minimum + extra
    hops = floyd_warshall(edges, num_nodes)
    limit = math.inf if maximum is None else maximum
    expected = [(i, j) for i in range(num_nodes) for j in range(num_nodes) if minimum <= hops[i][j] <= limit]
    found = pairs_by_distance(edges.to(device), num_nodes, minimum, maximum)
    assert found.device.type == device.type
    assert [tuple(pair) for pair in found.T.tolist()] == expected


def test_sources_and_blocks(monkeypatch, random_graph):
    edges = random_graph(20, density=0.1)
    everything = pairs_by_distance(edges, 20, 2, 3)
    monkeypatch.setattr(hop_distance, "_CHUNK", 45)  # two sources at a time
    assert torch.equal(pairs_by_distance(edges, 20, 2, 3), everything)
    some = pairs_by_distance(edges, 20, 2, 3, sources=torch.tensor([7, 2, 11]))
    expected = [everything[:, everything[0] == node] for node in (7, 2, 11)]
    assert torch.equal(some, torch.cat(expected, 1))


def test_empty():
    none = torch.zeros(2, 0, dtype=torch.long)
    assert pairs_by_distance(none, 0, 1, 3).shape == (2, 0)
    assert pairs_by_distance(none, 3, 1, 3).shape == (2, 0)
    assert pairs_by_distance(none, 3, 1, sources=torch.zeros(0, dtype=torch.long)).shape == (2, 0)


def test_wrong_limits():
    with pytest.raises(InputError, match="got 3 and 2"):
        pairs_by_distance(torch.zeros(2, 0, dtype=torch.long), 3, 3, 2)
    with pytest.raises(InputError, match="got -1 and None"):
        pairs_by_distance(torch.zeros(2, 0, dtype=torch.long), 3, -1)


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 0), (0, 2), (1, 3), (2, 2), (3, 4), (4, 7), (0, None), (8, None)])
def test_on_a_long_path_hops_are_differences(minimum, maximum):
    path = torch.stack([torch.arange(11), torch.arange(1, 12)])
    both = torch.cat([path, path.flip(0)], 1)
    limit = 99 if maximum is None else maximum
    expected = [[i, j] for i in range(12) for j in range(12) if minimum <= abs(i - j) <= limit]
    assert pairs_by_distance(both, 12, minimum, maximum).T.tolist() == expected
