"""Sums over rows, columns and entries, against loops."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatdiag.laws.sums import Marginal, Sums


def by_loop(marginal: Marginal, *tensors: Tensor, absolute: bool = False) -> list[float]:
    totals = dict.fromkeys(itertools.product(*map(range, marginal.kept)), 0.0)
    for index in itertools.product(*map(range, marginal.shape)):
        value = math.prod(float(tensor[index]) for tensor in tensors)
        totals[tuple(index[axis] for axis in marginal.axes)] += abs(value) if absolute else value
    return list(totals.values())


@st.composite
def marginals(draw: st.DrawFn) -> tuple[list[Marginal], dict[str, Tensor]]:
    """Several parameters, some of one shape, each with several patterns of kept axes."""
    torch.manual_seed(draw(st.integers(0, 99)))
    shapes = draw(st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=3))
    wanted, tensors = [], {}
    for number in range(draw(st.integers(1, 5))):
        shape = draw(st.sampled_from(shapes))
        tensors[f"p{number}"] = torch.randn(shape, dtype=draw(st.sampled_from([torch.float32, torch.float64])))
        for axes in draw(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=3)):
            kept = tuple(axis for axis in sorted(axes) if axis < len(shape))
            wanted.append(Marginal(f"p{number}", shape, kept))
    return wanted, tensors


@given(marginals(), st.booleans())
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_all_sums_are_those_of_the_loops(drawn: tuple[list[Marginal], dict[str, Tensor]], absolute: bool) -> None:
    wanted, tensors = drawn
    others = {name: torch.randn_like(tensor) for name, tensor in tensors.items()}
    sums = Sums(wanted, tensors)

    for factors in ((tensors,), (tensors, others), (tensors, tensors)):
        vector = sums(*factors, absolute=absolute)
        assert vector.dtype is torch.float64
        for marginal in wanted:
            start = sums.start(marginal)
            expected = by_loop(marginal, *(factor[marginal.parameter] for factor in factors), absolute=absolute)
            assert vector[start : start + marginal.size].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_positions_count_along_the_kept_axes() -> None:
    marginal = Marginal("w", (2, 3, 4), (0, 2))

    assert (marginal.kept, marginal.size) == ((2, 4), 8)
    assert [marginal.position(index) for index in itertools.product(range(2), range(4))] == list(range(8))


def test_what_is_missing_counts_as_zeros() -> None:
    weights = {"a": torch.ones(2, 2), "b": torch.ones(2, 2)}
    wanted = [Marginal("a", (2, 2), (0,)), Marginal("b", (2, 2), (0,))]

    assert Sums(wanted, weights)(weights, {"b": torch.ones(2, 2)}).tolist() == [0, 0, 2, 2]


def test_sparse_gradients_are_summed_too() -> None:
    weight = torch.ones(3, 2)
    gradient = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (3, 2), check_invariants=True
    )

    assert Sums([Marginal("w", (3, 2), (0,))], {"w": weight})({"w": weight}, {"w": gradient}).tolist() == [3, 0, 7]


def test_half_precision_is_summed_in_double() -> None:
    weight = {"w": torch.full((1, 4096), 1.0 + 2**-7, dtype=torch.bfloat16)}

    assert Sums([Marginal("w", (1, 4096), (0,))], weight)(weight, weight).item() == 4096 * (1 + 2**-7) ** 2


def test_nothing_wanted_gives_nothing() -> None:
    assert Sums([], {})({}, {}).shape == (0,)


def test_a_complex_entry_counts_as_two_real_ones() -> None:
    torch.manual_seed(0)
    w, g = torch.randn(2, 3, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)
    sums = Sums([Marginal("w", (2, 3), (0,))], {"w": w})

    torch.testing.assert_close(sums({"w": w}, {"w": g}), (w.conj() * g).real.sum(1).double())
    torch.testing.assert_close(sums({"w": w}, {"w": w}), w.abs().square().sum(1).double())
