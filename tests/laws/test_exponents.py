"""Unknowns that are bound on the spot solve the same equations as a dense matrix would."""

from fractions import Fraction

import torch
from torch import Tensor

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label
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


def test_summands_with_zeros_fill_each_other_up() -> None:
    exponents = Exponents()
    left, right = exponents.new_unknowns((3,)), exponents.new_unknowns((3,))
    total = exponents.require_equal(
        Label(((ONE, left),), torch.tensor([True, False, False])),
        Label(((ONE, right),), torch.tensor([False, True, False])),
    )

    assert freedom(exponents, label(left), label(right)) == 5  # only the last entries are added to each other
    assert freedom(exponents, total - label(torch.stack([right[0], left[1], left[2]]))) == 0


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


def test_a_sum_over_a_grid_needs_one_row_and_one_column_of_equations() -> None:
    exponents = Exponents()
    a, b, c = (exponents.new_unknowns(shape) for shape in ((40, 1), (40, 1), (1, 30)))
    exponents.require_zero(label(a, b) - label(c))
    single = Exponents()
    single.new_unknowns((110,))
    for i in range(40):
        for j in range(30):
            single.require_zero(label(a[i], b[i]) - label(c[:, j]))

    assert sum(len(equations.ids) for equations in exponents.equations) == 40 + 30 - 1
    assert freedom(exponents, label(a), label(b), label(c)) == 110 - 69
    assert freedom(single, label(a), label(b), label(c)) == 110 - 69


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
