"""Labels broadcast, move and add up as the exponents they stand for do."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatdiag.laws.label import ZEROS, Label, distinct_slices, merge_terms, shrink

VALUES = torch.arange(40, dtype=torch.float64).square() + 1  # of unknown number k; all sums differ


def of(ids: object, coefficient: int = 1) -> Label:
    return Label(((Fraction(coefficient), torch.as_tensor(ids)),))


def exponents(label: Label, shape: tuple[int, ...]) -> Tensor:
    total = torch.zeros(shape, dtype=torch.float64)
    for coefficient, ids in label.terms:
        total += float(coefficient) * VALUES[ids]
    return total


COLUMN, ROW = of([[1], [2]]), of([[3, 4, 5]])


def test_a_product_adds_and_a_quotient_subtracts() -> None:
    shape = (2, 3)

    assert torch.equal(exponents(COLUMN + ROW, shape), exponents(COLUMN, shape) + exponents(ROW, shape))
    assert torch.equal(exponents(COLUMN - ROW, shape), exponents(COLUMN, shape) - exponents(ROW, shape))
    assert (COLUMN + ROW).shape == shape


def test_labels_broadcast_from_the_right_as_tensors_do() -> None:
    assert torch.equal(
        exponents(of([1, 2, 3]) + of([[4], [5]]), (2, 3)), exponents(of([[1, 2, 3]]) + of([[4], [5]]), (2, 3))
    )
    assert of([1, 2]).with_ndim(3).shape == (1, 1, 2)


@pytest.mark.parametrize("factor", [Fraction(1, 2), -1, 3])
def test_a_power_multiplies(factor: Fraction) -> None:
    assert torch.equal(exponents(ROW * factor, (1, 3)), float(factor) * exponents(ROW, (1, 3)))


def test_the_power_zero_has_no_scale() -> None:
    assert (ROW * 0).terms == ()


def test_arranging_moves_the_exponents_with_the_entries() -> None:
    moved = (COLUMN - ROW).rearrange(torch.Size((2, 3)), torch.t)

    assert torch.equal(exponents(moved, (3, 2)), exponents(COLUMN - ROW, (2, 3)).t())
    assert sorted(ids.numel() for _, ids in moved.terms) == [2, 3]


def test_along_which_axes_it_changes() -> None:
    assert COLUMN.changes_along([0])
    assert not COLUMN.changes_along([1])
    assert (COLUMN + ROW).changes_along([1])
    assert not Label().changes_along([])


def test_a_product_is_zero_where_either_factor_is() -> None:
    first = Label((), torch.tensor([True, False, False]))
    second = Label((), torch.tensor([True, True, False]))

    assert (first + second).zeros.tolist() == [True, True, False]
    assert (first + of([1, 2, 3])).zeros.tolist() == [True, False, False]
    assert (of([1, 2, 3]) + first).zeros.tolist() == [True, False, False]
    assert (first * 2).zeros is first.zeros
    assert first.drop_zero_mask().zeros is None


def test_what_is_zero() -> None:
    assert ZEROS.is_all_zeros
    assert not Label().is_all_zeros
    assert not Label((), torch.tensor([True, False])).is_all_zeros


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
