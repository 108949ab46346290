"""Measures of one parameter, against dense double-precision arithmetic."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatdiag import metrics
from gatdiag.checkpoint.measures import measure

RANDOM = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (120_000,), (1, 120_000), (30, 40, 100), (1, 4, 30_000)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_are_those_of_the_whole(shape, dtype):
    tensor = RANDOM.reshape(shape).to(dtype)
    dense = tensor.double().reshape(len(tensor), -1)
    measured = measure(tensor)
    assert measured.norm == pytest.approx(dense.norm().item(), rel=1e-6)
    torch.testing.assert_close(measured.row_norms, dense.norm(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(measured.column_norms, dense.norm(dim=0), rtol=1e-6, atol=0)
    assert (measured.non_finite, measured.dead_rows, measured.dead_columns) == (0, 0, 0)
    assert measured.is_matrix == (len(shape) > 1)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-20, 1e18, 1e30])
def test_squares_neither_overflow_nor_vanish(scale):
    tensor = RANDOM[:20] * scale
    tensor[3] = 0
    tensor[:, 5] = 0
    measured = measure(tensor)
    torch.testing.assert_close(measured.row_norms, tensor.double().norm(dim=1), rtol=1e-6, atol=0)
    assert (measured.dead_rows, measured.dead_columns, measured.non_finite) == (1, 1, 0)


def test_a_tiny_column_among_large_ones_is_not_dead():
    tensor = RANDOM.clone()
    tensor[:, 7] = 1e-30
    assert measure(tensor).dead_columns == 0
    tensor[:, 7] = 0
    assert measure(tensor).dead_columns == 1


def test_what_is_not_finite_is_counted_and_stays_in_its_rows():
    tensor = RANDOM.clone()
    tensor[2, 3], tensor[2, 4], tensor[7, 3] = torch.nan, torch.inf, -torch.inf
    measured = measure(tensor)
    assert measured.non_finite == 3
    assert math.isnan(measured.norm)
    assert measured.row_norms.isfinite().sum() == 298
    assert measured.column_norms.isfinite().sum() == 398


@given(st.permutations(range(6)), st.floats(-4, 4))
def test_rows_move_with_the_rows_and_scale_with_the_weights(order, factor):
    tensor = RANDOM[:6, :5].double()
    torch.testing.assert_close(
        measure(factor * tensor[list(order)]).row_norms, abs(factor) * measure(tensor).row_norms[list(order)]
    )


def test_the_spectral_norm_is_measured_if_asked_for():
    tensor = RANDOM[:40, :30]
    exact = torch.linalg.matrix_norm(tensor.double(), 2).item()
    measured = measure(tensor, spectral=True)
    assert measured.spectral_norm == pytest.approx(exact, rel=1e-9)
    assert measured.spectral_norm == metrics.spectral_norm(tensor).item()
    assert math.isnan(measure(tensor).spectral_norm)
    assert math.isnan(measure(tensor[0], spectral=True).spectral_norm)


@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_unusual_number_types():
    quantized = torch.quantize_per_tensor(RANDOM, 0.05, 3, torch.quint8)
    assert measure(quantized).norm == pytest.approx(quantized.dequantize().double().norm().item(), rel=1e-6)
    assert measure(quantized, spectral=True).spectral_norm > 0
    assert measure(torch.tensor([3 + 4j])).norm == 5
    assert measure(RANDOM.to(torch.float8_e4m3fn), spectral=True).spectral_norm > 0
    huge = torch.sparse_coo_tensor([[0, 9], [0, 9]], torch.tensor([3.0, 4.0]), (10**9, 10**9))
    measured = measure(huge, spectral=True)
    assert (measured.norm, measured.is_matrix, measured.dead_rows) == (5.0, False, 0)
    assert measure(torch.tensor([1, -2, 2])).norm == 3
    assert measure(torch.empty(0, 4)).norm == 0
    assert measure(torch.tensor(-2.0)).norm == 2
