import json
from fractions import Fraction

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.cli.laws import layer_rows
from gatdiag.laws import Exclusion, Law, Laws, Term, find_laws

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def perceptron():
    print("made a model")  # noqa: T201
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def document(shelf):
    shelf.perceptron, shelf.inputs = perceptron, lambda: (X,)
    done = CliRunner().invoke(app, ["laws", "shelf:perceptron", "--inputs", "shelf:inputs", "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_document_has_its_keys_and_nothing_else_is_printed(document):
    assert [*document] == ["version", "model", "inputs", "count", "approximate", "layers", "laws", "excluded"]
    assert [*document["layers"][0]] == ["layer", "laws", "approximate", "normalized_c", "residual", "remark"]
    assert [*document["laws"][0]] == [
        "name", "layer", "kind", "exact", "residual", "c", "normalized_c", "terms",
    ]  # fmt: skip
    assert [*document["laws"][0]["terms"][0]] == ["parameter", "kind", "indices", "exponent"]
    assert (document["version"], document["model"], document["inputs"]) == (2, "shelf:perceptron", "shelf:inputs")


def test_the_document_has_the_values_of_the_laws(document):
    torch.manual_seed(0)
    model = perceptron()
    first, bias, second = model[0].weight.double(), model[0].bias.double(), model[2].weight.double()
    expected = (first**2).sum(1) + bias**2 - (second**2).sum(0)
    assert document["count"] == 3
    assert [law["c"] for law in document["laws"]] == pytest.approx(expected.tolist(), rel=1e-12)
    assert [law["name"] for law in document["laws"]] == [law.name for law in find_laws(model, X)]
    assert document["layers"][0]["normalized_c"] == max(abs(law["normalized_c"]) for law in document["laws"])
    assert [row["laws"] for row in document["layers"]] == [3, 0]


FIRST = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
SECOND = torch.tensor([[0.0, 2.0]])


def law(neuron, residual, exact=True, layer="lin1"):
    terms = (
        Term("lin1.weight", (2, 2), (0,), ((neuron,),), Fraction(1)),
        Term("lin2.weight", (1, 2), (1,), ((neuron,),), Fraction(-1)),
    )
    return Law(f"{layer} {neuron}", "neuron", layer, neuron, terms, exact=exact, residual=residual)


def overview(laws, *excluded):
    layers = {name: [f"{name}.weight"] for name in ("lin1", "lin2", "lin3")}
    return {
        row["layer"]: row
        for row in layer_rows(Laws(laws, {"lin1.weight": FIRST, "lin2.weight": SECOND}, excluded), layers)
    }


def test_a_row_has_the_extremes_of_its_laws():
    row = overview([law(0, 1e-15), law(1, 1e-3, exact=False)])["lin1"]
    assert (row["laws"], row["approximate"], row["residual"]) == (2, 1, 1e-3)
    assert row["normalized_c"] == 1.0  # neuron 0: (25 - 0) / (25 + 0); neuron 1: (1 - 4) / (1 + 4)
    assert overview([law(1, 0.0)])["lin1"]["normalized_c"] == 0.6


def test_a_layer_without_laws_says_where_its_weights_are():
    table = overview([law(0, 0.0)])
    assert [table["lin2"][name] for name in ("laws", "normalized_c", "residual")] == [0, None, None]
    assert table["lin2"]["remark"] == "weights are in the laws of lin1"
    assert table["lin1"]["remark"] == ""
    assert table["lin3"]["remark"] == "no law moves its weights"


def test_laws_of_no_layer_have_a_row_at_the_end():
    assert [*overview([law(0, 0.0, layer="stream")])] == ["lin1", "lin2", "lin3", "stream"]


def test_an_exclusion_belongs_to_the_layers_it_names_as_words():
    by_path, by_parameter = Exclusion("operation aten.elu in lin2", "no rule"), Exclusion("lin2.bias", "unreached")
    other, law_of = Exclusion("lin22.weight", "unreached"), Exclusion("layer 1 (lin1), neuron 3", "failed")
    table = overview([], by_path, by_parameter, other, law_of)
    assert table["lin2"]["remark"] == "operation aten.elu in lin2: no rule; lin2.bias: unreached"
    assert table["lin1"]["remark"] == "layer 1 (lin1), neuron 3: failed"
    assert table["lin3"]["remark"] == "no law moves its weights"
