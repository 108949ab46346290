"""Lookups in a structure."""

import dataclasses

import pytest

from gatdiag.errors import InputError
from gatdiag.structure import Layer, ParameterInfo, Structure


def info(name: str, *more: str) -> ParameterInfo:
    return ParameterInfo(name, (name, *more), "feature weight", (2, 3), True, name.rpartition(".")[0])


FIRST = Layer(1, "a", "Linear", (info("a.weight", "c.weight"), info("a.bias")), True)
SECOND = Layer(2, "b", "APPNP", (), False)
STRUCTURE = Structure((FIRST, SECOND), "execution")


def test_is_a_sequence_of_layers():
    assert list(STRUCTURE) == [FIRST, SECOND]
    assert len(STRUCTURE) == 2
    assert STRUCTURE[0] is FIRST
    assert STRUCTURE[-1] is SECOND


def test_lookups_take_every_name():
    assert STRUCTURE.layer("b") is SECOND
    assert STRUCTURE.layer_of("c.weight") is FIRST
    assert STRUCTURE.parameter("c.weight") is STRUCTURE.parameter("a.weight") is FIRST.parameters[0]
    assert STRUCTURE.parameters == FIRST.parameters


@pytest.mark.parametrize("look_up", [STRUCTURE.layer_of, STRUCTURE.parameter])
def test_unknown_parameter_is_answered_with_similar_names(look_up):
    with pytest.raises(InputError, match=r"parameter, got 'a\.weigth'.*'a\.weight'"):
        look_up("a.weigth")


def test_unknown_layer():
    with pytest.raises(InputError, match=r"layer, got 'z'.*'a', 'b'"):
        STRUCTURE.layer("z")


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        STRUCTURE.order = "module"


def test_text():
    assert str(STRUCTURE).splitlines() == [
        "2 layers in execution order",
        "1 a: Linear",
        "    a.weight = c.weight [2, 3]: feature weight",
        "    a.bias [2, 3]: feature weight",
        "2 b: APPNP, never executed",
    ]
