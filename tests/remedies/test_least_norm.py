import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gatdiag
from gatdiag.experiments.models import gat
from gatdiag.laws import Laws, Term
from gatdiag.remedies.least_norm import Orbit, find_rescaling, least_norm, multiply_, relative_gradients, solve_banded
from gatdiag.remedies.verification import find_verified_rescaling
from tests.remedies.stacks import EDGES, X, law, neurons, weights


def scalars(**exponents):
    """A law between parameters of one entry each."""
    return law(*(Term(name, (1,), (0,), ((0,),), Fraction(exponent)) for name, exponent in exponents.items()))


def chain(*widths):
    return [law(*terms) for terms in neurons(*widths)]


def rescaled(laws, tensors, coordinates):
    factors = Orbit(laws).factors(coordinates.numpy())
    return {name: tensor.double() * factors.get(name, 1) for name, tensor in tensors.items()}


def normalized_c(laws, tensors):
    return Laws(laws, tensors).normalized_c()


@given(widths=st.lists(st.integers(1, 6), min_size=3, max_size=6), seed=st.integers(0, 2**31), spread=st.floats(0, 4))
@settings(max_examples=60, deadline=None)
def test_c_is_zero_at_the_point_of_least_norm(widths, seed, spread):
    laws, tensors = chain(*widths), weights(*widths, seed=seed, spread=spread)
    coordinates, skipped = least_norm(Orbit(laws), tensors)
    balanced = rescaled(laws, tensors, coordinates)
    assert not skipped
    assert float(normalized_c(laws, balanced).abs().max()) < 1e-12
    norm = sum(float(tensor.square().sum()) for tensor in balanced.values())
    generator = torch.Generator().manual_seed(seed)
    for size in (1e-2, 1.0):
        aside = size * torch.randn(len(laws), generator=generator, dtype=torch.float64)
        elsewhere = rescaled(laws, balanced, aside)
        assert sum(float(tensor.square().sum()) for tensor in elsewhere.values()) > norm


def test_a_loop_through_one_matrix_balances():
    """Tied weights: rows and columns of the same matrix; scaling all its neurons alike does not move it."""
    shape = (3, 3)
    loop = [
        law(Term("w", shape, (0,), ((i,),), Fraction(1)), Term("w", shape, (1,), ((i,),), Fraction(-1)))
        for i in range(3)
    ]
    matrix = torch.tensor([[1.0, 20.0, 0.3], [0.1, 2.0, 5.0], [7.0, 0.2, 1.0]])
    coordinates, _ = least_norm(Orbit(loop), {"w": matrix})
    balanced = rescaled(loop, {"w": matrix}, coordinates)["w"].square()
    torch.testing.assert_close(balanced.sum(0), balanced.sum(1))
    torch.testing.assert_close(balanced.diagonal(), matrix.double().square().diagonal())


def test_neurons_that_cannot_be_balanced_are_left_and_the_others_balance_around_them():
    laws, tensors = chain(3, 4, 4, 2), weights(3, 4, 4, 2)
    tensors["0"][0] = 0  # nothing leads into it
    tensors["2"][:, 1] = 0  # nothing leads out of the second neuron of the second layer
    tensors["1"][:, 3] = 0  # and the fourth of the first has nothing on either side
    tensors["0"][3] = 0
    coordinates, skipped = least_norm(Orbit(laws), tensors)
    assert set(skipped) == {0, 3, 5}
    assert "its incoming weights are zero" in skipped[0]
    assert "all its weights are zero" in skipped[3]
    assert "its outgoing weights are zero" in skipped[5]
    assert not coordinates[[0, 3, 5]].any()
    balanced = normalized_c(laws, rescaled(laws, tensors, coordinates))
    assert float(balanced[[1, 2, 4, 6, 7]].abs().max()) < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_and_spoils_no_other(value):
    laws, tensors = chain(3, 4, 4, 2), weights(3, 4, 4, 2)
    tensors["1"][2, 1] = value
    coordinates, skipped = least_norm(Orbit(laws), tensors)
    assert set(skipped) == {1, 6}
    assert all("not finite" in reason for reason in skipped.values())
    tensors["1"][2, 1] = 0
    balanced = normalized_c(laws, rescaled(laws, tensors, coordinates))
    assert float(balanced[[0, 2, 3, 4, 5, 7]].abs().max()) < 1e-12


@pytest.mark.parametrize("v", [1.0, 1e-5])
def test_a_norm_that_falls_on_and_on_is_noticed(v):
    """Each law has two sides, but both together shrink v and nothing grows."""
    laws = [scalars(x=1, y=-1), scalars(x=-1, y=1, v=1), scalars(a=1, b=-1)]
    tensors = {name: torch.ones(1).double() for name in "xya"}
    tensors |= {"b": torch.full((1,), 4.0).double(), "v": torch.full((1,), v).double()}
    coordinates, skipped = least_norm(Orbit(laws), tensors)
    assert set(skipped) == {0, 1}
    assert all("decreases without limit" in reason for reason in skipped.values())
    assert float(coordinates[2].exp()) == pytest.approx(2.0)


def test_factors_past_a_million_are_not_taken():
    laws = [scalars(a=1, b=-1), scalars(x=1, y=-1)]
    tensors = {"a": 1e-8, "b": 1e8, "x": 1e-5, "y": 1e5}
    weights = {name: torch.tensor([value]).double() for name, value in tensors.items()}
    coordinates, skipped = least_norm(Orbit(laws), weights)
    assert set(skipped) == {0}
    assert float(coordinates[1].exp()) == pytest.approx(1e5)


