import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics.rank import ranks


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6), num_nodes=st.integers(1, 8), channels=st.integers(1, 6), exponent=st.integers(-150, 150)
)
def test_against_numpy(device, seed, num_nodes, channels, exponent):
    x = torch.randn(num_nodes, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sigma = np.linalg.svd(x.numpy(), compute_uv=False).tolist()
    shares = [value / sum(sigma) for value in sigma]
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    scaled = (10.0**exponent * x).to(device)
    expected = math.exp(entropy), sum(s * s for s in sigma) / sigma[0] ** 2
    assert [rank.item() for rank in ranks(scaled)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_equal_singular_values_give_their_number(rank):
    x = torch.linalg.qr(torch.randn(9, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    x = torch.cat([x, torch.zeros(9, 2, dtype=torch.float64)], 1)
    assert [each.item() for each in ranks(x)] == pytest.approx([rank, rank])


def test_shape():
    with pytest.raises(InputError, match=r"\(3,\)"):
        ranks(torch.zeros(3))


@pytest.mark.parametrize(("decades", "digits"), [(0, 1e-9), (3, 1e-6), (5, 1e-5), (12, 2e-4)])
def test_float32_has_the_ranks_of_its_exact_singular_values(decades, digits):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 16, generator=generator, dtype=torch.float64)).Q for n in (200, 16))
    x = (left * torch.logspace(0, -decades, 16, dtype=torch.float64) @ right.mT).float()
    sigma = torch.linalg.svdvals(x.double())
    p = sigma / sigma.sum()
    for each in (x, x.mT):
        effective, numerical = ranks(each)
        assert effective.item() == pytest.approx(math.exp(-(p * p.log()).sum()), rel=digits)
        assert numerical.item() == pytest.approx((sigma.square().sum() / sigma[0] ** 2).item(), rel=1e-12)


def test_equal_rows_of_float32_have_rank_one_exactly():
    x = torch.randn(6, generator=torch.Generator().manual_seed(0)).expand(50, 6)
    assert ranks(x)[0] == 1
