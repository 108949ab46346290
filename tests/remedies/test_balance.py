from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gatdiag
from gatdiag.errors import ModelError
from gatdiag.laws import Term
from gatdiag.remedies.balance import (
    balance_,
    find_stack_neurons,
    side_squared_norms,
    signal_preserving_factor,
    stack_squared_norm,
)
from gatdiag.structure import discover
from tests.remedies.stacks import EDGES, STACKS, X, neurons, weights


def row(name, shape, *numbers, exponent=1):
    return Term(name, shape, (0,), tuple((number,) for number in numbers), Fraction(exponent))


def column(name, shape, *numbers, exponent=-1):
    return Term(name, shape, (1,), tuple((number,) for number in numbers), Fraction(exponent))


@given(st.lists(st.integers(1, 5), min_size=3, max_size=6), st.integers(0, 9), st.floats(0.1, 10))
def test_it_is_procedure_2_6_written_out(widths, seed, squared_norm):
    expected, balanced = weights(*widths, seed=seed), weights(*widths, seed=seed)
    for i in range(widths[1]):
        norm = sum(float(w) ** 2 for w in expected["0"][i]) ** 0.5
        expected["0"][i] *= squared_norm**0.5 / norm
    for layer in range(1, len(widths) - 1):
        for i in range(widths[layer]):
            norm = sum(float(w) ** 2 for w in expected[str(layer)][:, i]) ** 0.5
            incoming = sum(float(w) ** 2 for w in expected[str(layer - 1)][i]) ** 0.5
            expected[str(layer)][:, i] *= incoming / norm
    balance_(balanced, neurons(*widths), squared_norm)
    for name, weight in expected.items():
        torch.testing.assert_close(balanced[name], weight)


@given(st.lists(st.integers(1, 5), min_size=3, max_size=6), st.integers(0, 9), st.floats(0.1, 10))
def test_in_reverse_it_is_the_same_of_the_network_transposed(widths, seed, squared_norm):
    tensors, last = weights(*widths, seed=seed), len(widths) - 2
    transposed = {str(last - layer): tensors[str(layer)].T.clone() for layer in range(last + 1)}
    assert balance_(tensors, neurons(*widths), squared_norm, in_reverse=True) is None
    balance_(transposed, neurons(*reversed(widths)), squared_norm)
    for layer in range(last + 1):
        torch.testing.assert_close(tensors[str(layer)], transposed[str(last - layer)].T)


@pytest.mark.parametrize("in_reverse", [False, True])
def test_attention_is_scaled_along_and_counts(in_reverse):
    tensors = weights(3, 4, 2) | {"a": torch.tensor([[[0.3, 0.0, -2.0, 1.0]]]).double()}
    before = tensors["a"].clone()
    scored = [
        (*terms, Term("a", (1, 1, 4), (0, 1, 2), ((0, 0, i),), Fraction(-1)))
        for i, terms in enumerate(neurons(3, 4, 2))
    ]
    assert balance_(tensors, scored, 5.0, in_reverse=in_reverse, vectors=["a"]) is None
    for i in range(4):
        into = sum(float(w) ** 2 for w in tensors["0"][i])
        out = float(tensors["a"][0, 0, i]) ** 2 + sum(float(w) ** 2 for w in tensors["1"][:, i])
        assert into == pytest.approx(out)
    assert not tensors["a"][0, 0, 1]
    assert torch.equal(tensors["a"].sign(), before.sign())


def test_exponents_and_several_rows_count():
    tensors = weights(3, 4, 2)
    terms = (row("0", (4, 3), 0, 2, exponent=2), column("1", (2, 4), 1, exponent=-3))
    balance_(tensors, [terms])
    into = 2 * tensors["0"][[0, 2]].square().sum()
    assert float(into) == pytest.approx(2.0)
    assert 3 * float(tensors["1"][:, 1].square().sum()) == pytest.approx(2.0)
    assert torch.equal(tensors["1"][:, [0, 2, 3]], weights(3, 4, 2)["1"][:, [0, 2, 3]])


