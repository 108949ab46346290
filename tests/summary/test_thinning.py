import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gatdiag.summary import bin_steps, envelope, spaced, thin, thin_groups

SERIES = arrays(
    np.float64, st.integers(1, 300), elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf])
)


@given(st.integers(1, 2000), st.integers(2, 50))
def test_spaced_has_the_ends_and_at_most_the_limit(count, limit):
    positions = spaced(count, limit)
    assert positions[0] == 0
    assert positions[-1] == count - 1
    assert len(positions) <= limit
    gaps = np.diff(positions)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


@given(st.integers(1, 2000), st.integers(1, 50))
def test_bins_are_contiguous_and_of_nearly_equal_size(count, limit):
    bins = bin_steps(count, limit)
    sizes = np.bincount(bins)
    assert (np.diff(bins) >= 0).all()
    assert len(sizes) == min(count, limit)
    assert sizes.max() - sizes.min() <= 1


@given(SERIES, st.integers(4, 40))
def test_the_envelope_keeps_ends_extremes_and_breaks(values, limit):
    kept = envelope(values, limit)
    finite = values[np.isfinite(values)]
    assert {0, len(values) - 1} <= set(kept)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(1.5 * limit + 2, limit)
    if len(finite):
        assert finite.min() in values[kept]
        assert finite.max() in values[kept]
    assert np.isfinite(values).all() == np.isfinite(values[kept]).all()


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
    inner = bin_steps(len(values) - 2, limit - 2) + 1
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
