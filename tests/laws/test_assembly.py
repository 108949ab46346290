"""From solutions to laws: order, signs, names and kinds."""

from fractions import Fraction

import torch
from torch import Tensor

from gatdiag.law import Law
from gatdiag.laws.assembly import Place, assemble
from gatdiag.laws.label import Label
from gatdiag.laws.solver import Basis

PLACES = {
    "one.weight": Place(1, "one", 0, (2, 3), True),
    "one.bias": Place(1, "one", 1, (2,), False),
    "norm.weight": Place(2, "norm", 2, (2,), False),
    "two.weight": Place(3, "two", 3, (4, 2), True),
}
HIDDEN = torch.tensor([1, 2])


def label(coefficient: int, ids: Tensor) -> Label:
    return Label(((Fraction(coefficient), ids),))


def hidden(**more: Label) -> dict[str, Label]:
    """The labels of two layers around two neurons, the unknowns 1 and 2."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "one.weight": label(1, HIDDEN.reshape(2, 1)),
        "one.bias": label(1, HIDDEN),
        "two.weight": label(-1, HIDDEN.reshape(1, 2)),
        **named,
    }


def basis(*free: int, sign: int = 1) -> Basis:
    values = {unknown: {number: Fraction(sign)} for number, unknown in enumerate(free)}
    return Basis(free, (True,) * len(free), values)


def assemble_laws(labels: dict[str, Label], found: Basis) -> list[Law]:
    return assemble(labels, found, PLACES)


def test_laws_come_in_order_whatever_the_order_of_the_basis() -> None:
    assert [law.neuron for law in assemble_laws(hidden(), basis(2, 1))] == [0, 1]


def test_the_incoming_weights_are_positive_whatever_the_sign_of_the_solution() -> None:
    assert list(map(str, assemble_laws(hidden(), basis(1, 2, sign=-1)))) == list(
        map(str, assemble_laws(hidden(), basis(1, 2)))
    )


def test_one_unknown_for_two_neurons_is_a_law_of_both() -> None:
    found = Basis((1,), (False,), {1: {0: Fraction(1)}, 2: {0: Fraction(1)}})
    (law,) = assemble_laws(hidden(), found)

    assert law.name == "layer 1 (one), all neurons"
    assert list(map(str, law.terms)) == [
        "+ one.weight[0, :], one.weight[1, :]",
        "+ one.bias[0], one.bias[1]",
        "- two.weight[:, 0], two.weight[:, 1]",
    ]
    assert (law.neuron, law.exact) == (None, False)


def test_different_exponents_are_different_terms() -> None:
    found = Basis((1,), (True,), {1: {0: Fraction(1)}, 2: {0: Fraction(2)}})
    (law,) = assemble_laws({"one.bias": hidden()["one.bias"]}, found)

    assert [(term.indices, term.exponent) for term in law.terms] == [(((0,),), 1), (((1,),), 2)]


def test_what_nothing_reads_is_a_scale() -> None:
    (law,) = assemble_laws({"one.weight": label(1, HIDDEN.reshape(2, 1))}, basis(2))

    assert (law.kind, law.name) == ("scale", "layer 1 (one), neuron 1 scale")


def test_opposite_parts_of_one_parameter_cancel() -> None:
    both = Label(((Fraction(1), HIDDEN.reshape(2, 1)), (Fraction(-1), torch.tensor([[1], [1]]))))
    laws = assemble_laws({"one.weight": both}, basis(1))

    assert [[(term.indices, term.exponent) for term in law.terms] for law in laws] == [[(((1,),), 1)]]