def test_the_scale_of_a_normalization_is_followed_not_changed():
    tensors = {"scale": torch.full((2,), 3.0), "next": torch.ones(2, 2)}
    balance_(tensors, [(row("scale", (2,), i), column("next", (2, 2), i)) for i in range(2)], fixed=["scale"])
    assert torch.equal(tensors["scale"], torch.full((2,), 3.0))
    assert tensors["next"].square().sum(0).tolist() == pytest.approx([9.0, 9.0])


def test_a_column_of_zeros_cannot_balance_and_makes_no_nan():
    tensors = weights(3, 4, 2)
    tensors["1"][:, 2] = 0
    tensors["0"][1] = 0
    assert balance_(tensors, neurons(3, 4, 2)) == neurons(3, 4, 2)[2]
    assert side_squared_norms(tensors, neurons(3, 4, 2)[2]) == pytest.approx((2, 0))
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert not tensors["1"][:, 1].any()  # a dead neuron stays dead


def test_weights_in_two_places_cannot_balance():
    loop = [(row("0", (3, 3), i), column("0", (3, 3), i)) for i in range(3)]
    assert balance_(weights(3, 3), loop) in loop


# --- a signal keeps its size ------------------------------------------------------------------------------------------


def factor(model, *inputs):
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    scaled = frozenset(name for name, weight in weights.items() if weight.dim() == 2)
    return signal_preserving_factor(model, weights, scaled, inputs or (X,), {})


@pytest.mark.parametrize("gains", [(1.0, 1.0), (4.0, 0.25, 1.0), (3.0, 0.5, 0.1), (1e-3,) * 5])
def test_it_undoes_what_the_layers_multiply_a_signal_by(gains):
    model = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in gains))
    for layer, gain in zip(model, gains, strict=True):
        nn.init.eye_(layer.weight).data.mul_(gain)
    product = float(torch.tensor(gains).double().prod())
    assert factor(model) == pytest.approx(product ** (-1 / len(gains)), rel=1e-4)


@pytest.mark.parametrize("gain", [1e10, 1e-10])
def test_networks_whose_outputs_overflow_or_vanish_come_to_their_size(gain):
    model = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in range(6)))
    for layer in model:
        nn.init.eye_(layer.weight).data.mul_(gain)
    given = factor(model)
    for layer in model:
        layer.weight.data.mul_(given)
    assert float(model(X).detach().norm() / X.norm()) == pytest.approx(1, rel=1e-2)


def test_width_multiplies_squares_in_the_first_layer_only():
    model = nn.Sequential(nn.Linear(5, 20, bias=False), nn.Linear(20, 5, bias=False))
    nn.init.eye_(model[0].weight)
    nn.init.eye_(model[1].weight)
    assert factor(model) == pytest.approx(2**0.5, rel=1e-4)  # 20 outputs for 5 inputs: twice as large, in two layers


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.Sigmoid()),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
    ],
    ids=["a normalization", "a bounded output", "nothing comes out"],
)
def test_where_no_factor_is_known_to_help_it_is_one(model):
    nn.init.zeros_(model[0].bias)
    if isinstance(model[-1], nn.Linear):
        nn.init.zeros_(model[-1].weight)
        nn.init.zeros_(model[-1].bias)
    assert factor(model) == 1


def test_an_embedding_is_measured_by_what_it_puts_out():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4, bias=False))
    nn.init.eye_(model[1].weight).data.mul_(0.25)
    assert factor(model, torch.arange(7)) == pytest.approx(4, rel=1e-4)  # one matrix after it


def test_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    factor(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model[0]._forward_hooks


# --- a stack of layers ------------------------------------------------------------------------------------------------


def matrices(terms):
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
    laws = gatdiag.find_laws(model, X, EDGES)
    found = find_stack_neurons(model, discover(model))
    assert len(found) == len(laws)
    expected = [matrices(law.terms) for law in laws]
    assert all(matrices(terms) in expected for terms in found)


def test_a_single_layer_has_no_neurons():
    model = nn.Linear(4, 3)
    assert find_stack_neurons(model, discover(model)) == ()


def test_a_normalization_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(
        ModelError, match=r"in module order, but how 1 \(BatchNorm1d\) uses its weights .* Give the inputs"
    ):
        find_stack_neurons(model, discover(model))


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
    assert stack_squared_norm(model, discover(model)) == pytest.approx(expected, rel=1e-12)
