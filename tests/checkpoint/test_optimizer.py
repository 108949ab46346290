"""Moments are given to the parameters they belong to, or to none."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GIN, GATv2Conv

from gatdiag.checkpoint.optimizer import find_optimizers, read_optimizer_state
from tests.checkpoint.saved import trained


def moments(optimizer, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: state for parameter, state in optimizer.state.items()}


def stepped(model, parameters, kind=torch.optim.Adam):
    """An optimizer after a step in which each parameter has a gradient."""
    optimizer = kind(parameters)
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    return optimizer


def check(data, model, optimizer):
    state, notes = read_optimizer_state(data, model.state_dict())
    expected = moments(optimizer, model)
    assert state.moments.keys() == expected.keys()
    for name, entries in expected.items():
        assert state.moments[name].keys() == entries.keys()
        assert all(torch.equal(state.moments[name][key], value) for key, value in entries.items())
    return state, notes


def test_moments_by_order():
    model, optimizer = trained()
    state, notes = check({"optimizer": optimizer.state_dict()}, model, optimizer)
    assert notes == ()
    assert state.groups[0]["lr"] == 0.01
    assert "params" not in state.groups[0]


def test_the_first_of_several():
    model, optimizer = trained()
    other = torch.optim.SGD(model.parameters(), lr=1.0).state_dict()
    for several in ([optimizer.state_dict(), other], {"a": optimizer.state_dict(), "b": other}):
        assert check({"optimizers": several}, model, optimizer)[1] == ("Used the first of 2 optimizers",)


def test_names_in_the_file_decide():
    model, _ = trained()
    optimizer = stepped(model, reversed(list(model.named_parameters())))
    assert "param_names" in optimizer.state_dict()["param_groups"][0]
    check({"optimizer": optimizer.state_dict()}, model, optimizer)


def test_states_by_name_as_fsdp_writes_them():
    model, optimizer = trained()
    state = {f"module.{name}": dict(entries) for name, entries in moments(optimizer, model).items()}
    check({"optim": {"state": state, "param_groups": [{"params": list(state), "lr": 0.01}]}}, model, optimizer)


def test_two_groups_and_a_frozen_layer():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    optimizer = stepped(model, [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 1.0}])
    state, _ = check({"optimizer": optimizer.state_dict()}, model, optimizer)
    assert [group["lr"] for group in state.groups] == [0.001, 1.0]


@pytest.mark.parametrize("order", [[(2,), (1,), (0,)], [(1,), (0, 2)]])
def test_groups_of_the_same_shapes_are_not_told_apart_by_order(order):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    groups = [{"params": [p for number in of for p in model[number].parameters()]} for of in order]
    state, notes = read_optimizer_state({"optimizer": stepped(model, groups).state_dict()}, model.state_dict())
    assert not state.matched
    assert state.moments == {}
    assert "cannot be matched" in notes[0]


def test_groups_that_only_fit_in_one_way_are_told_apart():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = stepped(model, [{"params": model[:2].parameters()}, {"params": model[2].parameters(), "lr": 1.0}])
    check({"optimizer": optimizer.state_dict()}, model, optimizer)


def test_other_optimizers_count_if_they_hold_moments():
    model, optimizer = trained()
    fresh = torch.optim.Adam(model.parameters())
    several = [optimizer.state_dict(), fresh.state_dict(), optimizer.state_dict()]
    state, _ = read_optimizer_state({"optimizer_states": several}, model.state_dict())
    assert state.others == 1


def test_eps_of_a_gin_may_be_a_buffer():
    for train_eps in (False, True):
        model = GIN(2, 3, 2, out_channels=2, train_eps=train_eps)
        optimizer = stepped(model, model.parameters())
        check({"optimizer": optimizer.state_dict()}, model, optimizer)


@pytest.mark.parametrize("size", [3, 7])
def test_with_unknown_buffers_nothing_is_guessed(size):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].register_buffer("scale", torch.ones(size))
    state, notes = read_optimizer_state(
        {"optimizer": stepped(model, model.parameters()).state_dict()}, model.state_dict()
    )
    assert state.moments == {}
    assert state.groups[0]["lr"] == 0.001
    assert "cannot be matched" in notes[0]


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    optimizer = stepped(model, model.parameters())
    check({"optimizer": optimizer.state_dict()}, model, optimizer)


def test_shared_weights_that_are_saved_as_copies_count_once():
    model = nn.ModuleList([GATv2Conv(3, 4, share_weights=True), GATv2Conv(4, 2, share_weights=True)])
    optimizer = stepped(model, model.parameters())
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, notes = read_optimizer_state({"optimizer": optimizer.state_dict()}, copies)
    assert notes == ()
    assert state.moments.keys() == moments(optimizer, model).keys()
    for name, entries in moments(optimizer, model).items():
        assert torch.equal(state.moments[name]["exp_avg"], entries["exp_avg"])


@pytest.mark.parametrize(
    "strange",
    [
        {"optimizer": {"state": {}, "param_groups": []}},
        {"optimizer": {"state": {0: None, "a": {"exp_avg": 3}, (1, 2): {}}, "param_groups": [{"params": [[]]}]}},
        {"optimizer": {"state": {0: {}, (1, 2): {}, None: {}}, "param_groups": [{"params": [[], {}]}]}},
        {"optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": 3}},
        {"optimizer": {"state": {5: {}}, "param_groups": [{"params": [5, 5, 5]}]}},
    ],
)
def test_strange_states_have_no_moments(strange):
    state, _ = read_optimizer_state(strange, {"a": torch.ones(3)})
    assert not any(state.moments.values())


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD, torch.optim.Adafactor])
def test_state_that_holds_single_numbers_rows_and_columns(kind):
    model, _ = trained()
    optimizer = stepped(model, model.parameters(), kind)
    state, notes = check({"optimizer": optimizer.state_dict()}, model, optimizer)
    assert state.matched
    assert notes == ()


@pytest.mark.parametrize(
    "place",
    [
        lambda state: {"optimizer_G": state},
        lambda state: {"train": {"optim_g": state}},
        lambda state: {"everything": [0, {"adam": state}]},
    ],
)
def test_an_optimizer_is_found_under_any_key(place):
    model = nn.Linear(2, 2)
    state = stepped(model, model.parameters()).state_dict()
    assert [id(found) for found in find_optimizers({"model": model.state_dict(), **place(state)})] == [id(state)]
    data = {"optimizer": state, "again": state}
    data["itself"] = data
    assert [id(found) for found in find_optimizers(data)] == [id(state)]
