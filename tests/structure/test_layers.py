"""Lookups in a structure."""

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


def test_text():
    assert str(STRUCTURE).splitlines() == [
        "2 layers in execution order",
        "1 a: Linear",
        "    a.weight = c.weight [2, 3]: feature weight",
        "    a.bias [2, 3]: feature weight",
        "2 b: APPNP, never executed",
    ]
    assert repr(STRUCTURE) == "Structure(2 layers in execution order)"
    assert repr(list(STRUCTURE)) == "[Layer('a', Linear, 2 parameters), Layer('b', APPNP, 0 parameters)]"
