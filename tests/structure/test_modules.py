"""Walks through modules, as torch has them and where torch has no end."""

import pytest
from torch import nn

from gatdiag.structure.modules import named_modules, named_parameters


@pytest.mark.parametrize("remove_duplicate", [True, False])
def test_a_walk_is_that_of_torch(remove_duplicate):
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.ModuleDict({"last": nn.Linear(2, 1)}))
    model[2].last.weight = shared.weight
    assert [*named_modules(model, remove_duplicate=remove_duplicate)] == [
        *model.named_modules(remove_duplicate=remove_duplicate)
    ]
    assert [name for name, _ in named_parameters(model, remove_duplicate=remove_duplicate)] == [
        name for name, _ in model.named_parameters(remove_duplicate=remove_duplicate)
    ]


def test_a_module_that_holds_what_holds_it_is_walked_once():
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].parent = model
    assert [path for path, _ in named_modules(model, remove_duplicate=False)] == ["", "0"]
