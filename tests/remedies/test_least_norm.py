import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.laws import Law, Laws, Term
from gatdiag.remedies.least_norm import least_norm, solve_banded
from gatdiag.remedies.orbit import Orbit


def law(*terms):
    return Law("law", "neuron", "", None, terms, True, 0.0)


def scalars(**exponents):
    """A law between parameters of one entry each."""
    return law(*(Term(name, (1,), (0,), ((0,),), Fraction(exponent)) for name, exponent in exponents.items()))


def chain(*widths):
    """The laws of a multilayer perceptron without biases, weights "0", "1", ... of shape (out, in)."""
    shapes = [(out, into) for into, out in pairwise(widths)]
    return [
        law(
            Term(str(layer), shapes[layer], (0,), ((i,),), Fraction(1)),
            Term(str(layer + 1), shapes[layer + 1], (1,), ((i,),), Fraction(-1)),
        )
        for layer in range(len(shapes) - 1)
        for i in range(shapes[layer][0])
    ]


def weights(*widths, seed=0, spread=0.0):
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for layer, (into, out) in enumerate(pairwise(widths)):
        size = (spread * torch.randn(out, 1, generator=generator, dtype=torch.float64)).exp()
        drawn[str(layer)] = size * torch.randn(out, into, generator=generator, dtype=torch.float64)
    return drawn


def rescaled(laws, tensors, coordinates):
    factors = Orbit(laws).factors(coordinates)
    return {name: tensor.double() * factors.get(name, 1) for name, tensor in tensors.items()}


def normalized_c(laws, tensors):
    return Laws(laws, tensors).normalized_c()


