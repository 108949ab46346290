"""Measures of one parameter, against dense double-precision arithmetic."""

import math

import pytest
import torch

from gatdiag import quantities
from gatdiag.checkpoint.measures import count_dead, measure, measure_changes
from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.weight_change import FRACTIONS
from tests.metrics import oracles

RANDOM = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))


def dead_in_double(tensor):
    if not tensor.numel():
        return 0, 0
    dense = tensor.double().reshape(len(tensor), math.prod(tensor.shape[1:]))
    return tuple(int((dense.norm(dim=axis) == 0).sum()) for axis in (1, 0))


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (120_000,), (1, 120_000), (30, 40, 100), (1, 4, 30_000)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_norm_is_that_of_the_whole(shape, dtype):
    tensor = RANDOM.reshape(shape).to(dtype)
    measured = measure(tensor)
    assert measured["norm"] == pytest.approx(tensor.double().norm().item(), rel=1e-6)
    assert (count_dead(tensor), measured["non_finite"]) == (dead_in_double(tensor), 0)


def test_what_is_not_finite_is_counted_and_is_not_dead():
    tensor = torch.zeros(300, 400)
    tensor[2, 3], tensor[2, 4], tensor[7, 3] = torch.nan, torch.inf, -torch.inf
    measured = measure(tensor)
    assert math.isnan(measured["norm"])
    assert (measured["non_finite"], count_dead(tensor)) == (3, (298, 398))
    assert measure(tensor[7])["non_finite"] == 1


@pytest.mark.parametrize("role", ["feature weight", "attention vector", "bias"])
@pytest.mark.parametrize("shape", [(300, 40), (7,), (1, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_changes_are_those_of_a_recorder(role, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(shape, generator=generator)
    factor = torch.randint(0, 4, shape, generator=generator)
    trained = torch.where(factor == 0, initial, initial * (1 + 0.04 * 4.0**factor))
    trained.view(-1)[0], initial.view(-1)[1] = 1e-6, 0.0
    initial, trained = initial.to(dtype), trained.to(dtype)
    found = measure_changes(initial, trained, attention=role == "attention vector")
    assert [found[name] for name in FRACTIONS] == pytest.approx(
        oracles.changes(initial, trained, role == "attention vector")
    )
    for kind, wanted in zip(("relative", "absolute"), oracles.change_quantiles(initial, trained), strict=True):
        assert [found[change_quantile(kind, level)] for level in LEVELS] == pytest.approx(wanted, rel=1e-5)
    assert measure(trained)["norm"] == pytest.approx(oracles.frobenius_norm(trained), rel=1e-6)
    assert found.keys() <= {column.name for column in quantities.columns("parameters")}


def test_what_is_asked_for():
    tensor = RANDOM[:40, :30]
    exact = torch.linalg.matrix_norm(tensor.double(), 2).item()
    assert measure(tensor, matrix=True)["spectral_norm"] == pytest.approx(exact, rel=1e-9)
    assert "spectral_norm" not in measure(tensor)
    assert "spectral_norm" not in measure(tensor[0], matrix=True)
    assert measure_changes(tensor, tensor, attention=False, quick=True).keys() == set(FRACTIONS)
    assert measure_changes(tensor, tensor[:3], attention=False) == measure_changes(None, tensor, attention=False) == {}


def test_number_types_may_differ():
    initial = RANDOM[:20, :30]
    trained = initial * 1.5
    wide, narrow = (measure_changes(w_0, trained, attention=False) for w_0 in (initial.double(), initial))
    assert wide == pytest.approx(narrow, rel=1e-6)
    rounded = measure_changes(initial, initial.bfloat16(), attention=False)
    assert rounded["changed_fraction_005"] == 0
    assert rounded["unchanged_fraction"] < 0.1


VALUES = torch.linspace(-3, 3, 60).view(5, 4, 3)


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES.to(torch.bool),
        (10 * VALUES).int(),
        torch.tensor([2**30 + 1, -3]),
        VALUES.transpose(0, 2),
        torch.tensor(-2.5),
        torch.empty(0, 3),
        torch.empty(3, 0),
    ],
)
def test_tensors_of_every_shape_and_type(tensor):
    measured = measure(tensor, matrix=True)
    assert measured["norm"] == pytest.approx(tensor.double().norm().item(), rel=1e-6)
    if tensor.dim() > 0:
        assert count_dead(tensor) == dead_in_double(tensor)
    else:
        assert count_dead(tensor) == (0, 0)
        assert count_dead(torch.zeros_like(tensor)) == (1, 1)
    if tensor.dim() > 1 and tensor.numel():
        sigma = torch.linalg.matrix_norm(tensor.double().flatten(1), 2).item()
        assert measured["spectral_norm"] == pytest.approx(sigma, rel=1e-6)
    if tensor.numel():
        assert measure_changes(tensor, tensor, attention=False)["unchanged_fraction"] == 1
