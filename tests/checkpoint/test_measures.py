"""Measures of one parameter, against dense double-precision arithmetic."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatdiag import quantities
from gatdiag.checkpoint.measures import measure, parameter_columns
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.structure import ParameterInfo
from gatdiag.weight_change import FRACTIONS
from tests.metrics import oracles

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


def columns(initial, trained, role="feature weight", **options):
    info = ParameterInfo("w", ("w",), role, tuple(trained.shape), True, "")
    before = None if initial is None else {"w": initial}
    return parameter_columns([info], {"w": trained}, before, **{"quick": False, **options})["w"]


@pytest.mark.parametrize("role", ["feature weight", "attention vector", "bias"])
@pytest.mark.parametrize("shape", [(300, 40), (7,), (1, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_columns_are_those_of_a_recorder(role, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(shape, generator=generator)
    factor = torch.randint(0, 4, shape, generator=generator)
    trained = torch.where(factor == 0, initial, initial * (1 + 0.04 * 4.0**factor))
    trained.view(-1)[0], initial.view(-1)[1] = 1e-6, 0.0
    initial, trained = initial.to(dtype), trained.to(dtype)
    found = columns(initial, trained, role)
    assert [found[name] for name in FRACTIONS] == pytest.approx(
        oracles.changes(initial, trained, role == "attention vector")
    )
    for kind, wanted in zip(("relative", "absolute"), oracles.change_quantiles(initial, trained), strict=True):
        assert [found[change_quantile(kind, level)] for level in LEVELS] == pytest.approx(wanted, rel=1e-5)
    assert found["norm"] == pytest.approx(oracles.frobenius_norm(trained), rel=1e-6)
    assert ("spectral_norm" in found) == (len(shape) > 1 and role != "attention vector")
    assert found.keys() <= {column.name for column in quantities.columns("parameters")}


def test_what_is_asked_for():
    tensor = RANDOM[:40, :30]
    exact = torch.linalg.matrix_norm(tensor.double(), 2).item()
    assert columns(None, tensor)["spectral_norm"] == pytest.approx(exact, rel=1e-9)
    assert columns(None, tensor).keys() == {"norm", "non_finite", "spectral_norm"}
    assert columns(tensor, tensor, quick=True).keys() == {"norm", "non_finite", *FRACTIONS}
    assert columns(tensor, tensor[:3], quick=True).keys() == {"norm", "non_finite"}
    assert parameter_columns([], {}, None, quick=True) == {}


def test_sparse_tensors_are_compared_where_the_same_entries_are_stored():
    places, moved = torch.tensor([[0, 5], [0, 5]]), torch.tensor([[0, 6], [0, 5]])
    before = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0]), (10**8, 10**8))
    same = torch.sparse_coo_tensor(places, torch.tensor([1.0, 4.0]), (10**8, 10**8))
    other = torch.sparse_coo_tensor(moved, torch.tensor([1.0, 4.0]), (10**8, 10**8))
    assert columns(before, same)["unchanged_fraction"] == 0.5
    assert columns(before, other).keys() == columns(before, torch.zeros(2)).keys() == {"norm", "non_finite"}


def test_number_types_may_differ():
    initial = RANDOM[:20, :30]
    trained = initial * 1.5
    assert columns(initial.double(), trained) == pytest.approx(columns(initial, trained), rel=1e-6)
    assert columns(initial, initial.bfloat16())["changed_fraction_005"] == 0
    assert columns(initial, initial.bfloat16())["unchanged_fraction"] < 0.1


@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_unusual_number_types():
    quantized = torch.quantize_per_tensor(RANDOM, 0.05, 3, torch.quint8)
    assert measure(quantized).norm == pytest.approx(quantized.dequantize().double().norm().item(), rel=1e-6)
    assert columns(quantized, quantized)["spectral_norm"] > 0
    assert measure(torch.tensor([3 + 4j])).norm == 5
    assert columns(None, RANDOM.to(torch.float8_e4m3fn))["spectral_norm"] > 0
    huge = torch.sparse_coo_tensor([[0, 9], [0, 9]], torch.tensor([3.0, 4.0]), (10**9, 10**9))
    measured = measure(huge)
    assert (measured.norm, measured.is_matrix, measured.dead_rows) == (5.0, False, 0)
    assert measure(torch.tensor([1, -2, 2])).norm == 3
    assert measure(torch.empty(0, 4)).norm == 0
    assert measure(torch.tensor(-2.0)).norm == 2
