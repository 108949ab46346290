import json
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.laws import find_laws

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def perceptron():
    print("made a model")  # noqa: T201
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def document(monkeypatch):
    module = ModuleType("shelf")
    module.perceptron, module.inputs = perceptron, lambda: (X,)
    monkeypatch.setitem(sys.modules, "shelf", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(app, ["laws", "shelf:perceptron", "--inputs", "shelf:inputs", "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_document_has_its_keys_and_nothing_else_is_printed(document):
    assert [*document] == ["version", "model", "inputs", "count", "approximate", "layers", "laws", "excluded"]
    assert [*document["layers"][0]] == [
        "layer", "laws", "approximate", "normalized_c", "residual", "missing", "elsewhere",
    ]  # fmt: skip
    assert [*document["laws"][0]] == [
        "name", "layer", "kind", "exact", "residual", "c", "normalized_c", "terms",
    ]  # fmt: skip
    assert [*document["laws"][0]["terms"][0]] == ["parameter", "kind", "indices", "exponent"]
    assert (document["version"], document["model"], document["inputs"]) == (1, "shelf:perceptron", "shelf:inputs")


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
