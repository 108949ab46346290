"""What is computed quickly, against the slow definitions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.metrics import smoothing
from gatdiag.metrics.smoothing import as_rows
from tests.metrics import oracles
from tests.metrics.oracles import drawn


def slow_mu(x):
    """From all pairs: mu^2 = 1/(2N) sum_uv ||x_u - x_v||^2."""
    rows = x.tolist()
    return math.sqrt(sum((a - b) ** 2 for u in rows for v in rows for a, b in zip(u, v, strict=True)) / 2 / len(rows))


def measure(x):
    return tuple(smoothing.output_statistics(x))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(num_nodes=st.integers(1, 8), channels=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_mu_against_all_pairs(device, num_nodes, channels, seed):
    x = drawn(num_nodes, channels, seed=seed)
    length = math.sqrt(sum(value**2 for value in x.flatten().tolist()))
    _, mu, relative, *_ = smoothing.output_statistics(x.to(device))
    assert float(mu) == pytest.approx(slow_mu(x), rel=1e-12, abs=1e-14)
    assert float(relative) == pytest.approx(slow_mu(x) / length, rel=1e-12, abs=1e-14)


def test_nearly_equal_rows_keep_their_digits():
    x = 1e6 + torch.tensor([[0.0], [1e-3], [2e-3]], dtype=torch.float64)
    assert measure(x)[1] == pytest.approx(math.sqrt(2) * 1e-3, rel=1e-6)
    assert measure(torch.full((3, 2), 0.1, dtype=torch.float64))[1] == 0


def test_the_largest_and_smallest_of_float16():
    x = torch.tensor([[65504.0], [-65504.0], [6e-8]], dtype=torch.float16)
    assert measure(x)[1] == pytest.approx(math.sqrt(2) * 65504, rel=1e-9)
    assert measure(x[2:].expand(3, 1) * torch.tensor([[1], [2], [3]], dtype=torch.float16))[1] > 0


X = drawn(300, 16)
SAMPLES = {
    "plain": X,
    "relu": X.relu(),
    "far from zero": 0.01 * X + 5,
    "nearly alike": 1e-4 * X + torch.linspace(-1, 1, 16).double(),
    "alike": torch.linspace(-1, 1, 16).double().expand(300, 16).clone(),
    "small": 1e-20 * X,
    "tiny": 1e-37 * X,
    "large": 1e25 * X,
    "large, far from zero": 1e25 * (0.01 * X + 5),
    "zero": 0 * X,
    "dead columns": X * (torch.arange(16) > 4),
    "dead columns, tiny": 1e-30 * X * (torch.arange(16) > 4),
    "columns that cancel": torch.cat([X, -X]) * (torch.arange(600).unsqueeze(1) != 0),
    "one row": X[:1],
    "one entry": X[:1, :1],
    "one column": X[:, :1],
    "transposed": X.T,
    "by columns": X.T.contiguous().T,
    "by columns, far from zero": (0.01 * X.T + 5).contiguous().T,
    "by columns, few": X[:, :3].T.contiguous().T,
    "dead columns, by columns": (X.T * (torch.arange(16) > 4).unsqueeze(1)).contiguous().T,
    "strided": X[::2, ::3],
    "one group of rows is alike": torch.cat([X[:20] + 3, torch.full((600, 16), 3.0).double()]),
    "dead columns, far from zero": (1e-3 * X + 5) * (torch.arange(16) > 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", SAMPLES)
def test_the_five_numbers_are_those_of_the_metrics(kind, dtype):
    x = SAMPLES[kind].to(dtype)
    before = x.clone()
    found = measure(x)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert list(found) == pytest.approx(oracles.five_numbers(x), rel=tolerance, abs=1e-45, nan_ok=True)
    assert torch.equal(x, before)


@pytest.mark.parametrize("ratio", [1, 0.5, 0.3, 0.1, 0.02, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize(
    "shape", [(3, 2), (255, 4), (513, 3), (2708, 64), (2708, 16), (100_003, 2), (1_000_000, 1), (3, 300_000)]
)
@pytest.mark.parametrize("kind", ["normal", "positive", "signs"])
def test_mu_far_below_the_norm_has_six_digits(kind, shape, ratio):
    generator = torch.Generator().manual_seed(shape[0])
    x, offset = torch.randn(shape, generator=generator), torch.randn(shape[1], generator=generator)
    x = offset + ratio * {"normal": x, "positive": x.relu(), "signs": 0.7 * x.sign()}[kind]
    norm, mu, relative, *_ = measure(x)
    wanted = oracles.five_numbers(x)
    assert norm == pytest.approx(wanted[0], rel=5e-6)
    assert mu == pytest.approx(wanted[1], rel=1e-6)
    assert relative == pytest.approx(wanted[2], rel=5e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("kind", ["plain", "far from zero", "alike", "dead columns"])
def test_float64_neither_overflows_nor_vanishes(kind, scale):
    x = SAMPLES[kind]
    norm, mu, *rest = measure(x)
    assert list(measure(scale * x)) == pytest.approx([scale * norm, scale * mu, *rest], rel=1e-12)
    assert list(measure(scale * x)) == pytest.approx(oracles.five_numbers(scale * x), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float64(dtype):
    x = SAMPLES["plain"].to(dtype)
    assert list(measure(x)) == pytest.approx(oracles.five_numbers(x), rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_is_counted_and_never_dropped(value, dtype):
    x = SAMPLES["dead columns"].to(dtype, copy=True)
    x[3, 7] = x[5, 9] = value
    found, wanted = list(measure(x)), oracles.five_numbers(x)
    assert found[4] == wanted[4] == 2
    assert found[:4] == pytest.approx(wanted[:4], nan_ok=True)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_at_all(shape):
    found = measure(torch.zeros(shape))
    assert found[:2] == (0, 0)
    assert math.isnan(found[2])
    assert found[4] == 0


def test_large_matrices_are_taken_in_pieces(monkeypatch):
    x = SAMPLES["far from zero"]
    whole = measure(x)
    monkeypatch.setattr("gatdiag.metrics.smoothing._CHUNK", 100)
    assert measure(x) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_many_matrices_together(device, dtype):
    broken = torch.where(X > 2, torch.inf, X)
    stacked = torch.stack([X, 0 * X, 0.01 * X + 5, broken, SAMPLES["alike"]]).to(device, dtype)
    found = smoothing.output_statistics(stacked)
    expected = zip(*map(oracles.five_numbers, stacked.cpu()), strict=True)
    for values, wanted in zip(found, expected, strict=True):
        assert values.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-45, nan_ok=True)


def test_rows():
    assert as_rows(torch.zeros(2, 3, 4)).shape == (6, 4)
    assert as_rows(torch.zeros(5)).shape == (5, 1)
    assert as_rows(torch.zeros(())).shape == (1, 1)


@pytest.mark.parametrize("channels", [0, 1, 2, 3, -1, -2, -3, -4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_of_channels_at_any_axis(channels, layout):
    x = drawn(2, 3, 4, 5).contiguous(memory_format=layout)
    rows = as_rows(x, channels)
    others = [axis for axis in range(4) if axis != channels % 4]
    for place, index in enumerate(itertools.product(*(range(x.shape[axis]) for axis in others))):
        at = [slice(None)] * 4
        for axis, number in zip(others, index, strict=True):
            at[axis] = number
        assert rows[place].tolist() == x[tuple(at)].tolist()
    assert len(rows) == place + 1