def swept(tensors, layers, sweeps=3000):
    """Neuron after neuron in closed form, over and over: slow, and plain to see."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    for _ in range(sweeps):
        for layer in range(layers - 1):
            into, out = found[str(layer)], found[str(layer + 1)]
            factor = (out.square().sum(0) / into.square().sum(1)) ** 0.25
            into *= factor[:, None]
            out /= factor
    return found


@pytest.mark.parametrize(("into", "out"), [(8.0, 2.0), (1e-5, 1e5), (1e5, 1e-5), (3.0, 3.0)])
def test_one_neuron_has_a_closed_form(into, out):
    laws = [scalars(a=1, b=-1)]
    point = least_norm(laws, {"a": torch.tensor([into]).double(), "b": torch.tensor([-out]).double()})
    assert float(point.coordinates.exp()) == pytest.approx((out / into) ** 0.5)
    assert not point.left_alone


def test_exponents_and_widths_count():
    laws = [scalars(a=2, b=-1, d="-1/2")]
    tensors = {name: torch.tensor([value]).double() for name, value in (("a", 3.0), ("b", 0.2), ("d", 5.0))}
    found = rescaled(laws, tensors, least_norm(laws, tensors).coordinates)
    a, b, d = (float(found[name]) for name in "abd")
    assert 2 * a**2 == pytest.approx(b**2 + d**2 / 2)


@given(widths=st.lists(st.integers(1, 6), min_size=3, max_size=6), seed=st.integers(0, 2**31), spread=st.floats(0, 4))
@settings(max_examples=60, deadline=None)
def test_c_is_zero_at_the_point_of_least_norm(widths, seed, spread):
    laws, tensors = chain(*widths), weights(*widths, seed=seed, spread=spread)
    point = least_norm(laws, tensors)
    balanced = rescaled(laws, tensors, point.coordinates)
    assert not point.left_alone
    assert float(normalized_c(laws, balanced).abs().max()) < 1e-12
    norm = sum(float(tensor.square().sum()) for tensor in balanced.values())
    generator = torch.Generator().manual_seed(seed)
    for size in (1e-2, 1.0):
        aside = size * torch.randn(len(laws), generator=generator, dtype=torch.float64)
        elsewhere = rescaled(laws, balanced, aside)
        assert sum(float(tensor.square().sum()) for tensor in elsewhere.values()) > norm


@given(seed=st.integers(0, 2**31), spread=st.floats(0, 3))
@settings(max_examples=30, deadline=None)
def test_all_points_of_an_orbit_lead_to_the_same(seed, spread):
    laws, tensors = chain(3, 4, 2, 3), weights(3, 4, 2, 3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    aside = spread * torch.randn(len(laws), generator=generator, dtype=torch.float64)
    elsewhere = rescaled(laws, tensors, aside)
    first, second = (rescaled(laws, w, least_norm(laws, w).coordinates) for w in (tensors, elsewhere))
    for name in tensors:
        torch.testing.assert_close(first[name], second[name], rtol=1e-10, atol=1e-12)


def test_the_point_is_the_one_that_sweeps_come_to():
    widths = (4, 5, 3, 6, 2)
    tensors = weights(*widths, spread=1.0)
    laws = chain(*widths)
    found = rescaled(laws, tensors, least_norm(laws, tensors).coordinates)
    for name, expected in swept(tensors, layers=4).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-12)


def test_a_loop_through_one_matrix_balances():
    """Tied weights: rows and columns of the same matrix; scaling all its neurons alike does not move it."""
    shape = (3, 3)
    loop = [
        law(Term("w", shape, (0,), ((i,),), Fraction(1)), Term("w", shape, (1,), ((i,),), Fraction(-1)))
        for i in range(3)
    ]
    matrix = torch.tensor([[1.0, 20.0, 0.3], [0.1, 2.0, 5.0], [7.0, 0.2, 1.0]])
    point = least_norm(loop, {"w": matrix})
    balanced = rescaled(loop, {"w": matrix}, point.coordinates)["w"].square()
    torch.testing.assert_close(balanced.sum(0), balanced.sum(1))
    torch.testing.assert_close(balanced.diagonal(), matrix.double().square().diagonal())


def test_neurons_that_cannot_be_balanced_are_left_and_the_others_balance_around_them():
    laws, tensors = chain(3, 4, 4, 2), weights(3, 4, 4, 2)
    tensors["0"][0] = 0  # nothing leads into it
    tensors["2"][:, 1] = 0  # nothing leads out of the second neuron of the second layer
    tensors["1"][:, 3] = 0  # and the fourth of the first has nothing on either side
    tensors["0"][3] = 0
    point = least_norm(laws, tensors)
    assert set(point.left_alone) == {0, 3, 5}
    assert "leads into it is zero" in point.left_alone[0]
    assert "both of its sides are zero" in point.left_alone[3]
    assert "leads out of it is zero" in point.left_alone[5]
    assert not point.coordinates[[0, 3, 5]].any()
    balanced = normalized_c(laws, rescaled(laws, tensors, point.coordinates))
    assert float(balanced[[1, 2, 4, 6, 7]].abs().max()) < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_and_spoils_no_other(value):
    laws, tensors = chain(3, 4, 4, 2), weights(3, 4, 4, 2)
    tensors["1"][2, 1] = value
    point = least_norm(laws, tensors)
    assert set(point.left_alone) == {1, 6}
    assert all("not finite" in reason for reason in point.left_alone.values())
    tensors["1"][2, 1] = 0
    balanced = normalized_c(laws, rescaled(laws, tensors, point.coordinates))
    assert float(balanced[[0, 2, 3, 4, 5, 7]].abs().max()) < 1e-12


@pytest.mark.parametrize("v", [1.0, 1e-5])
def test_a_norm_that_falls_on_and_on_is_noticed(v):
    """Each law has two sides, but both together shrink v and nothing grows."""
    laws = [scalars(x=1, y=-1), scalars(x=-1, y=1, v=1), scalars(a=1, b=-1)]
    tensors = {name: torch.ones(1).double() for name in "xya"}
    tensors |= {"b": torch.full((1,), 4.0).double(), "v": torch.full((1,), v).double()}
    point = least_norm(laws, tensors)
    assert set(point.left_alone) == {0, 1}
    assert all("falls on and on" in reason for reason in point.left_alone.values())
    assert float(point.coordinates[2].exp()) == pytest.approx(2.0)


def test_factors_past_a_million_are_not_taken():
    laws = [scalars(a=1, b=-1), scalars(x=1, y=-1)]
    tensors = {"a": 1e-8, "b": 1e8, "x": 1e-5, "y": 1e5}
    point = least_norm(laws, {name: torch.tensor([value]).double() for name, value in tensors.items()})
    assert set(point.left_alone) == {0}
    assert float(point.coordinates[1].exp()) == pytest.approx(1e5)


def test_single_precision_and_foreign_tensors_will_do():
    laws = chain(3, 4, 2)
    tensors = {name: tensor.float() for name, tensor in weights(3, 4, 2).items()} | {"other": torch.ones(7)}
    point = least_norm(laws, tensors)
    assert point.coordinates.dtype == torch.float64
    assert float(normalized_c(laws, rescaled(laws, tensors, point.coordinates)).abs().max()) < 1e-12


def test_without_laws_there_is_nothing_to_do():
    point = least_norm([], {"0": torch.ones(2, 2)})
    assert point.coordinates.shape == (0,)
    assert not point.left_alone


def dense(rows, columns, values, size):
    lower = torch.zeros(size, size, dtype=torch.float64).index_put_((rows, columns), values, accumulate=True)
    return lower + lower.tril(-1).T


@given(
    size=st.integers(1, 40),
    width=st.integers(0, 40),
    spread=st.floats(0, 4),
    seed=st.integers(0, 2**31),
    twice=st.booleans(),
)
@settings(deadline=None)
def test_solutions_are_those_of_the_dense_system(size, width, spread, seed, twice):
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(size, size, generator=generator, dtype=torch.float64).tril().triu(-width)
    plain = factor @ factor.T + torch.eye(size, dtype=torch.float64)
    scale = (spread * torch.randn(size, generator=generator, dtype=torch.float64)).exp()
    matrix = plain * scale * scale[:, None]  # neurons of very different sizes
    rows, columns = matrix.tril().nonzero(as_tuple=True)
    values = matrix[rows, columns]
    if twice:  # entries of one place add up
        rows, columns, values = rows.repeat(2), columns.repeat(2), values.repeat(2) / 2
    torch.testing.assert_close(dense(rows, columns, values, size), matrix)
    right = torch.randn(size, generator=generator, dtype=torch.float64) * scale
    found = solve_banded(rows, columns, values, right)
    expected = torch.linalg.solve(plain, right / scale) / scale
    torch.testing.assert_close(
        found * scale, expected * scale, rtol=1e-7, atol=1e-7 * float((expected * scale).abs().max())
    )


def test_a_narrow_band_of_many_unknowns():
    size, width = 700, 3
    rows = torch.arange(size).repeat_interleave(width + 1)
    columns = rows - torch.arange(width + 1).repeat(size)
    rows, columns = rows[columns >= 0], columns[columns >= 0]
    values = torch.where(rows == columns, 8.0, -1.0).double()
    matrix = dense(rows, columns, values, size)
    right = torch.linspace(-1, 1, size, dtype=torch.float64)
    found = solve_banded(rows, columns, values, right)
    torch.testing.assert_close(matrix @ found, right, rtol=1e-9, atol=1e-9)


def test_what_no_entry_determines_stays():
    rows, columns = torch.tensor([0, 2]), torch.tensor([0, 2])
    found = solve_banded(rows, columns, torch.tensor([2.0, 0.0]).double(), torch.tensor([4.0, 0.0, 0.0]).double())
    assert found.tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_a_singular_system_is_solved_where_it_can_be():
    rows, columns = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    values = torch.tensor([1.0, -1.0, 1.0]).double()  # x0 - x1 = 1, and nothing else is said
    found = solve_banded(rows, columns, values, torch.tensor([1.0, -1.0]).double())
    assert float(found[0] - found[1]) == pytest.approx(1.0, rel=1e-6)
