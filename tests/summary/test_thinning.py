import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gatdiag.summary import bin_steps, evenly_spaced, thin, thin_groups

SERIES = arrays(
    np.float64, st.integers(1, 300), elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf])
)


@given(st.integers(1, 2000), st.integers(2, 50))
def test_spaced_has_the_ends_and_at_most_the_limit(count, limit):
    positions = evenly_spaced(count, limit)
    assert positions[0] == 0
    assert positions[-1] == count - 1
    assert len(positions) <= limit
    gaps = np.diff(positions)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


@given(st.integers(1, 2000), st.integers(1, 50))
def test_bins_are_contiguous_and_of_nearly_equal_size(count, limit):
    sizes = np.bincount(bin_steps(np.arange(count) * 3, limit))
    assert len(sizes) == min(count, limit)
    assert sizes.max() - sizes.min() <= 1


@given(st.lists(st.integers(1, 3) | st.integers(50, 5000), min_size=1, max_size=300).map(np.cumsum), st.integers(1, 50))
def test_bins_of_steps_at_any_distance_are_of_equal_width(steps, limit):
    bins = bin_steps(steps, limit)
    assert set(np.diff(bins)) <= {0, 1}
    assert bins[-1] < limit
    if len(steps) > limit:
        width = (2 * steps[-1] - steps[0] - steps[-2]) / limit
        assert all(np.ptp(steps[bins == number]) < width for number in set(bins))


def test_steps_that_become_rarer_are_thinned_by_distance_and_not_by_number():
    steps = np.array([*range(600), *range(600, 10_000, 100)])
    table = thin(pd.Series(steps * 1.0, index=steps))
    assert len(table) == 103  # 10 of the first 600 steps, and all the others but one
    assert table["step"].tolist()[-93:] == steps[-93:].tolist()


@example(np.array([-np.inf, np.inf, -np.inf, -np.inf, -np.inf]), 4)
@example(np.full(9, 1.5e308), 3)
@given(SERIES, st.integers(3, 40))
def test_thin_is_the_median_and_the_range_of_each_bin(values, limit):
    series = pd.Series(values, index=np.arange(len(values)) * 3)
    table = thin(series, limit)
    if len(values) <= limit:
        assert table["step"].tolist() == series.index.tolist()
        assert np.array_equal(table["value"], values, equal_nan=True)
        return
    inner = bin_steps(np.arange(len(values) - 2), limit - 2) + 1
    bins = [0, *inner, inner[-1] + 1]
    assert len(table) == len(set(bins))
    for row, each in zip(table.itertuples(), sorted(set(bins)), strict=True):
        part = [value for value, b in zip(values, bins, strict=True) if b == each]
        if np.isfinite(part).all():
            assert row.low == min(part)
            assert row.high == max(part)
            assert row.value == pytest.approx(np.median(np.array(part) / 4) * 4)
        else:
            assert np.isnan([row.value, row.low, row.high]).all()
    assert table["step"].is_monotonic_increasing
    assert table["step"].iloc[[0, -1]].tolist() == [0, 3 * (len(values) - 1)]


def test_a_spike_stays_in_the_band():
    values = np.ones(5000)
    values[1234] = 1e9
    table = thin(pd.Series(values))
    assert table["high"].max() == 1e9
    assert table["value"].max() == 1


def test_groups_are_thinned_each_for_itself():
    names = pd.CategoricalDtype(["b", "a", "unused"], ordered=True)
    table = pd.DataFrame(
        {"step": [0, 0, 1, 1, 2, 2], "name": pd.Categorical(["a", "b"] * 3, dtype=names), "value": [0.0, 9, 1, 8, 2, 7]}
    )
    thinned = thin_groups(table, "name", 3)
    assert thinned["name"].tolist() == ["b"] * 3 + ["a"] * 3
    assert thinned["value"].tolist() == [9, 8, 7, 0, 1, 2]
    assert thinned["name"].dtype == names
    assert list(thin_groups(table[:0], "name").columns) == list(thinned.columns)
