import pytest
import torch

from gatdiag.remedies import standardize

X = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 1.0, -3.0, 100.0])


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
def test_columns_have_mean_zero_and_variance_one_at_any_scale(scale):
    scaled = standardize(scale * X)
    assert scaled.mean(0) == pytest.approx(torch.zeros(4), abs=1e-4)
    assert scaled.std(0) == pytest.approx(torch.ones(4), rel=1e-4)
    assert scaled.allclose(standardize(X), atol=1e-3)


def test_columns_may_differ_in_scale():
    assert standardize(X * torch.tensor([1e-10, 1.0, 1e10, 1e20])).allclose(standardize(X), atol=1e-3)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e-12, 1.7e9])
def test_a_constant_column_is_zero_up_to_rounding(value):
    x = torch.cat([X, torch.full((500, 1), value)], 1)
    assert float(standardize(x)[:, -1].abs().max()) < 0.5