def band(matrix):
    """Entry [d, j] is H[j + d, j]."""
    size = len(matrix)
    return np.array([[matrix[j + d, j] if j + d < size else 0 for j in range(size)] for d in range(size)])


@pytest.mark.parametrize("held", [(), ("0",), ("3",), ("1",)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_parameters_that_are_held_count_and_stay(held, seed):
    laws, tensors = chain(3, 4, 5, 4, 2), weights(3, 4, 5, 4, 2, seed=seed, spread=1.0)
    coordinates, skipped = least_norm(Orbit(laws, held), tensors)
    found = rescaled(laws, tensors, coordinates) | {name: tensors[name] for name in held}
    assert not skipped
    assert float(normalized_c(laws, found).abs().max()) < 1e-12


def test_laws_whose_weights_are_all_held_are_skipped():
    laws, tensors = chain(3, 4, 4, 2), weights(3, 4, 4, 2)
    coordinates, skipped = least_norm(Orbit(laws, ("0", "1")), tensors)
    assert skipped == dict.fromkeys(range(4), "all its weights are fixed")
    found = rescaled(laws, tensors, coordinates) | {name: tensors[name] for name in ("0", "1")}
    assert float(normalized_c(laws, found)[4:].abs().max()) < 1e-12


@given(size=st.integers(1, 40), width=st.integers(0, 40), spread=st.floats(0, 4), seed=st.integers(0, 2**31))
@settings(deadline=None)
def test_solutions_are_those_of_the_dense_system(size, width, spread, seed):
    random = np.random.default_rng(seed)
    factor = np.triu(np.tril(random.standard_normal((size, size))), -width)
    plain = factor @ factor.T + np.eye(size)
    scale = np.exp(spread * random.standard_normal(size))  # neurons of very different sizes
    right = random.standard_normal(size) * scale
    found = solve_banded(band(plain * scale * scale[:, None]), right) * scale
    expected = np.linalg.solve(plain, right / scale)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7 * abs(expected).max())


def test_what_no_entry_determines_stays():
    found = solve_banded(band(np.diag([2.0, 0.0, 0.0])), np.array([4.0, 0.0, 0.0]))
    assert found.tolist() == pytest.approx([2.0, 0.0, 0.0])
    found = solve_banded(band(np.array([[1.0, -1.0], [-1.0, 1.0]])), np.array([1.0, -1.0]))  # x0 - x1 = 1
    assert found[0] - found[1] == pytest.approx(1.0, rel=1e-6)


# --- of models -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    model = gat(5, 3, hidden_channels=6, layers=4).double()
    laws = gatdiag.find_laws(model, X.double(), EDGES)
    return model, laws


def times(tensors, rescaling, power=1):
    return {name: tensor.detach() * rescaling.factors.get(name, 1) ** power for name, tensor in tensors.items()}


@given(seed=st.integers(0, 2**31), spread=st.floats(0, 2))
@settings(max_examples=25, deadline=None)
def test_wherever_on_the_orbit_it_starts_it_ends_at_the_same_weights(stack, seed, spread):
    _, laws = stack
    generator = torch.Generator().manual_seed(seed)
    weights, slopes = (
        {name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in laws.parameters.items()}
        for _ in range(2)
    )
    somewhere = find_rescaling(laws, {name: w * (spread * w).exp() for name, w in weights.items()})
    for given_gradients in (None, slopes):
        here = times(weights, find_rescaling(laws, weights, given_gradients))
        moved = times(weights, somewhere)
        there_gradients = None if given_gradients is None else times(slopes, somewhere, -1)
        there = times(moved, find_rescaling(laws, moved, there_gradients))
        for name, tensor in here.items():
            torch.testing.assert_close(there[name], tensor, rtol=1e-9, atol=1e-11)


def test_relative_gradients_entry_by_entry():
    weights = {"a": torch.tensor([2.0, 0.0, -4.0]), "b": torch.ones(2), "c": torch.ones(2, 1)}
    slopes = {"a": torch.tensor([1.0, 1.0, 1.0]), "c": torch.tensor([[3.0], [0.0]]).to_sparse()}
    found = relative_gradients(weights, slopes)
    assert found["a"].tolist() == [0.5, 0.0, -0.25]
    assert found["b"].tolist() == [0.0, 0.0]
    assert found["c"].tolist() == [[3.0], [0.0]]


def test_approximate_laws_are_left_alone_where_the_function_is_to_stay():
    torch.manual_seed(0)
    norm, x = (
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        torch.randn(8, 3),
    )
    laws = gatdiag.find_laws(norm, x)
    scales = [law.name for law in laws if not law.exact]
    assert len(scales) == 4
    found = find_rescaling(laws, laws.parameters), find_verified_rescaling(norm, laws, None, (x,), {})[0]
    for rescaling, reason in zip(found, ("its outgoing weights are zero", "epsilon"), strict=True):
        left = {exclusion.what: exclusion.reason for exclusion in rescaling.skipped}
        assert set(left) == set(scales)
        assert all(reason in text for text in left.values())
        assert len(rescaling.balanced) == 4


# --- orbits -----------------------------------------------------------------------------------------------------------


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
