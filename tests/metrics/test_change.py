"""Against loops over entries; in numpy, and in torch as on an accelerator."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.metrics.change import change_fractions, change_quantiles
from gatdiag.quantities import LEVELS
from tests.metrics import oracles

SPECIAL = [0.0, 1.0, -1.0, 1.5, 2e-4, 5e-5, -3e-5, 1e30, math.inf, -math.inf, math.nan]
ENTRIES = st.sampled_from(SPECIAL) | st.floats(-10, 10, width=32)
PARAMETERS = st.lists(st.tuples(st.booleans(), st.lists(st.tuples(ENTRIES, ENTRIES), max_size=12)), max_size=4)


class Away(torch.Tensor):
    """A tensor that is not on the CPU, so that nothing of it may be taken to numpy."""

    is_cpu = False


def laid_out(parameters, dtype):
    """Initial and trained weights side by side, their sizes, and which entries are of attention vectors."""
    table = torch.tensor([pair for _, pairs in parameters for pair in pairs], dtype=dtype).reshape(-1, 2)
    absolute = [is_absolute for is_absolute, pairs in parameters for _ in pairs]
    sizes = [len(pairs) for _, pairs in parameters]
    return *(column.contiguous() for column in table.T), sizes, torch.tensor(absolute, dtype=torch.bool)


def close(found, expected, rtol=1e-12, atol=0.0):
    wanted = torch.tensor(expected, dtype=torch.float64).reshape(found.shape)
    torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=rtol, atol=atol, equal_nan=True)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(parameters=PARAMETERS, dtype=st.sampled_from([torch.float32, torch.float64]), away=st.booleans())
def test_fractions_against_loops(parameters, dtype, away):
    initial, trained, sizes, absolute = laid_out(parameters, dtype)
    pieces = zip(initial.split(sizes), trained.split(sizes), parameters, strict=True) if sizes else ()
    expected = [oracles.changes(a, b, is_absolute) for a, b, (is_absolute, _) in pieces]
    if away and sizes:
        initial, trained = (tensor.as_subclass(Away) for tensor in (initial, trained))
    if sizes:
        at = absolute.nonzero().flatten()
        close(change_fractions(initial, trained, sizes, at), list(zip(*expected, strict=True)))
        together = change_fractions(initial, torch.stack([trained, initial]), sizes, at)
        close(together[:, 0], change_fractions(initial, trained, sizes, at).tolist())
        close(together[:, 1], change_fractions(initial, initial, sizes, at).tolist())


@settings(max_examples=80, deadline=None, derandomize=True)
@given(pairs=st.lists(st.tuples(ENTRIES, ENTRIES), max_size=30), dtype=st.sampled_from([torch.float32, torch.float64]))
@pytest.mark.parametrize("away", [False, True])
def test_quantiles_against_sorted_loops(pairs, dtype, away):
    initial, trained, _, _ = laid_out([(False, pairs)], dtype)
    expected = oracles.change_quantiles(initial, trained)
    if away:
        initial, trained = (tensor.as_subclass(Away) for tensor in (initial, trained))
    close(change_quantiles(initial, trained, [len(pairs)]), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(parameters=PARAMETERS, dtype=st.sampled_from([torch.float32, torch.float64]))
@pytest.mark.parametrize("away", [False, True])
def test_quantiles_of_each_parameter_at_each_step(parameters, dtype, away):
    initial, trained, sizes, _ = laid_out(parameters, dtype)
    steps = torch.stack([trained, initial])
    pieces = [each.split(sizes, -1) for each in (initial, steps)] if sizes else ((), ())
    expected = [[change_quantiles(a, row, [len(a)])[..., 0] for row in b] for a, b in zip(*pieces, strict=True)]
    if away:
        initial, steps = (tensor.as_subclass(Away) for tensor in (initial, steps))
    found = change_quantiles(initial, steps, sizes)
    assert found.shape == (2, len(LEVELS), 2, len(sizes))
    for at, of_parameter in enumerate(expected):
        close(found[..., at], torch.stack(of_parameter, -1).tolist(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_differences_are_exact(dtype):
    generator = torch.Generator().manual_seed(0)
    initial, trained = torch.randn(2, 100, generator=generator).to(dtype)
    close(change_quantiles(initial, trained, [len(initial)]), oracles.change_quantiles(initial, trained))
    initial, trained = torch.tensor([1.0, 300.0], dtype=dtype), torch.tensor([1.0078125, -300.0], dtype=dtype)
    found = change_quantiles(initial, trained, [2])[:, [0, -1], 0]
    assert found.tolist() == [[0.0078125 / 1.0078125, 2.0], [0.0078125, 600.0]]


def test_single_precision_does_not_round_a_weight_up_to_what_counts():
    initial, trained = torch.tensor([0.0]), torch.tensor([1e-4])  # in single precision 9.9999997e-05
    assert change_quantiles(initial, trained, [1])[0].isnan().all()
    assert change_fractions(initial, trained, [1], torch.tensor([], dtype=torch.long)).isnan().tolist() == [
        [False], [True], [True], [False],
    ]  # fmt: skip


def test_a_sum_that_overflows_is_not_taken_for_an_infinity():
    initial, trained = torch.zeros(4), torch.full((4,), 3e38)
    found = change_fractions(initial, trained, [4], torch.tensor([], dtype=torch.long))
    assert found.tolist() == [[0.0], [1.0], [1.0], [1.0]]


def test_the_weights_stay_as_they_are():
    initial, trained = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 5.0])
    change_quantiles(initial, trained, [2])
    change_fractions(initial, trained, [2], torch.tensor([0]))
    assert initial.tolist() == [3.0, 1.0]
    assert trained.tolist() == [2.0, 5.0]


def test_on_an_accelerator(device):
    initial, trained = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    absolute = torch.arange(20, 50)
    found = change_fractions(initial.to(device), trained.to(device), [20, 30], absolute.to(device))
    close(found.cpu(), change_fractions(initial, trained, [20, 30], absolute).tolist())
    found = change_quantiles(initial.to(device), trained.to(device), [50]).cpu()
    close(found, oracles.change_quantiles(initial, trained), 1e-5)
