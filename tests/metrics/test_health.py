import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics.health import dead_fraction, non_finite_counts


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 6), channels=st.integers(1, 6), data=st.data())
def test_dead_fraction_against_loops(device, seed, num_nodes, channels, data):
    x = torch.randn(num_nodes, channels, generator=torch.Generator().manual_seed(seed)).relu()
    mask = data.draw(st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes))
    mask[0] = True
    dead = [all(x[node, i] == 0 for node in range(num_nodes) if mask[node]) for i in range(channels)]
    found = dead_fraction(x.to(device), mask=torch.tensor(mask, device=device)).item()
    assert found == pytest.approx(sum(dead) / channels)


def test_small_is_not_dead():
    assert dead_fraction(torch.tensor([[1e-40, 0.0]])).item() == 0.5
    assert dead_fraction(torch.tensor([[-0.0, 1.0]])).item() == 0.5


def test_everything_masked_is_undefined():
    assert dead_fraction(torch.ones(2, 2), mask=torch.zeros(2, dtype=torch.bool)).isnan()


def test_shape():
    with pytest.raises(InputError, match=r"\(3,\)"):
        dead_fraction(torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_non_finite_counts(dtype, device):
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf], [torch.inf, 0, 65000], [torch.nan, torch.nan, 1]])
    assert non_finite_counts(x.to(device, dtype)).tolist() == [3, 2, 1]


def test_non_finite_counts_of_odd_inputs():
    assert non_finite_counts(torch.zeros(0, 3)).tolist() == [0, 0, 0]
    assert non_finite_counts(torch.arange(3)).tolist() == [0, 0, 0]
    assert non_finite_counts(torch.tensor(torch.nan)).tolist() == [1, 0, 0]
