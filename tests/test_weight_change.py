"""Against loops over entries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.quantities import LEVELS, change_quantile
from gatdiag.weight_change import FRACTIONS, change_fractions, change_quantiles
from tests.metrics import oracles

SPECIAL = [0.0, 1.0, -1.0, 1.5, 2e-4, 5e-5, -3e-5, 1e30, math.inf, -math.inf, math.nan]
ENTRIES = st.sampled_from(SPECIAL) | st.floats(-10, 10, width=32)
PAIRS = st.lists(st.tuples(ENTRIES, ENTRIES), max_size=12)
PARAMETERS = st.lists(st.tuples(st.booleans(), PAIRS), min_size=1, max_size=4)
DTYPES = st.sampled_from([np.float32, np.float64])
NONE = np.zeros(0, dtype=np.int64)


def laid_out(pairs, dtype):
    return (np.ascontiguousarray(side) for side in np.array(pairs, dtype=dtype).reshape(-1, 2).T)


def fractions(initial, trained, sizes, absolute=NONE):
    found = change_fractions(np.asarray(initial), np.asarray(trained), sizes, absolute)
    return np.array([found[column] for column in FRACTIONS])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(parameters=PARAMETERS, dtype=DTYPES)
def test_fractions_against_loops(parameters, dtype):
    expected = []
    for is_absolute, pairs in parameters:
        initial, trained = map(torch.from_numpy, laid_out(pairs, dtype))
        expected.append(oracles.changes(initial, trained, is_absolute))
    absolute = np.flatnonzero([is_absolute for is_absolute, pairs in parameters for _ in pairs])
    sizes = [len(pairs) for _, pairs in parameters]
    found = fractions(*laid_out([pair for _, pairs in parameters for pair in pairs], dtype), sizes, absolute)
    np.testing.assert_allclose(found, np.transpose(expected), rtol=1e-12)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(pairs=st.lists(st.tuples(ENTRIES, ENTRIES), max_size=30), dtype=DTYPES)
def test_quantiles_against_sorted_loops(pairs, dtype):
    initial, trained = laid_out(pairs, dtype)
    wanted = oracles.change_quantiles(torch.from_numpy(initial), torch.from_numpy(trained))
    for kind, values in zip(("relative", "absolute"), wanted, strict=True):
        found = change_quantiles(initial, trained, kind)
        assert [*found] == [change_quantile(kind, level) for level in LEVELS]
        np.testing.assert_allclose([*found.values()], values, rtol=1e-5, atol=1e-6)


def test_large_weights_are_taken_in_pieces(monkeypatch):
    random = np.random.default_rng(0)
    initial = random.normal(size=1000)
    trained = initial + (random.random(1000) < 0.5) * random.normal(size=1000)
    given = initial, trained, [300, 700], np.arange(250, 400)
    whole = fractions(*given)
    monkeypatch.setattr("gatdiag.weight_change._BLOCK", 64)
    assert fractions(*given).tolist() == whole.tolist()


def test_single_precision_does_not_round_a_weight_up_to_what_counts():
    initial, trained = np.float32([0.0]), np.float32([1e-4])  # in single precision 9.9999997e-05
    assert np.isnan([*change_quantiles(initial, trained, "relative").values()]).all()
    assert np.isnan(fractions(initial, trained, [1])).tolist() == [[False], [True], [True], [False]]


def test_a_sum_that_overflows_is_not_taken_for_an_infinity():
    found = fractions(np.zeros(4, np.float32), np.full(4, 3e38, np.float32), [4])
    assert found.tolist() == [[0.0], [1.0], [1.0], [1.0]]


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_the_weights_stay_as_they_are(kind):
    initial, trained = np.array([3.0, 1.0]), np.array([2.0, 5.0])
    change_quantiles(initial, trained, kind)
    change_fractions(initial, trained, [2], np.array([0]))
    assert initial.tolist() == [3.0, 1.0]
    assert trained.tolist() == [2.0, 5.0]
