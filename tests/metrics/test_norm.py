import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics.norm import frobenius_norm, norms, spectral_norm


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_norm(x):
    return math.sqrt(math.fsum(value**2 for value in x.flatten().tolist()))


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 4), (), (0, 3)])
def test_frobenius_norm(shape, device):
    x = drawn(*shape)
    assert frobenius_norm(x.to(device)).item() == pytest.approx(slow_norm(x), rel=1e-14)


def test_squares_neither_vanish_nor_overflow():
    assert frobenius_norm(torch.full((4,), 1e-30)).item() == pytest.approx(2e-30)
    assert frobenius_norm(torch.full((4,), 1e30)).item() == pytest.approx(2e30)
    assert frobenius_norm(torch.full((4,), 300.0, dtype=torch.float16)).item() == 600
    assert norms([torch.full((4,), 1e-30), torch.full((4,), 300.0, dtype=torch.float16)]).tolist() == pytest.approx(
        [2e-30, 600]
    )


def test_norms_are_those_of_each(device):
    tensors = [drawn(3, 4), drawn(0), drawn(5, dtype=torch.float32), torch.tensor([1.0, torch.nan]), drawn(2, 2, 2)]
    values = norms([tensor.to(device) for tensor in tensors])
    assert values.dtype == torch.float64
    torch.testing.assert_close(values.cpu(), torch.stack([frobenius_norm(t) for t in tensors]), equal_nan=True)
    assert norms([]).shape == (0,)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 10**6), scale=st.floats(1e-200, 1e200))
def test_spectral_norm_converges_from_below(rows, columns, seed, scale):
    weight = scale * drawn(rows, columns, seed=seed)
    exact = torch.linalg.matrix_norm(weight / scale, 2).item() * scale
    rough, vector = spectral_norm(weight, iterations=3)
    assert exact * 0.5 < rough.item() <= exact * (1 + 1e-12)
    fine, vector = spectral_norm(weight, vector, iterations=1000)
    assert fine.item() == pytest.approx(exact, rel=1e-3)
    assert rough.item() <= fine.item() * (1 + 1e-12)
    assert torch.linalg.vector_norm(vector).item() == pytest.approx(1)


def test_default_accuracy_on_the_shapes_of_a_gat():
    for shape in [(64, 1433), (64, 64), (7, 64), (512, 64)]:
        weight = drawn(*shape, dtype=torch.float32)
        assert spectral_norm(weight)[0].item() == pytest.approx(torch.linalg.matrix_norm(weight, 2).item(), rel=0.02)


def test_warm_start_follows_a_moving_weight(device):
    weight = drawn(16, 8).to(device)
    sigma, vector = spectral_norm(weight, iterations=500)
    for step in range(20):
        weight = weight + 1e-3 * drawn(16, 8, seed=step).to(device)
        sigma, vector = spectral_norm(weight, vector, iterations=1)
        assert sigma.item() == pytest.approx(torch.linalg.matrix_norm(weight, 2).item(), rel=1e-5)
    cold, _ = spectral_norm(weight, iterations=1)
    assert cold.item() < 0.999 * sigma.item()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_step_does_not_spoil_the_vector(bad):
    weight = drawn(4, 3)
    _, vector = spectral_norm(weight, iterations=200)
    broken = weight.clone()
    broken[1, 1] = bad
    sigma, vector = spectral_norm(broken, vector)
    assert sigma.isnan()
    assert spectral_norm(weight, vector, iterations=1)[0].item() == pytest.approx(
        torch.linalg.matrix_norm(weight, 2).item()
    )
    vanished, vector = spectral_norm(torch.zeros(4, 3), vector)
    assert vanished == 0
    assert vector.norm().item() == pytest.approx(1)


def test_odd_shapes():
    assert spectral_norm(torch.zeros(0, 3))[0] == 0
    assert spectral_norm(torch.zeros(3, 0))[0] == 0
    kernel = drawn(4, 3, 2, 2)
    assert spectral_norm(kernel, iterations=500)[0].item() == pytest.approx(
        torch.linalg.matrix_norm(kernel.flatten(1), 2).item(), rel=1e-6
    )
    with pytest.raises(InputError, match=r"two axes.*\(3,\)"):
        spectral_norm(torch.ones(3))
    with pytest.raises(InputError, match=r"shape \(3,\).*\(2, 3\).*\(2,\)"):
        spectral_norm(torch.ones(2, 3), torch.ones(2))


def test_the_global_random_state_is_untouched():
    before = torch.get_rng_state()
    spectral_norm(drawn(3, 3))
    assert torch.equal(before, torch.get_rng_state())
