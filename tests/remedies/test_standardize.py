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


@pytest.mark.parametrize("value", [0.0, 0.1, -7e-12, 1.7e9, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_constant_column_is_zero(value, dtype):
    x = torch.cat([X, torch.full((500, 1), value)], 1).to(dtype)
    assert not standardize(x)[:, -1].any()
    assert torch.equal(standardize(x)[:, :-1], standardize(X.to(dtype)))


def test_entries_may_be_so_large_that_their_sum_overflows():
    large = 1e38 * X[:, :1].sign() + 2e38
    assert standardize(large).allclose(standardize(X[:, :1].sign()), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_single_row_deviates_from_nothing(dtype):
    x = torch.tensor([[3.0, 0.0, -1e-12, 1e9]], dtype=dtype, requires_grad=True)
    scaled = standardize(x)
    assert scaled.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    scaled.backward(torch.ones_like(scaled))
    assert x.grad.tolist() == [[0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_columns_of_few_digits_are_standardized(dtype):
    x = X.to(dtype)[:, :3]
    assert standardize(x).dtype == dtype
    assert standardize(x).double().std(0) == pytest.approx(torch.ones(3).double(), rel=0.02)


def test_a_small_deviation_that_float64_resolves_counts():
    times = 1.7e9 + 1000 * X[:, :1].double()
    assert standardize(times).allclose(standardize(X[:, :1].double()), atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_gradients_are_those_of_differences(rows):
    x = X[:rows].double().requires_grad_()
    assert torch.autograd.gradcheck(standardize, x)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e-12, 1.7e9])
def test_a_constant_column_has_the_gradient_of_a_shifted_one(value):
    """Each entry minus the mean, over the size of the column; the other columns have their gradient."""
    x = torch.cat([X[:4].double(), torch.full((4, 1), value, dtype=torch.float64)], 1).requires_grad_()
    upstream = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    standardize(x).backward(upstream)
    shifted = upstream[:, -1] - upstream[:, -1].sum() / 4
    torch.testing.assert_close(x.grad[:, -1], shifted / (abs(value) or 1))
    others = X[:4].double().requires_grad_()
    standardize(others).backward(upstream[:, :-1])
    torch.testing.assert_close(x.grad[:, :-1], others.grad)
