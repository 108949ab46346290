import pytest
import torch
from torch import nn

from gatdiag.errors import InputError
from gatdiag.remedies import register_


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.by_name = {"a": nn.Linear(2, 2)}
        self.weights = [nn.Parameter(torch.ones(2))]
        self.scale = torch.ones(2, requires_grad=True)
        self.constant = torch.ones(2)
        self.sizes, self.mixed = [2, 2], [nn.Linear(2, 2), 3]
        self.register_buffer("memory", torch.ones(2))
        self.known = nn.Linear(2, 2)
        self.again = [self.known]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.known(self.by_name["a"](x) * self.weights[0] * self.scale * self.constant * self.memory)


def test_what_holds_weights_and_nothing_else_is_registered_and_given_back():
    model, x = Model(), torch.ones(3, 2)
    before, state, attributes = model(x), [*model.state_dict()], set(vars(model))
    applied = register_(model)
    kinds = {"layers": "ModuleList", "by_name": "ModuleDict", "weights": "ParameterList", "scale": "Parameter"}
    assert {change.where: change.what for change in applied.changes} == {
        name: f"registered as {kind}" for name, kind in kinds.items()
    }
    assert len([*model.parameters()]) == 4 + 2 + 1 + 1 + 2
    assert torch.equal(model(x), before)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    applied.undo()
    assert ([*model.state_dict()], set(vars(model))) == (state, attributes)
    assert isinstance(model.layers, list)
    assert torch.equal(model(x), before)


def test_constants_and_buffers_are_registered_by_name():
    model = nn.Sequential(Model())
    applied = register_(model, "0.constant", "0.memory")
    assert {"0.constant", "0.memory"} <= {name for name, _ in model.named_parameters()}
    applied.undo()
    assert "memory" in dict(model[0].named_buffers())
    assert not isinstance(model[0].constant, nn.Parameter)


@pytest.mark.parametrize("name", ["missing", "missing.layers", "sizes", "mixed", ""])
def test_what_cannot_be_registered_is_said(name):
    model = Model()
    state = [*model.state_dict()]
    with pytest.raises(InputError):
        register_(model, "layers", name)
    assert [*model.state_dict()] == state


def test_where_all_is_registered_what_there_is_is_named():
    with pytest.raises(InputError, match=r"registered are known"):
        model = Model()
        register_(model)
        register_(model)
