import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.metrics.norm import frobenius_norm, non_finite_count, norms, norms_of_pieces, spectral_norm
from tests.metrics import oracles
from tests.metrics.oracles import drawn


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 4), (), (0, 3)])
def test_frobenius_norm(shape, dtype, device):
    x = drawn(*shape).to(dtype)
    found = frobenius_norm(x.to(device))
    assert found.dtype == torch.float64
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert found.item() == pytest.approx(oracles.frobenius_norm(x), rel=tolerance)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        *((scale, torch.float32) for scale in (1e-30, 1e-20, 1e-5, 1.0, 1e10, 1e25)),
        *((scale, torch.float64) for scale in (1e-300, 1e-200, 1.0, 1e200, 1e300)),
    ],
)
def test_squares_neither_vanish_nor_overflow(scale, dtype):
    values = (scale, 0.0, torch.nan, torch.inf)
    found = norms([torch.full((3, 4), value, dtype=dtype) for value in values]).tolist()
    assert found[0] == pytest.approx(torch.tensor(scale, dtype=dtype).item() * 12**0.5, rel=1e-6)
    assert found[1:] == pytest.approx([0, torch.nan, torch.inf], nan_ok=True)


def test_norms_of_several_types(device):
    tensors = [drawn(3, 4), drawn(0), drawn(5, dtype=torch.float32), torch.tensor([1.0, torch.nan]), drawn(2, 2, 2)]
    for several in (tensors, [tensor.half() for tensor in tensors], [tensors[2], tensors[0].half()]):
        values = norms([tensor.to(device) for tensor in several])
        expected = torch.tensor([oracles.frobenius_norm(tensor) for tensor in several], dtype=torch.float64)
        torch.testing.assert_close(values.cpu(), expected, equal_nan=True, rtol=1e-12, atol=0)
    assert norms([]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_norms_of_what_lies_side_by_side(dtype, device):
    sizes = [30000, 1, 0, 4, 2]
    flats = [(scale * drawn(sum(sizes))).to(dtype) for scale in (1.0, 1e-30, 1e25)]
    flats[0][-1] = torch.inf
    found = norms_of_pieces([flat.to(device) for flat in flats], sizes)
    expected = [[oracles.frobenius_norm(piece) for piece in flat.split(sizes)] for flat in flats]
    torch.testing.assert_close(found.cpu(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_non_finite_count(dtype, device):
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf], [torch.inf, 0, 65000], [torch.nan, torch.nan, 1]])
    assert non_finite_count(x.to(device, dtype)) == 6
    assert non_finite_count(torch.zeros(0, 3)) == non_finite_count(torch.arange(3)) == 0


def exactly(weight):
    return torch.linalg.svdvals(weight.double())[0].item()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 10**6), scale=st.floats(1e-200, 1e200))
def test_spectral_norm_is_the_largest_singular_value(rows, columns, seed, scale):
    weight = drawn(rows, columns, seed=seed)
    assert spectral_norm(scale * weight).item() == pytest.approx(exactly(weight) * scale, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(64, 1433), (1433, 64), (64, 64), (7, 64), (1, 500), (500, 1), (200, 150), (150, 400), (300, 300)]
)
def test_every_shape_and_precision(shape, dtype, device):
    weight = drawn(*shape).to(device, dtype)
    sigma = spectral_norm(weight)
    assert (sigma.dtype, sigma.shape, sigma.device.type) == (torch.float64, (), device.type)
    assert sigma.item() == pytest.approx(exactly(weight), rel=1e-5)


def of_spectrum(values, rows=300):
    left, right = (torch.linalg.qr(drawn(length, len(values), seed=length))[0] for length in (rows, len(values)))
    return (left * values) @ right.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "values",
    [
        torch.ones(200),
        torch.cat([torch.ones(199), torch.tensor([1.001])]),
        torch.cat([0.9 + 0.1 * torch.linspace(0, 1, 198), torch.tensor([1.0005, 1.0005])]),
        torch.linspace(0, 1, 200),
        1 - torch.linspace(0, 1, 200) ** 4,
        torch.logspace(-12, 0, 200),
        torch.cat([torch.zeros(199), torch.ones(1)]),
        torch.zeros(200),
    ],
    ids=["orthogonal", "one above all", "two alike", "even", "crowded", "decades", "rank one", "zero"],
)
def test_spectra_without_a_gap(values, dtype):
    weight = of_spectrum(values.double()).to(dtype)
    assert spectral_norm(weight).item() == pytest.approx(values.max().item(), rel=1e-5)
    assert spectral_norm(weight[:, :50]).item() == pytest.approx(exactly(weight[:, :50]), rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("scale", [1e-44, 1e-37, 1e-12, 2e-4, 5e3, 1e12, 1e37])
@pytest.mark.parametrize("width", [20, 140])
def test_the_ends_of_float32(scale, width):
    weight = (drawn(width, width).sign() * scale).float()
    wanted = exactly(weight.double() / weight[0, 0].abs().double()) * weight[0, 0].abs().item()
    assert spectral_norm(weight).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("width", [5, 140])
def test_a_complex_weight(width):
    weight = torch.complex(drawn(width, 140), drawn(width, 140, seed=1))
    assert spectral_norm(weight).item() == pytest.approx(torch.linalg.svdvals(weight)[0].item(), rel=1e-5)
    assert spectral_norm(weight.to(torch.complex64)).item() == pytest.approx(torch.linalg.svdvals(weight)[0].item())


@pytest.mark.parametrize(("width", "error"), [(6, 1e-12), (150, 1e-5)])
def test_a_large_matrix_is_squared_in_pieces(width, error, monkeypatch):
    weight = drawn(1000, width)
    monkeypatch.setattr("gatdiag.metrics.norm._CHUNK", 100)
    monkeypatch.setattr("gatdiag.metrics.norm._CACHED", 1000)
    assert spectral_norm(weight).item() == pytest.approx(exactly(weight), rel=error)
    assert spectral_norm(weight.T).item() == pytest.approx(exactly(weight), rel=error)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("width", [3, 140])
def test_what_is_not_finite_has_no_spectral_norm(bad, width):
    weight = drawn(140, width)
    weight[1, 1] = bad
    assert spectral_norm(weight).isnan()


def test_odd_shapes():
    assert spectral_norm(torch.zeros(0, 3)) == 0
    assert spectral_norm(torch.zeros(3, 0)) == 0
    kernel = drawn(4, 3, 2, 2)
    assert spectral_norm(kernel).item() == pytest.approx(exactly(kernel.flatten(1)), rel=1e-12)
    with pytest.raises(InputError, match=r"two or more axes.*\(3,\)"):
        spectral_norm(torch.ones(3))


def test_mixed_precision_around_it_does_not_reach_it(device):
    weight = drawn(200, 200).to(device, torch.float32)
    with torch.autocast(device.type, torch.bfloat16):
        assert spectral_norm(weight).item() == pytest.approx(exactly(weight), rel=1e-5)


def test_it_is_the_same_each_time_and_leaves_the_global_random_state():
    before, weight = torch.get_rng_state(), drawn(150, 150).requires_grad_()
    assert spectral_norm(weight) == spectral_norm(weight.clone())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("size", [1, 4095, 4096, 100_003, 4_000_001])
def test_equal_entries_whose_squares_are_all_rounded_alike_leave_six_digits(size):
    x = torch.full((size,), 0.1)
    assert frobenius_norm(x).item() == pytest.approx(float(x[0]) * size**0.5, rel=1e-6)
