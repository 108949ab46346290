"""The laws in meta.json: packed, read back, and their c."""

import json
from fractions import Fraction
from math import nan

import numpy as np
import pytest

from gatdiag.errors import InputError
from gatdiag.law import Law, Term
from gatdiag.run import RecordedLaws, Store, load
from gatdiag.run.laws import pack
from tests.run.recorded import META


def term(parameter, shape, axes, *indices, exponent=1):
    return Term(parameter, shape, axes, indices, Fraction(exponent))


def neuron(number, layer="convs.0", name="layer 1 (convs.0), neuron {}", residual=1e-16, exact=True, further=()):
    terms = (
        term("w", (6, 3), (0,), (number,)),
        term("att", (1, 2, 3), (0, 1, 2), (0, number // 3, number % 3), exponent=-1),
        term("v", (5, 12), (1,), (number,), (6 + number,), exponent="-1/2"),
    )
    return Law(name.format(number), "neuron", layer, number, terms + further, exact, residual)


WHOLE = Law("layer 2 (norm), all neurons scale", "scale", "norm", None, (term("v", (5, 12), (), ()),), False, nan)
ROWS = Law("scale", "scale", "norm", None, (term("w", (6, 3), (0,), *((row,) for row in range(6))),), True, 2.34e-15)
ODD = Law("entries", "neuron", "x", 4, (term("w", (6, 3), (0, 1), (0, 1), (2, 2), (5, 0), exponent=3),), True, 0.0)
DOWN = [neuron(number, name="layer 9 (down), neuron {}", layer="down") for number in (3, 2, 1)]
LAWS = [*map(neuron, range(6)), WHOLE, ROWS, ODD, neuron(0), neuron(2), neuron(3, exact=False), *DOWN, ODD, ODD]


def same(read, written):
    assert [(a.name, a.kind, a.layer, a.neuron, a.terms, a.exact) for a in read] == [
        (b.name, b.kind, b.layer, b.neuron, b.terms, b.exact) for b in written
    ]
    np.testing.assert_allclose([a.residual for a in read], [b.residual for b in written], rtol=0.05)


def through_json(laws):
    return RecordedLaws(json.loads(json.dumps(pack(laws), allow_nan=False)))


def test_laws_are_read_as_they_were_written():
    read = through_json(LAWS)
    same(read, LAWS)
    assert len(read) == len(LAWS)
    assert read[-1].name == LAWS[-1].name
    same(read[2:9:3], LAWS[2:9:3])
    with pytest.raises(IndexError):
        read[len(LAWS)]
    assert read.table["name"].tolist() == [law.name for law in LAWS]
    assert read.table["neuron"].isna().tolist() == [law.neuron is None for law in LAWS]
    assert read.table["exact"].tolist() == [law.exact for law in LAWS]
    assert "6 laws in 1 layers" in repr(through_json(LAWS[:6]))


def test_the_laws_of_a_layer_are_one_entry():
    assert [entry["count"] for entry in pack(LAWS)][:4] == [6, 1, 1, 1]
    (entry,) = pack(map(neuron, range(6)))
    assert entry["name"] == "layer 1 (convs.0), neuron {neuron}"
    assert [(term["at"], term["each"]) for term in entry["terms"]] == [([0], 1), ([0], 1), ([0, 6], 1)]
    assert pack([ROWS])[0]["terms"][0]["at"] == [0, 1, 2, 3, 4, 5]
    assert pack([WHOLE])[0]["residual"] is None


def test_two_laws_without_a_neuron_keep_their_names():
    same(through_json([WHOLE, WHOLE, WHOLE]), [WHOLE, WHOLE, WHOLE])


def test_none_at_all():
    read = through_json([])
    assert (len(read), list(read), read.c({}).shape, len(read.table)) == (0, [], (0,), 0)


def slow_c(law, weights):
    total = 0.0
    for part in law.terms:
        for index in part.indices:
            where = tuple(
                dict(zip(part.axes, index, strict=True)).get(axis, slice(None)) for axis in range(len(part.shape))
            )
            total += float(part.exponent) * float(np.square(weights[part.parameter][where]).sum())
    return total


def test_c_is_the_sum_over_the_terms():
    generator = np.random.default_rng(0)
    weights = {
        name: generator.normal(size=shape) for name, shape in {"w": (6, 3), "att": (1, 2, 3), "v": (5, 12)}.items()
    }
    read = through_json(LAWS)
    assert read.c(weights) == pytest.approx([slow_c(law, weights) for law in LAWS], rel=1e-12)
    half = {name: values.astype(np.float16) for name, values in weights.items()}
    double = {name: values.astype(np.float64) for name, values in half.items()}
    assert read.c(half) == pytest.approx([slow_c(law, double) for law in LAWS], rel=1e-12)


def test_c_needs_the_parameters_and_their_shapes():
    read = through_json([ROWS, WHOLE])
    assert np.isnan(read.c({"w": np.ones((6, 3))})).tolist() == [False, True]
    with pytest.raises(InputError, match=r"of shape \(5, 12\) for v, got \(5, 11\)"):
        read.c({"w": np.ones((6, 3)), "v": np.ones((5, 11))})


def test_neurons_and_layers_of_rows_are_those_of_the_laws(tmp_path):
    known = [*(neuron(number, layer="first") for number in range(6)), WHOLE]
    laws = {"found": pack(known), "excluded": [], "error": None}
    store = Store.create(tmp_path / "run", {**META, "laws": laws})
    store.append("neurons", {"step": 0, "law": np.arange(7), "c": np.arange(7.0)})
    store.update_meta(laws={**laws, "found": pack([*known, ODD])})
    with pytest.raises(InputError, match="cannot change once rows are recorded"):
        store.update_meta(laws={**laws, "found": laws["found"][:1]})
    store.seal("finished")
    rows = load(tmp_path / "run").neurons
    assert rows["neuron"].fillna(-1).tolist() == [0, 1, 2, 3, 4, 5, -1]
    assert rows["layer"].astype(object).fillna("").tolist() == [*["first"] * 6, ""]
