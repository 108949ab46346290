import math
from fractions import Fraction

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


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def exact_distance(one, other):
    """Of vectors of fractions; exactly 0 if they are parallel."""
    product, *squares = (
        sum(a * b for a, b in zip(*both, strict=True)) for both in ((one, other), (one, one), (other, other))
    )
    squared = Fraction(product**2, squares[0] * squares[1])
    return 0.0 if squared == 1 and product > 0 else 1 - math.copysign(math.sqrt(squared), product)


def exact_mad(directions, kinds, pairs):
    distances = {(k, m): exact_distance(directions[k], directions[m]) for k in range(3) for m in range(3)}
    of_nodes = {}
    for i, j in pairs:
        if distance := distances[kinds[i], kinds[j]]:
            of_nodes.setdefault(i, []).append(distance)
    return math.fsum(math.fsum(each) / len(each) for each in of_nodes.values()) / max(1, len(of_nodes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 2, 3, 16, 100])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_rows_that_are_parallel_up_to_rounding_have_distance_zero(dtype, channels, seed):
    random = np.random.default_rng(seed)
    first = [Fraction(int(n), 7) for n in random.integers(30, 100, channels)]
    second = [(-1) ** place * entry for place, entry in enumerate(first)]
    directions = [first, second, [-entry for entry in second]]
    kinds, scales = random.integers(0, 3, 20).tolist(), [Fraction(int(n), 113) for n in random.integers(1, 300, 20)]
    rows = [[float(scale * entry) for entry in directions[kind]] for kind, scale in zip(kinds, scales, strict=True)]
    x = torch.tensor(rows, dtype=torch.float64).to(dtype)
    pairs = [(i, j) for i in range(20) for j in range(20)]
    tolerance = 10 * torch.finfo(dtype).eps
    found = mad(x, torch.tensor(pairs).T).item()
    assert found == pytest.approx(exact_mad(directions, kinds, pairs), rel=tolerance, abs=tolerance**2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [4, 64, 512])
def test_rows_that_are_parallel_up_to_the_rounding_of_a_product_have_distance_zero(dtype, channels):
    before = drawn(30, 1).abs().clamp(min=0.1) * drawn(1, channels, seed=1)
    after = (before.to(dtype) @ drawn(channels, channels, seed=2).to(dtype))[:, : channels // 2]
    if dtype.itemsize < 4:  # already the factors are rounded, which the product mixes
        after = (before @ drawn(channels, channels, seed=2)).to(dtype)
    pairs = torch.cartesian_prod(torch.arange(30), torch.arange(30)).T
    assert mad(after, pairs) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_larger_than_rounding_counts(dtype):
    slope = 4 * torch.finfo(dtype).eps
    x = torch.tensor([[1.0, 0.0], [1.0, slope]], dtype=dtype)
    exact = 2 * math.sin(math.atan(slope) / 2) ** 2
    assert mad(x, torch.tensor([[0], [1]])).item() == pytest.approx(exact, rel=1e-6, abs=0)


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
