import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.errors import ModelError
from gatdiag.remedies.stack import neurons_of_stack, squared_norm_of_stack
from gatdiag.structure import discover
from tests.remedies.stacks import EDGES, STACKS, X


def matrices(terms, parameters):
    """(parameter, sign) -> which of its entries, as a mask: one row or column however it is counted."""
    covered = {}
    for term in terms:
        if len(term.shape) == 2:
            mask = torch.zeros(term.shape, dtype=torch.bool)
            for index in term.indices:
                place = dict(zip(term.axes, index, strict=True))
                mask[tuple(place.get(axis, slice(None)) for axis in range(2))] = True
            covered[term.parameter, term.exponent] = mask.flatten().nonzero().flatten().tolist()
    return covered


@pytest.mark.parametrize("name", STACKS)
def test_neurons_of_a_stack_are_those_of_its_laws(name):
    model = STACKS[name]()
    parameters = dict(model.named_parameters())
    laws = gatdiag.find_laws(model, X, EDGES)
    neurons = neurons_of_stack(model, discover(model))
    assert len(neurons) == len(laws)
    expected = [matrices(law.terms, parameters) for law in laws]
    assert all(matrices(terms, parameters) in expected for terms in neurons)


def test_layers_without_parameters_are_looked_through():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    assert len(neurons_of_stack(model, discover(model))) == 3


def test_a_single_layer_has_no_neurons():
    model = nn.Linear(4, 3)
    assert neurons_of_stack(model, discover(model)) == ()


def test_a_normalization_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(ModelError, match=r"but 1 is a BatchNorm1d with 1.weight, 1.bias\. Give the inputs"):
        neurons_of_stack(model, discover(model))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gatv2", 2),
        ("gatv2 of odd widths", 2),
        ("gatv2 with concatenated heads", 2),
        ("gatv2 with averaged heads", 2 * (2**2 * 3**2 * 2**2 * (4 / 6)) ** (1 / 3)),  # widths 6, 6 and 4
        ("gat with averaged heads", 2 * 3),  # one of two layers averages three heads
    ],
)
def test_the_product_of_all_gains_is_one(name, expected):
    model = STACKS[name]()
    assert squared_norm_of_stack(model, discover(model)) == pytest.approx(expected, rel=1e-12)
