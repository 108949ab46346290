"""Labels stay small: no axis that does not change, no equal terms, one slice of a kind."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.laws.label import distinct_slices, merge_terms, shrink


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_shrinking_keeps_every_entry_and_no_axis_that_does_not_change(shape: list[int], random: object) -> None:
    array = torch.tensor([random.randint(0, 1) for _ in range(torch.Size(shape).numel())]).reshape(shape)  # type: ignore[attr-defined]
    small = shrink(array)

    assert torch.equal(small.expand(shape), array)
    for axis in range(array.ndim):
        constant = all(torch.equal(array.select(axis, k), array.select(axis, 0)) for k in range(array.shape[axis]))
        assert (small.shape[axis] == 1) == constant


def test_equal_arrays_are_added_up_and_zeros_dropped() -> None:
    a, zero = torch.tensor([1, 2]), torch.tensor([0, 0])
    one = Fraction(1)

    ((coefficient, ids),) = merge_terms([(one, a), (2 * one, zero), (3 * one, a.clone())])
    assert (coefficient, ids.tolist()) == (4, [1, 2])
    assert merge_terms([(one, a), (-one, a)]) == ()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_that_are_equal_in_every_array_are_one_kind(axis: int) -> None:
    generator = torch.Generator().manual_seed(axis)
    kinds = torch.randint(3, (40,), generator=generator)
    tables = [torch.randint(5, (2, 3, 4), generator=generator), torch.randint(5, (1, 1, 1), generator=generator)]
    arrays = [tables[0].movedim(axis, 0)[:1].movedim(0, axis), tables[0].index_select(axis, kinds % 2), tables[1]]
    arrays.append((kinds == 2).movedim(0, 0).reshape([-1 if at == axis else 1 for at in range(3)]))

    found = distinct_slices(arrays, axis)

    assert found is not None
    first, kind = found
    assert len(first) == len(set(zip((kinds % 2).tolist(), (kinds == 2).tolist(), strict=True)))
    assert (first[kind] <= torch.arange(40)).all()
    for array in arrays[1:2] + arrays[3:]:
        assert torch.equal(array.index_select(axis, first[kind]), array)


def test_slices_that_all_differ_are_left_alone() -> None:
    assert distinct_slices([torch.arange(6).reshape(3, 2), torch.tensor([[7, 7]])], 0) is None
