import math

import pytest
import torch

from gatdiag.metrics.gradient import elementwise_relative_gradient_norm, relative_gradient_norm, update_ratio

G = torch.tensor([[0.3, -0.1], [0.0, 2.0], [-1.5, 0.7]], dtype=torch.float64)
W = torch.tensor([[1.0, 2.0], [-3.0, 0.5], [0.1, -4.0]], dtype=torch.float64)
PAIRS = list(zip(G.flatten().tolist(), W.flatten().tolist(), strict=True))


def test_against_loops(device):
    g, w = G.to(device), W.to(device)
    relative = math.sqrt(sum(a * a for a, _ in PAIRS)) / math.sqrt(sum(b * b for _, b in PAIRS))
    assert relative_gradient_norm(g, w).item() == pytest.approx(relative, rel=1e-14)
    elementwise = math.sqrt(sum((a / b) ** 2 for a, b in PAIRS))
    assert elementwise_relative_gradient_norm(g, w).item() == pytest.approx(elementwise, rel=1e-14)
    assert update_ratio(w, w - 0.1 * g).item() == pytest.approx(0.1 * relative, rel=1e-14)


def test_zero_weights_follow_the_documentation():
    zero, one = torch.zeros(3), torch.ones(3)
    assert relative_gradient_norm(one, zero) == torch.inf
    assert relative_gradient_norm(zero, zero).isnan()
    assert relative_gradient_norm(zero, one) == 0
    assert elementwise_relative_gradient_norm(one, torch.tensor([1.0, 0.0, 1.0])) == torch.inf
    assert elementwise_relative_gradient_norm(zero, torch.tensor([1.0, 0.0, 1.0])).isnan()
    assert update_ratio(zero, one) == torch.inf
    assert update_ratio(one, one) == 0
    assert relative_gradient_norm(torch.zeros(0), torch.zeros(0)).isnan()


@pytest.mark.parametrize("function", [relative_gradient_norm, elementwise_relative_gradient_norm, update_ratio])
def test_what_is_not_finite_shows(function):
    good, bad = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    assert function(bad, good).isnan()
    assert function(good, bad).isnan()
    infinite = torch.tensor([1.0, torch.inf, 1.0])
    assert not function(infinite, good).isfinite()
    assert function(infinite, infinite).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float64(dtype):
    g, w = (1000 * G).to(dtype), (1000 * W).to(dtype)
    for function in (relative_gradient_norm, elementwise_relative_gradient_norm, update_ratio):
        assert function(g, w).dtype == torch.float64
        assert function(g, w).item() == pytest.approx(function(g.double(), w.double()).item(), rel=1e-15)


def test_vanishing_gradients_do_not_read_zero():
    assert relative_gradient_norm(torch.full((4,), 1e-35), torch.ones(4)).item() == pytest.approx(1e-35)
