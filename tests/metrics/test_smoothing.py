import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics.smoothing import mu, mu_against, relative_mu, relative_mu_against


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_mu(x):
    """From all pairs: mu^2 = 1/(2N) sum_uv ||x_u - x_v||^2."""
    rows = x.tolist()
    return math.sqrt(sum((a - b) ** 2 for u in rows for v in rows for a, b in zip(u, v, strict=True)) / 2 / len(rows))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(num_nodes=st.integers(1, 8), channels=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_mu_against_all_pairs(device, num_nodes, channels, seed):
    x = drawn(num_nodes, channels, seed=seed)
    assert mu(x.to(device)).item() == pytest.approx(slow_mu(x), rel=1e-12, abs=1e-14)
    length = math.sqrt(sum(value**2 for value in x.flatten().tolist()))
    assert relative_mu(x.to(device)).item() == pytest.approx(slow_mu(x) / length, rel=1e-12, abs=1e-14)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(num_nodes=st.integers(1, 8), seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_mu_against_a_direction_is_a_dense_projection(device, num_nodes, seed, scale):
    x, direction = drawn(num_nodes, 3, seed=seed), drawn(num_nodes, seed=seed + 1)
    unit = direction / direction.norm()
    rest = (torch.eye(num_nodes, dtype=torch.float64) - torch.outer(unit, unit)) @ x
    value = mu_against(x.to(device), scale * direction.to(device)).item()
    assert value == pytest.approx(rest.norm().item(), rel=1e-10, abs=1e-12)
    relative = relative_mu_against(x.to(device), direction.to(device)).item()
    assert relative == pytest.approx(value / x.norm().item(), rel=1e-10, abs=1e-12)


def test_the_constant_direction_gives_mu():
    x = drawn(7, 3)
    torch.testing.assert_close(mu_against(x, torch.ones(7)), mu(x))
    torch.testing.assert_close(relative_mu_against(x, torch.ones(7)), relative_mu(x))


def test_triangle_inequality_and_range():
    for seed in range(20):
        x, y = drawn(6, 3, seed=seed), drawn(6, 3, seed=seed + 100)
        assert mu(x + y) <= mu(x) + mu(y)
        assert 0 <= relative_mu(x) <= 1 + 1e-12
    assert relative_mu(torch.tensor([[1.0], [-1.0]])) == 1


def test_nearly_equal_rows_keep_their_digits():
    x = 1e6 + torch.tensor([[0.0], [1e-3], [2e-3]], dtype=torch.float64)
    assert mu(x).item() == pytest.approx(math.sqrt(2) * 1e-3, rel=1e-6)
    mask = torch.tensor([True, True, False])
    constant = torch.full((3, 2), 0.1, dtype=torch.float64)
    constant[2] = -5
    assert mu(constant, mask=mask) == 0
    assert mu(constant, batch=torch.tensor([0, 0, 1])).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_squares_neither_overflow_nor_vanish(scale):
    x, direction = drawn(7, 3), drawn(7, seed=1)
    assert mu(scale * x).item() == pytest.approx(scale * mu(x).item(), rel=1e-14)
    assert relative_mu(scale * x).item() == pytest.approx(relative_mu(x).item(), rel=1e-14)
    against = mu_against(x, direction).item()
    assert mu_against(scale * x, direction / scale).item() == pytest.approx(scale * against, rel=1e-12)
    assert relative_mu_against(scale * x, scale * direction).item() == pytest.approx(
        relative_mu_against(x, direction).item(), rel=1e-12
    )


def test_each_graph_has_its_own_scale():
    x, batch = drawn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    scale = torch.tensor([1e200, 1e-200, 1.0], dtype=torch.float64)
    values = mu(scale[batch].unsqueeze(1) * x, batch=batch)
    torch.testing.assert_close(values / scale, mu(x, batch=batch))
    mask = torch.tensor([True, True, True, True, True, False])
    spoiled = x.clone()
    spoiled[5] = torch.inf
    torch.testing.assert_close(mu(spoiled, batch=batch, mask=mask)[:2], mu(x, batch=batch)[:2])
    assert mu(spoiled, batch=batch, mask=mask)[2] == 0


def test_the_largest_and_smallest_of_float16():
    x = torch.tensor([[65504.0], [-65504.0], [6e-8]], dtype=torch.float16)
    assert mu(x).item() == pytest.approx(math.sqrt(2) * 65504, rel=1e-9)
    assert mu(x[2:].expand(3, 1) * torch.tensor([[1], [2], [3]], dtype=torch.float16)).item() > 0


def test_a_zero_direction_projects_nothing_out():
    x = drawn(4, 2)
    torch.testing.assert_close(mu_against(x, torch.zeros(4)), x.norm())
    batch = torch.tensor([0, 0, 1, 1])
    values = mu_against(x, torch.tensor([0.0, 0.0, 1.0, 1.0]), batch=batch)
    torch.testing.assert_close(values, torch.stack([x[:2].norm(), mu(x[2:])]))


def test_a_direction_that_is_not_finite_shows():
    assert mu_against(drawn(3, 2), torch.tensor([1.0, torch.nan, 1.0])).isnan()
    assert mu_against(drawn(3, 2), torch.tensor([1.0, torch.inf, 1.0])).isnan()


def test_everything_masked_is_empty():
    nothing = torch.zeros(3, dtype=torch.bool)
    assert mu(drawn(3, 2), mask=nothing) == 0
    assert relative_mu(drawn(3, 2), mask=nothing).isnan()


def test_wrong_shapes():
    with pytest.raises(InputError, match=r"\(nodes, channels\).*\(3, 2, 4\)"):
        mu(torch.zeros(3, 2, 4))
    with pytest.raises(InputError, match=r"\(3,\) was expected, got \(3, 1\)"):
        mu_against(torch.zeros(3, 2), torch.zeros(3, 1))
