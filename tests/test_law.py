"""Laws and terms as a person reads them."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from gatdiag.law import Law, Term


def term(
    axes: tuple[int, ...], *indices: tuple[int, ...], shape: tuple[int, ...] = (4, 5), exponent: object = 1
) -> Term:
    return Term("w", shape, axes, indices, Fraction(exponent))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (term((0,), (3,)), "rows", "+ w[3, :]"),
        (term((1,), (2,), exponent=-1), "columns", "- w[:, 2]"),
        (term((0, 1), (3, 2)), "entries", "+ w[3, 2]"),
        (term((0,), (1,), shape=(4,)), "entries", "+ w[1]"),
        (term((), ()), "whole", "+ w[:, :]"),
        (term((2,), (1,), shape=(1, 2, 3)), "slices", "+ w[:, :, 1]"),
        (term((0,), (0,), (1,), exponent=2), "rows", "+ 2 w[0, :], w[1, :]"),
        (
            term((0,), (0,), (1,), (2,), (3,), exponent=Fraction(-1, 2)),
            "rows",
            "- 1/2 w[0, :], w[1, :], w[2, :] and 1 more",
        ),
    ],
)
def test_a_term_says_what_it_scales(given: Term, kind: str, text: str) -> None:
    assert (given.kind, str(given)) == (kind, text)


@pytest.mark.parametrize("extra", [(), (0,), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (2, 0), (0, 1, 2)], ids=str)
def test_positions_and_views_are_those_of_the_indices(axes: tuple[int, ...], extra: tuple[int, ...]) -> None:
    shape = (2, 3, 4)
    every = [*itertools.product(*(range(shape[axis]) for axis in axes))]
    of = term(axes, *dict.fromkeys((every[0], every[-1])), shape=shape)
    over = axes if not extra else tuple(sorted({*axes, *extra}))
    values = np.random.default_rng(0).random(shape)
    others = tuple(axis for axis in range(3) if axis not in over)
    sums = values.sum(others).transpose([sorted(over).index(axis) for axis in over]).ravel()
    chosen = [index for index in np.ndindex(*shape) if tuple(index[axis] for axis in axes) in of.indices]

    assert sums[of.positions(over)].sum() == pytest.approx(sum(values[index] for index in chosen))
    assert sum(view.sum() for view in of.select(values)) == pytest.approx(sum(values[index] for index in chosen))
    assert of.positions() == of.positions(axes)


def test_a_law_is_its_name_and_its_terms() -> None:
    terms = (term((0,), (3,)), term((1,), (3,), exponent=-1))
    law = Law("layer 1 (conv), neuron 3", "neuron", "conv", 3, terms, True, 0.0)

    assert str(law) == "layer 1 (conv), neuron 3: w[3, :] - w[:, 3]"
