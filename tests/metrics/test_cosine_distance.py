import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics import cosine_distance
from gatdiag.metrics.cosine_distance import mad, mad_gap, pairs_by_distance


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_mad(x, mask, small=0.0):
    """Chen et al. with whole matrices."""
    x = x.numpy()
    length = np.linalg.norm(x, axis=1)
    distance = (1 - x @ x.T / np.outer(length, length)) * mask.numpy()
    distance[np.abs(distance) < 1e-14] = 0
    per_node = distance.sum(1) / np.maximum((distance != 0).sum(1) + small, 1e-300)
    return per_node.sum() / max((per_node != 0).sum() + small, 1e-300)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(2, 9), density=st.floats(0.1, 1), channels=st.integers(1, 4))
def test_against_dense_matrices(device, seed, num_nodes, density, channels):
    x = drawn(num_nodes, channels, seed=seed)
    mask = torch.rand(num_nodes, num_nodes, generator=torch.Generator().manual_seed(seed)) < density
    mask[0, -1] = True
    pairs = mask.nonzero().T.to(device)
    assert mad(x.to(device), pairs).item() == pytest.approx(dense_mad(x, mask), rel=1e-9, abs=1e-12)
    code = round(dense_mad(x, mask, 1e-8), 4)
    assert mad(x.to(device), pairs, mode="code").item() == pytest.approx(code, abs=1.0001e-4)


def test_code_mode_rounds_to_four_digits():
    x, pair = drawn(2, 3), torch.tensor([[0], [1]])
    assert mad(x, pair, mode="code").item() == round(mad(x, pair).item(), 4) != mad(x, pair).item()


def test_the_gap_is_a_difference(random_graph):
    x, near, remote = drawn(8, 3), random_graph(8, seed=1), random_graph(8, seed=2)
    torch.testing.assert_close(mad_gap(x, near, remote), mad(x, remote) - mad(x, near))
    code = mad_gap(x, near, remote, mode="code")
    torch.testing.assert_close(code, mad(x, remote, mode="code") - mad(x, near, mode="code"))
    assert mad_gap(x, near, torch.zeros(2, 0, dtype=torch.long)).isnan()


def test_only_distances_above_zero_count():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert mad(x, torch.tensor([[0, 0], [1, 2]])).item() == pytest.approx(1)  # node 0: mean over one pair, not two
    assert mad(x, torch.tensor([[0, 1], [1, 2]])).item() == pytest.approx(1)  # mean over node 1 alone
    assert mad(x, torch.tensor([[0], [1]])) == 0


def test_rows_of_zeros():
    x, pair = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0], [1]])
    assert mad(x, pair) == 0
    assert mad(x, torch.tensor([[0, 2], [2, 0]])).item() == pytest.approx(1)


def test_small_angles_keep_their_digits():
    x = torch.tensor([[1.0, 0.0], [1.0, 1e-9]], dtype=torch.float64)
    assert mad(x, torch.tensor([[0], [1]])).item() == pytest.approx(0.5e-18, rel=1e-6)


def test_pieces_give_the_same(monkeypatch, random_graph):
    x, edges = drawn(8, 3), random_graph(8)
    whole = mad(x, edges)
    monkeypatch.setattr(cosine_distance, "_CHUNK", 10)
    torch.testing.assert_close(mad(x, edges), whole)


def test_nan_outside_the_pairs_is_not_asked_for():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]])
    assert mad(x, torch.tensor([[0], [1]])).item() == pytest.approx(1)
    assert mad(x, torch.tensor([[0], [2]])).isnan()
    assert mad(x, torch.tensor([[0], [2]]), mode="code").isnan()


def test_wrong_arguments():
    with pytest.raises(InputError, match="not a dense mask"):
        mad(drawn(3, 2), torch.ones(3, 3))
    with pytest.raises(InputError, match="'paper' or 'code' was expected, got 'fast'"):
        mad(drawn(3, 2), torch.zeros(2, 1, dtype=torch.long), mode="fast")


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


def test_sources_of_pairs_and_blocks(monkeypatch, random_graph):
    edges = random_graph(20, density=0.1)
    everything = pairs_by_distance(edges, 20, 2, 3)
    monkeypatch.setattr(cosine_distance, "_ENTRIES", 45)  # two sources at a time
    assert torch.equal(pairs_by_distance(edges, 20, 2, 3), everything)
    some = pairs_by_distance(edges, 20, 2, 3, sources=torch.tensor([7, 2, 11]))
    expected = [everything[:, everything[0] == node] for node in (7, 2, 11)]
    assert torch.equal(some, torch.cat(expected, 1))


def test_no_pairs():
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
