import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.metrics.change import (
    absolute_change,
    absolutely_changed_fraction,
    changed_fraction,
    quantiles,
    relative_change,
    unchanged_fraction,
)

FINITE = st.floats(-10, 10, width=32)
PAIRS = st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20)


def tensors(pairs, device="cpu"):
    return [torch.tensor(values, dtype=torch.float32, device=device) for values in zip(*pairs, strict=True)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(pairs=PAIRS, threshold=st.sampled_from([0.05, 0.5]), significant=st.sampled_from([0.0, 1e-4, 1.0]))
def test_fractions_against_loops(device, pairs, threshold, significant):
    initial, trained = tensors(pairs, device)
    counted = [(a, b) for a, b in pairs if abs(b) >= significant]
    changed = [a != b and (b == 0 or abs((b - a) / b) > threshold) for a, b in counted]
    value = changed_fraction(initial, trained, threshold, significant=significant).item()
    assert value == pytest.approx(sum(changed) / len(changed) if changed else float("nan"), nan_ok=True)
    moved = [abs(b - a) > threshold for a, b in pairs]
    assert absolutely_changed_fraction(initial, trained, threshold).item() == pytest.approx(sum(moved) / len(moved))
    assert unchanged_fraction(initial, trained).item() == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))


def test_the_denominator_is_the_trained_value():
    assert relative_change(torch.tensor([1.0]), torch.tensor([4.0])).item() == 0.75
    assert relative_change(torch.tensor([4.0]), torch.tensor([1.0])).item() == 3.0
    assert relative_change(torch.tensor([4.0]), torch.tensor([-1.0])).item() == 5.0


def test_entries_of_the_changes():
    initial = torch.tensor([0.0, 1.0, torch.nan, torch.inf, 1.0, torch.inf])
    trained = torch.tensor([0.0, 0.0, 1.0, 1.0, torch.inf, torch.inf])
    torch.testing.assert_close(
        relative_change(initial, trained),
        torch.tensor([0, torch.inf, torch.nan, torch.inf, torch.nan, torch.nan], dtype=torch.float64),
        equal_nan=True,
    )
    torch.testing.assert_close(
        absolute_change(initial, trained),
        torch.tensor([0, 1, torch.nan, torch.inf, torch.inf, torch.nan], dtype=torch.float64),
        equal_nan=True,
    )


def test_small_trained_weights_are_not_significant():
    initial, trained = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1e-5, 2e-4, 1.0])
    assert changed_fraction(initial, trained, 0.05).item() == 0.5
    assert changed_fraction(initial, trained, 0.05, significant=0).item() == pytest.approx(2 / 3)
    assert changed_fraction(initial, torch.zeros(3), 0.05).isnan()


@pytest.mark.parametrize("where", ["initial", "trained"])
def test_nan_shows_even_where_it_is_not_significant(where):
    pair = {"initial": torch.ones(3), "trained": torch.zeros(3) if where == "initial" else torch.ones(3)}
    pair[where] = pair[where].clone()
    pair[where][1] = torch.nan
    assert changed_fraction(pair["initial"], pair["trained"], 0.05).isnan()
    assert absolutely_changed_fraction(pair["initial"], pair["trained"], 0.05).isnan()
    assert unchanged_fraction(pair["initial"], pair["trained"]).isnan()


def test_of_nothing_is_undefined():
    none = torch.zeros(0)
    assert changed_fraction(none, none, 0.05).isnan()
    assert absolutely_changed_fraction(none, none, 0.05).isnan()
    assert unchanged_fraction(none, none).isnan()
    assert quantiles(none).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_differences_are_exact(dtype):
    initial, trained = torch.tensor([1.0, 300.0], dtype=dtype), torch.tensor([1.0078125, -300.0], dtype=dtype)
    assert absolute_change(initial, trained).tolist() == [0.0078125, 600.0]
    assert relative_change(initial, trained).tolist() == [0.0078125 / 1.0078125, 2.0]
    big = torch.tensor([65504.0], dtype=torch.float16)
    assert absolute_change(-big, big).item() == 131008


@settings(max_examples=60, deadline=None, derandomize=True)
@given(values=st.lists(st.one_of(FINITE, st.sampled_from([np.inf, -np.inf])), min_size=1, max_size=30), data=st.data())
def test_quantiles_against_numpy(device, values, data):
    counted = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    counted[0] = True
    kept = sorted(value for value, yes in zip(values, counted, strict=True) if yes)
    levels = [0.0, 0.1, 0.25, 0.5, 0.9, 1.0]
    found = quantiles(torch.tensor(values, device=device), levels, where=torch.tensor(counted, device=device)).tolist()
    for level, value in zip(levels, found, strict=True):
        position = level * (len(kept) - 1)
        low, high = kept[int(np.floor(position))], kept[int(np.ceil(position))]
        if position == int(position) or low == high:
            assert value == low
        elif np.isfinite([low, high]).all():
            assert value == pytest.approx(np.quantile(kept, level) if np.isfinite(kept).all() else value)
            assert low <= value <= high
        else:
            assert not np.isfinite(value)


def test_quantiles_of_more_values_than_torch_takes():
    values = torch.arange(2**24 + 1, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values, 0.5)
    assert quantiles(values, [0.5]).item() == 2**23


def test_quantiles_with_nan():
    values = torch.tensor([[1.0, torch.nan], [3.0, 2.0]])
    assert quantiles(values).isnan().all()
    assert quantiles(values, where=~values.isnan()).tolist() == pytest.approx(list(np.linspace(1, 3, 11)))
    assert quantiles(values, where=torch.zeros(2, 2, dtype=torch.bool)).isnan().all()
