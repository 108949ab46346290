import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from gatdiag.laws import Term
from gatdiag.remedies.orbit import Orbit, multiply_
from tests.remedies.stacks import law


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


def test_exponents_are_those_of_each_entry(squares):
    orbit = Orbit(LAWS)
    coordinates = np.array([0.3, -0.7, 0.2, 0.5])
    factors = orbit.factors(coordinates)
    assert set(factors) == set(SHAPES)
    for name, index in entries():
        expected = sum(coordinates[number] * exponent(number, name, index) for number in range(4))
        assert float(factors[name].expand(SHAPES[name])[index].log()) == pytest.approx(expected)


def test_c_and_its_derivative_are_sums_over_entries(squares):
    orbit = Orbit(LAWS)
    cells = orbit.squares({name: square.sqrt() for name, square in squares.items()})
    (into, out), curvature = orbit.side_sums(cells), orbit.curvature(cells)
    for first in range(4):
        values = [(exponent(first, name, index), name, index) for name, index in entries()]
        shares = [e * float(squares[name][index]) for e, name, index in values]
        assert into[first] == pytest.approx(sum(share for share in shares if share > 0))
        assert out[first] == pytest.approx(-sum(share for share in shares if share < 0))
        for second in range(first + 1):
            expected = sum(e * exponent(second, name, index) * float(squares[name][index]) for e, name, index in values)
            found = curvature[first - second, second] if first - second < len(curvature) else 0.0
            assert found == pytest.approx(expected)


def test_no_laws_scale_nothing():
    orbit = Orbit([])
    assert orbit.factors(np.zeros(0)) == {}
    assert orbit.exponents.shape == (0, 0)
    assert len(orbit.squares({"w": torch.ones(2)})) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_multiplying_rounds_once(dtype):
    tensor = torch.nn.Parameter(torch.tensor([[1.1, -2.3], [0.7, 5.9]]).to(dtype))
    factor = torch.tensor([[0.3], [7.7]], dtype=torch.float64)
    expected = (tensor.detach().double() * factor**-2).to(dtype)
    version = tensor._version
    assert multiply_(tensor, factor**-2) is tensor
    assert torch.equal(tensor, expected)
    assert tensor._version > version  # autograd is to notice that a saved weight was changed
    assert tensor.is_leaf
