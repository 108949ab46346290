"""Unknowns that are bound on the spot solve the same equations as a dense matrix would."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from gatdiag.laws.exponents import Exponents, distinct_rows
from gatdiag.laws.label import ZERO_EXPONENT, ZEROS, Label
from gatdiag.laws.solver import solve

ONE = Fraction(1)


def label(*ids: Tensor) -> Label:
    return Label(tuple((ONE, array) for array in ids))


def freedom(exponents: Exponents, *labels: Label) -> int:
    """Dimension of what the labels can still be."""
    resolved = [exponents.resolve(part) for part in labels]
    basis = solve(exponents, [ids for part in resolved for _, ids in part.terms])
    if not basis.free:
        return 0
    columns = []
    for part in resolved:
        total = torch.zeros(*part.shape, len(basis.free))
        for coefficient, ids in part.terms:
            values = [
                [float(basis.values.get(u, {}).get(v, 0)) for v in range(len(basis.free))]
                for u in ids.flatten().tolist()
            ]
            total = total + float(coefficient) * torch.tensor(values).reshape(*ids.shape, len(basis.free))
        columns.append(total.reshape(-1, len(basis.free)))
    return int(torch.linalg.matrix_rank(torch.cat(columns)))


def test_fresh_unknowns_are_new_and_remember_where_they_came_from() -> None:
    exponents = Exponents()
    first, second = exponents.new_unknowns((2, 3), "w", is_entry=True), exponents.new_unknowns((2000,))

    assert ZERO_EXPONENT not in first
    assert len({*first.flatten().tolist(), *second.tolist()}) == 2006
    assert (exponents.block_of(int(first[1, 2])).parameter, exponents.block_of(int(first[1, 2])).is_entry) == (
        "w",
        True,
    )
    assert exponents.block_of(int(second[-1])).parameter is None
    assert freedom(exponents, label(first), label(second[:5])) == 11


def test_what_vanishes_is_zero() -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((4,))
    exponents.require_zero(label(ids[:3]))

    assert exponents.resolve(label(ids[:3])).terms == ()
    assert freedom(exponents, label(ids)) == 1


def test_zeros_need_not_vanish() -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((3,))
    exponents.require_zero(Label(((ONE, ids),), torch.tensor([True, False, True])))

    assert freedom(exponents, label(ids)) == 2


def test_a_sum_demands_equal_exponents() -> None:
    exponents = Exponents()
    left, right = exponents.new_unknowns((2, 3)), exponents.new_unknowns((3,))
    exponents.require_equal(label(left), label(right))

    assert freedom(exponents, label(left), label(right)) == 3
    assert freedom(exponents, label(left) - label(right)) == 0


def test_a_summand_of_zeros_demands_nothing() -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((2, 3))

    assert exponents.require_equal(ZEROS, label(ids)).terms[0][1] is ids
    assert exponents.require_equal(label(ids), ZEROS).terms[0][1] is ids
    assert freedom(exponents, label(ids)) == 6


def test_summands_with_zeros_fill_each_other_up() -> None:
    exponents = Exponents()
    left, right = exponents.new_unknowns((3,)), exponents.new_unknowns((3,))
    total = exponents.require_equal(
        Label(((ONE, left),), torch.tensor([True, False, False])),
        Label(((ONE, right),), torch.tensor([False, True, False])),
    )

    assert freedom(exponents, label(left), label(right)) == 5  # only the last entries are added to each other
    assert freedom(exponents, total - label(torch.stack([right[0], left[1], left[2]]))) == 0


@pytest.mark.parametrize("axes", [[0], [1], [0, 1]])
def test_a_reduction_demands_one_exponent_along_its_axes(axes: list[int]) -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((2, 3), "w", is_entry=True)
    result = exponents.require_uniform(label(ids), axes)

    left = 6 // (2 if 0 in axes else 1) // (3 if 1 in axes else 1)
    assert freedom(exponents, label(ids)) == left
    assert all(result.shape[axis] == 1 for axis in axes)
    assert freedom(exponents, label(ids) - result) == 0


@pytest.mark.parametrize("axes", [[0], [2], [1, 2]])
def test_a_reduction_of_zeros_is_zero_and_of_length_one(axes: list[int]) -> None:
    result = Exponents().require_uniform(Label((), torch.ones(1, 4, 3, dtype=torch.bool)), axes)

    assert result.is_all_zeros
    assert all(result.shape[axis] == 1 for axis in axes)


def test_a_product_under_a_reduction_binds_the_weight_to_row_minus_column() -> None:
    exponents = Exponents()
    features, weight = exponents.new_unknowns((1, 3)), exponents.new_unknowns((4, 3), "w", is_entry=True)
    exponents.require_uniform(label(features) + label(weight), [1])

    terms = exponents.resolve(label(weight)).terms
    assert sorted((coefficient, tuple(ids.shape)) for coefficient, ids in terms) == [(-1, (1, 3)), (1, (4, 1))]
    assert freedom(exponents, label(weight), label(features)) == 7
    assert not exponents.equations


def test_collapsing_gives_one_array_that_equals_the_label() -> None:
    exponents = Exponents()
    a, b = exponents.new_unknowns((2, 1)), exponents.new_unknowns((1, 3))
    for whole in (
        label(a, b),
        label(a) - label(b),
        label(a) * 2 - label(b) * 3,
        label(a) * Fraction(1, 2),
        Label(),
    ):
        single = label(exponents.collapse(whole))
        assert freedom(exponents, single - whole) == 0 or not (single - whole).terms
    assert freedom(exponents, label(a), label(b)) == 5


def test_a_table_is_bound_to_column_minus_row() -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((4, 3), "table", is_entry=True)
    result = exponents.bind_table(label(ids))

    assert freedom(exponents, result) == 4 + 3 - 1
    assert freedom(exponents, result - label(ids)) == 0


def test_an_approximation_is_noted_and_not_solved() -> None:
    exponents = Exponents()
    ids = exponents.new_unknowns((2,))
    exponents.require_zero_up_to_epsilon(label(ids))

    assert len(exponents.approximations) == 1
    basis = solve(exponents, [ids])
    assert basis.exact == (False, False)


def test_who_held_an_unknown_at_zero() -> None:
    exponents = Exponents()
    ids, other = exponents.new_unknowns((2,)), exponents.new_unknowns((1,))
    exponents.require_equal(label(ids[:1]), label(other))
    exponents.cause = "elu in act"
    exponents.require_zero(label(ids))
    forced = exponents.zero_causes()

    assert exponents.cause_of(int(ids[1]), forced) == "elu in act"
    assert exponents.cause_of(int(ids[0]), forced) == "elu in act"
    assert exponents.cause_of(int(exponents.new_unknowns((1,))), forced) is None


@pytest.mark.parametrize("coefficients", [(1, -1), (1, 1), (2, -1), (Fraction(1, 2), -1)])
@pytest.mark.parametrize("count", [12, 1200])
def test_as_many_unknowns_as_kinds_of_rows_however_many_rows(coefficients: tuple[Fraction, ...], count: int) -> None:
    exponents = Exponents()
    rows, columns = exponents.new_unknowns((3, 1)), exponents.new_unknowns((1, 4))
    before = exponents.block_of(10**9).start + 4
    whole = Label(tuple(zip(map(Fraction, coefficients), (rows[torch.arange(count) % 3], columns), strict=True)))
    single = exponents.collapse(whole)

    assert single.shape == (count, 4)
    assert single.unique().numel() == 12
    assert exponents.new_unknowns((1,)).item() <= before + 3 * 12
    assert freedom(exponents, label(single)) == freedom(exponents, whole) == 6
    assert freedom(exponents, label(single), whole) == 6


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (50, 1), (200, 3)])
def test_distinct_rows_are_those_of_unique(shape: tuple[int, int]) -> None:
    table = torch.randint(4, shape, generator=torch.Generator().manual_seed(0)) * 10**12

    assert torch.equal(distinct_rows(table), table.unique(dim=0))


@pytest.mark.parametrize("count", [12, 12000])
def test_one_exponent_along_an_axis_however_many_rows_there_are_of_a_kind(count: int) -> None:
    exponents = Exponents()
    rows, columns = exponents.new_unknowns((3, 1)), exponents.new_unknowns((1, 4))
    weight = exponents.new_unknowns((2, 4), "w", is_entry=True)
    kinds = torch.arange(count) % 3
    entering = (label(rows[kinds]) + label(columns)).map(lambda array: array.unsqueeze(1))
    first = exponents.require_uniform(entering + label(weight), [2])
    second = exponents.require_uniform(label(rows[kinds][:, :1].reshape(1, -1)), [1])

    assert torch.broadcast_shapes(first.shape, (count, 2, 1)) == (count, 2, 1)
    assert second.shape == (1, 1)
    assert freedom(exponents, label(weight), label(rows), label(columns)) == 1 + 4 + 2
