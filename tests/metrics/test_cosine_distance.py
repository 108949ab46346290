import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics import cosine_distance
from gatdiag.metrics.cosine_distance import mad
from tests.metrics.oracles import drawn


def dense_mad(x, mask):
    """Chen et al. with whole matrices."""
    x = x.numpy()
    length = np.linalg.norm(x, axis=1)
    distance = (1 - x @ x.T / np.outer(length, length)) * mask.numpy()
    distance[np.abs(distance) < 1e-14] = 0
    per_node = distance.sum(1) / np.maximum((distance != 0).sum(1), 1e-300)
    return per_node.sum() / max((per_node != 0).sum(), 1e-300)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(2, 9), density=st.floats(0.1, 1), channels=st.integers(1, 4))
def test_against_dense_matrices(device, seed, num_nodes, density, channels):
    x = drawn(num_nodes, channels, seed=seed)
    mask = torch.rand(num_nodes, num_nodes, generator=torch.Generator().manual_seed(seed)) < density
    mask[0, -1] = True
    pairs = mask.nonzero().T.to(device)
    assert mad(x.to(device), pairs).item() == pytest.approx(dense_mad(x, mask), rel=1e-9, abs=1e-12)


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


def test_wrong_arguments():
    with pytest.raises(InputError, match="not a dense mask"):
        mad(drawn(3, 2), torch.ones(3, 3))
