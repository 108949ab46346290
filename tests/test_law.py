"""Laws and terms as a person reads them."""

from fractions import Fraction

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


def test_a_law_is_its_name_and_its_terms() -> None:
    terms = (term((0,), (3,)), term((1,), (3,), exponent=-1))
    law = Law("layer 1 (conv), neuron 3", "neuron", "conv", 3, terms, True, 0.0)

    assert str(law) == "layer 1 (conv), neuron 3: w[3, :] - w[:, 3]"
