import itertools
from fractions import Fraction

import pytest
import torch

from gatdiag.laws import Law, Term
from gatdiag.remedies.orbit import Orbit, multiply_


def law(*terms):
    return Law("law", "neuron", "", None, terms, True, 0.0)


def term(parameter, shape, axes, *indices, exponent=1):
    return Term(parameter, shape, axes, indices, Fraction(exponent))


# Rows, columns, entries, slices and whole parameters; a slot of two laws, a parameter with two patterns, fractions.
SHAPES = {"a": (3, 4), "b": (1, 2, 3), "v": (4,), "s": ()}
LAWS = [
    law(term("a", (3, 4), (0,), (0,), (2,)), term("v", (4,), (0,), (1,), exponent=-2)),
    law(term("a", (3, 4), (1,), (1,), exponent=-1), term("b", (1, 2, 3), (2,), (0,), (2,), exponent="1/2")),
    law(term("a", (3, 4), (0,), (2,), exponent=3), term("b", (1, 2, 3), (0, 1, 2), (0, 1, 2), exponent=-1)),
    law(term("a", (3, 4), (), (), exponent=-1), term("s", (), (), ())),
]


def exponent(number, name, index):
    """e_jk of one entry, by looking through the terms."""
    return sum(
        float(one.exponent)
        for one in LAWS[number].terms
        if one.parameter == name and tuple(index[axis] for axis in one.axes) in one.indices
    )


def entries():
    return [(name, index) for name, shape in SHAPES.items() for index in itertools.product(*map(range, shape))]


@pytest.fixture
def squares():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1 for name, shape in SHAPES.items()}


def test_factors_are_those_of_each_entry():
    coordinates = torch.tensor([0.3, -0.7, 0.2, 0.5], dtype=torch.float64)
    factors = Orbit(LAWS).factors(coordinates)
    assert set(factors) == set(SHAPES)
    for name, index in entries():
        expected = sum(float(coordinates[number]) * exponent(number, name, index) for number in range(4))
        whole = factors[name].expand(SHAPES[name])
        assert float(whole[index].log()) == pytest.approx(expected)


def test_sides_add_up_to_c(squares):
    into, out = Orbit(LAWS).sides(squares)
    for number in range(4):
        c = sum(exponent(number, name, index) * float(squares[name][index]) for name, index in entries())
        assert float(into[number] - out[number]) == pytest.approx(c)
    assert (into > 0).all()
    assert (out > 0).all()


def test_curvature_is_the_second_derivative(squares):
    orbit = Orbit(LAWS)
    dense = torch.zeros(4, 4, dtype=torch.float64)
    dense.index_put_((orbit.rows, orbit.columns), orbit.curvature(squares), accumulate=True)
    assert (orbit.rows >= orbit.columns).all()
    for first, second in itertools.product(range(4), range(4)):
        expected = sum(
            2 * exponent(first, name, index) * exponent(second, name, index) * float(squares[name][index])
            for name, index in entries()
        )
        assert float(dense[max(first, second), min(first, second)]) == pytest.approx(expected)


def test_slope_and_curvature_agree_with_differences_of_the_norm(squares):
    orbit = Orbit(LAWS)

    def norm(coordinates):
        factors = orbit.factors(coordinates)
        return sum((squares[name] * factors[name] ** 2).sum() for name in SHAPES) / 2

    origin = torch.zeros(4, dtype=torch.float64)
    into, out = orbit.sides(squares)
    torch.testing.assert_close(torch.func.grad(norm)(origin), into - out)
    curvature = torch.func.hessian(norm)(origin)
    lower = torch.zeros(4, 4, dtype=torch.float64)
    lower.index_put_((orbit.rows, orbit.columns), orbit.curvature(squares), accumulate=True)
    torch.testing.assert_close(curvature.tril(), lower)


def test_squares_at_a_point_are_squares_of_what_the_factors_give(squares):
    orbit = Orbit(LAWS)
    coordinates = torch.tensor([1.0, 2.0, -1.0, 0.0], dtype=torch.float64)
    factors = orbit.factors(coordinates)
    for name, found in orbit.squares(squares, coordinates).items():
        torch.testing.assert_close(found, squares[name] * factors[name] ** 2)


def test_no_laws_scale_nothing():
    orbit = Orbit([])
    nothing = torch.zeros(0, dtype=torch.float64)
    assert orbit.factors(nothing) == {}
    assert [len(side) for side in orbit.sides({})] == [0, 0]
    assert len(orbit.curvature({})) == len(orbit.rows) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_multiplying_rounds_once(dtype):
    tensor = torch.nn.Parameter(torch.tensor([[1.1, -2.3], [0.7, 5.9]]).to(dtype))
    factor = torch.tensor([[0.3], [7.7]], dtype=torch.float64)
    expected = (tensor.detach().double() * factor**-2).to(dtype)
    version = tensor._version
    assert multiply_(tensor, factor, -2) is tensor
    assert torch.equal(tensor, expected)
    assert tensor._version > version  # autograd is to notice that a saved weight was changed
    assert tensor.is_leaf
