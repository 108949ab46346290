import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.models import gcn
from gatdiag.laws import find_laws
from gatdiag.remedies import leaky_relu_

X = torch.tensor([[-2.0, 3.0]])
WAYS = {
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, True),
    "F.relu_": F.relu_,
    "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(),
    "by name": lambda x: F.relu(input=x, inplace=False),
}


class Model(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        return self.way(x + 0)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_relu_is_leaky(way):
    model = Model(WAYS[way])
    applied = leaky_relu_(model, 0.5)
    assert model(X).tolist() == [[-1.0, 3.0]]
    assert "leaky ReLU with slope 0.5" in str(applied)
    applied.undo()
    assert model(X).tolist() == [[0.0, 3.0]]
    assert type(model) is Model
    assert "_gatdiag_slope" not in vars(model)


def test_a_second_slope_replaces_the_first_until_it_is_undone():
    model = Model(torch.relu)
    leaky_relu_(model, 0.5)
    with leaky_relu_(model, 0.25):
        assert model(X).tolist() == [[-0.5, 3.0]]
    assert model(X).tolist() == [[-1.0, 3.0]]


def test_copies_and_pickles_are_leaky_too():
    model = Model(F.relu)
    leaky_relu_(model, 0.5)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other(X).tolist() == [[-1.0, 3.0]]


def test_what_is_no_relu_stays():
    model = Model(torch.tanh)
    leaky_relu_(model)
    assert torch.equal(model(X), X.tanh())
    assert torch.relu(X).tolist() == [[0.0, 3.0]]


def test_the_laws_are_those_of_before():
    x, edge_index = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2], [1, 2, 3]])
    model = gcn(3, 2, 4, 3)
    before = len(find_laws(model, x, edge_index))
    leaky_relu_(model)
    assert len(find_laws(model, x, edge_index)) == before == 8


@pytest.mark.parametrize("slope", [0, -1, "x", float("nan")])
def test_a_slope_is_a_positive_number(slope):
    with pytest.raises(InputError):
        leaky_relu_(Model(torch.relu), slope)


@pytest.mark.parametrize(
    ("generate", "message"),
    [(torch.jit.script, r"compiled by torch\.jit\.script"), (torch.fx.symbolic_trace, r"traced by torch\.fx")],
    ids=["scripted", "traced"],
)
def test_code_that_torch_generated_is_refused(generate, message):
    model = generate(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with pytest.raises(ModelError, match=message):
        leaky_relu_(model)
    assert torch.equal(copy.deepcopy(model)(X), model(X))
