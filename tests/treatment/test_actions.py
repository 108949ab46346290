import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gatdiag
from gatdiag.diagnosis import Action, remedy
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.fixes import GLOROT, Remedy, paste
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments import models
from gatdiag.experiments.settings import Network
from gatdiag.remedies import standardize
from gatdiag.treatment.actions import TreatedModel, apply_actions
from tests.treatment.loops import Silent, X, loop, make


def trained(actions, train):
    torch.manual_seed(0)
    model = make()
    treated = TreatedModel(model)
    with treated.contexts:
        apply_actions(treated, actions)
        train(model, Silent)
    return [parameter.detach() for parameter in model.parameters()]


def same(one, other):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_learning_rate_is_scaled_while_it_steps_and_schedules_stay(optimizer):
    def schedule(chosen):
        return StepLR(chosen, 3, 0.5)

    seen = []
    actions = [Action("learning_rate", {"factor": 0.1})]
    got = trained(actions, loop(0.5, 9, optimizer, schedule=schedule, seen=seen))
    assert same(got, trained([], loop(0.05, 9, optimizer, schedule=schedule)))
    assert [lr for lr, _ in seen] == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625])


def test_settings_that_are_changed_again_are_changed_once_in_each_step():
    seen = []
    twice = [Action("learning_rate", {"factor": factor}) for factor in (0.1, 0.5)]
    decay = [Action("weight_decay", {"value": value}) for value in (0.1, 0.01)]
    got = trained([*twice, *decay], loop(0.5, 9, weight_decay=0.5, seen=seen))
    assert same(got, trained([], loop(0.025, 9, weight_decay=0.01)))
    assert {lr for lr, _ in seen} == {0.5}


def test_a_constant_rate_overrides_a_schedule():
    def collapse(chosen):
        return StepLR(chosen, 1, 0.1)

    got = trained([Action("constant_rate", {"value": 0.5})], loop(0.5, 9, schedule=collapse))
    assert same(got, trained([], loop(0.5, 9)))


def test_weight_decay_is_another_while_it_steps():
    got = trained([Action("weight_decay", {"value": 0.01})], loop(0.5, 9, weight_decay=0.5))
    assert same(got, trained([], loop(0.5, 9, weight_decay=0.01)))


def test_gradients_are_cleared_after_each_step():
    got = trained([Action("clear_gradients")], loop(0.5, 9, clears=False))
    assert same(got, trained([], loop(0.5, 9)))


def test_optimizers_of_other_models_are_left_alone():
    other = nn.Linear(2, 2)
    chosen = torch.optim.SGD(other.parameters(), lr=1.0)
    treated, before = TreatedModel(make()), copy.deepcopy(other)
    with treated.contexts:
        apply_actions(treated, [Action("learning_rate", {"factor": 0.0}), Action("clear_gradients")])
        other(torch.ones(1, 2)).sum().backward()
        chosen.step()
    assert other.weight.grad is not None
    assert not torch.equal(other.weight, before.weight)


def test_a_step_that_raises_leaves_the_rate_as_it_was():
    model = make()
    chosen, treated = torch.optim.SGD(model.parameters(), lr=1.0), TreatedModel(model)

    def closure():
        raise ArithmeticError

    with treated.contexts:
        apply_actions(treated, [Action("learning_rate", {"factor": 0.1})])
        with pytest.raises(ArithmeticError):
            chosen.step(closure)
    assert chosen.param_groups[0]["lr"] == 1.0


def test_inputs_are_those_of_the_pasted_line():
    for scaled in (50 * X + 3, 1e-10 * X):
        got = trained([Action("standardize_inputs", {"names": ("input",)})], loop(0.1, 5, x=scaled))
        assert same(got, trained([], loop(0.1, 5, x=standardize(scaled))))
    broken = X.clone()
    broken[3, 1], broken[4, 2] = torch.nan, torch.inf
    got = trained([Action("replace_non_finite_inputs", {"names": ("input",)})], loop(0.1, 5, x=broken))
    high = broken[broken.isfinite()].max().item() + 1
    assert same(got, trained([], loop(0.1, 5, x=torch.nan_to_num(broken, nan=0.0, posinf=high))))


def test_inputs_that_are_trained_are_standardized_in_each_step():
    model, x = make(), X.clone().requires_grad_()
    given = ((X - X.mean(0)) / X.std(0)).requires_grad_()
    model(given).square().sum().backward()
    treated = TreatedModel(model)
    with treated.contexts:
        apply_actions(treated, [Action("standardize_inputs", {"names": ("input",)})])
        for _ in range(2):
            model(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * given.grad / X.std(0))


def test_a_first_batch_of_one_row_has_a_size_but_no_deviation():
    model, row = make(), torch.full_like(X[:1], -4.0)
    expected = model((X + 4) / 4)
    treated = TreatedModel(model)
    with treated.contexts:
        apply_actions(treated, [Action("standardize_inputs", {"names": ("input",)})])
        model(row)
        torch.testing.assert_close(model(X), expected)


def test_inputs_that_never_come_are_said():
    with pytest.raises(ModelError, match="change the data"):
        trained([Action("standardize_inputs", {"names": ("data.x",)})], loop(0.1, 2))


def test_frozen_parameters_are_trained():
    model = make().requires_grad_(False)
    apply_actions(TreatedModel(model), [Action("unfreeze")])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "action",
    [Action("pray"), Action("learning_rate", {"speed": 2}), Action("insert_after", {"layers": ("0",), "module": "?"})],
)
def test_what_is_no_action_is_said(action):
    with pytest.raises(InputError):
        apply_actions(TreatedModel(make()), [action])


# --- the line to paste and the action are the same --------------------------------------------------------------------


def facts_of(model, folder):
    x, edge_index = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.randint(12, (2, 30))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, folder):
        model(x, edge_index).square().mean().backward()
        optimizer.step()
    return Facts(gatdiag.load(folder)), x, edge_index


LINES = {
    "balanced stack": ("gatv2", False, lambda facts: remedy.balanced_initialization(facts)),
    "balanced by laws": ("sage", False, lambda facts: remedy.balanced_initialization(facts)),
    "balanced stream": ("gcn", True, lambda facts: remedy.balanced_initialization(facts)),
    "normalized": ("gcn", True, lambda facts: remedy.insert_modules(facts, "LayerNorm")),
    "skips": ("gat", False, lambda facts: remedy.insert_modules(facts, "LayerNorm", "ReLU", "Skip")),
    "attention": ("gat", False, lambda facts: remedy.reinitialize_attention(facts, ["convs.1", "convs.2"])),
    "queries": ("transformer", False, lambda facts: remedy.reinitialize_attention(facts, ["convs.1"])),
    "fresh": ("gin", False, lambda facts: GLOROT),
}


@pytest.mark.parametrize("case", LINES)
def test_the_line_to_paste_does_what_the_action_does(case, tmp_path):
    kind, residual, build = LINES[case]
    torch.manual_seed(0)
    pasted = models.build(Network(model=kind, layers=5, width=8, bias=True, residual=residual), 6, 3)
    facts, x, edge_index = facts_of(pasted, tmp_path / "run")
    treated, fix = copy.deepcopy(pasted), Remedy(*getattr(build(facts), "fixes", [build(facts)]))
    assert fix.actions
    torch.manual_seed(1)
    exec(fix.code, {"model": pasted, "x": x, "edge_index": edge_index, "torch": torch, "gatdiag": gatdiag})
    torch.manual_seed(1)
    apply_actions(TreatedModel(treated, (x, edge_index)), fix.actions)
    one, other = pasted.state_dict(), treated.state_dict()
    assert [*one] == [*other]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(pasted(x, edge_index), treated(x, edge_index))


def test_layers_without_numbers_are_named(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = GCNConv(6, 6), GCNConv(6, 6), GCNConv(6, 2)

        def forward(self, x, edge_index):
            return self.last(self.second(self.first(x, edge_index).relu(), edge_index).relu(), edge_index)

    facts, *_ = facts_of(Named(), tmp_path / "run")
    fix = remedy.insert_modules(facts, "Skip")
    assert "for name in ['first', 'second']:" in fix.code
    assert fix.actions == (Action("insert_after", {"layers": ("first", "second"), "module": "Skip", "scale": 0.71}),)


# --- the optimizer that is missing parameters, or made anew -----------------------------------------------------------


def parameters_of(model):
    return [parameter.detach() for parameter in model.parameters()]


def train_with(make_optimizer, actions=(), steps=5, model=None):
    """Train with an optimizer that a function makes of the model and the step."""
    torch.manual_seed(0)
    treated = TreatedModel(model or make())
    with treated.contexts:
        apply_actions(treated, actions)
        for step in range(steps):
            treated.model(X).square().mean().backward()
            make_optimizer(treated.model, step).step()
            treated.model.zero_grad()
    return parameters_of(treated.model)


def once(kind, parameters, **settings):
    known = []

    def optimizer(model, step):
        known[:] = known or [kind(parameters(model), **settings)]
        return known[0]

    return optimizer


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(
    "parameters", [lambda model: model[2].parameters(), lambda model: copy.deepcopy(model).parameters()]
)
def test_parameters_that_the_optimizer_lacks_are_added_to_it(kind, parameters):
    got = train_with(once(kind, parameters, lr=0.1), [Action("optimize_all", {"optimizer": None})])
    assert same(got, train_with(once(kind, lambda model: model.parameters(), lr=0.1)))


def test_lbfgs_gets_the_parameters_that_it_lacks():
    def train(parameters, actions):
        torch.manual_seed(0)
        treated = TreatedModel(make())
        with treated.contexts:
            apply_actions(treated, actions)
            chosen = torch.optim.LBFGS(parameters(treated.model), lr=0.1)

            def closure():
                treated.model.zero_grad()
                loss = treated.model(X).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                chosen.step(closure)
        return parameters_of(treated.model)

    got = train(lambda model: model[2].parameters(), [Action("optimize_all", {"optimizer": None})])
    assert same(got, train(lambda model: model.parameters(), []))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_new_optimizers_continue_with_what_the_first_one_remembers(kind):
    settings = {"lr": 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})}

    def anew(model, step):
        return kind(model.parameters(), **settings)

    got = train_with(anew, [Action("keep_optimizer", {"optimizer": None})])
    assert same(got, train_with(once(kind, lambda model: model.parameters(), **settings)))
    assert not same(got, train_with(anew))


def test_weight_decay_is_lowered_only_where_there_is_some():
    def groups(decay):
        return lambda model: [
            {"params": model[0].parameters(), "weight_decay": 0.0},
            {"params": model[2].parameters(), "weight_decay": decay},
        ]

    got = train_with(once(torch.optim.SGD, groups(0.5), lr=0.1), [Action("weight_decay", {"value": 0.01})])
    assert same(got, train_with(once(torch.optim.SGD, groups(0.01), lr=0.1)))


def test_a_large_eps_is_lowered():
    def adam(eps):
        return once(torch.optim.Adam, lambda model: model.parameters(), lr=0.01, eps=eps)

    got = train_with(adam(0.5), [Action("setting", {"name": "eps", "value": 1e-8})])
    assert same(got, train_with(adam(1e-8)))


def test_adam_has_the_weight_decay_that_another_finding_asks_for():
    decay = {"class": "SGD", "settings": {"lr": 9.0}, "changed": {"weight_decay": 0.01}}
    adam = {"lr": 0.01, "weight_decay": 0.5, "optimizer": {"class": "Adam", "settings": {}, "changed": {"lr": 0.01}}}
    actions = [Action("adam", adam), Action("weight_decay", {"value": 0.01, "optimizer": decay})]
    usual = once(torch.optim.SGD, lambda model: model.parameters(), lr=9.0, weight_decay=0.5)
    expected = once(torch.optim.Adam, lambda model: model.parameters(), lr=0.01, weight_decay=0.01)
    assert same(train_with(usual, actions), train_with(expected))
    assert paste(actions).startswith("optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)")


def test_factors_of_the_learning_rate_multiply_in_what_is_printed():
    def rate(factor, lr):
        return Action("learning_rate", {"factor": factor, "optimizer": {"class": "SGD", "settings": {}, "changed": lr}})

    assert "lr=0.02)" in paste([rate(0.1, {"lr": 0.1}), rate(0.2, {"lr": 0.5})])


# --- inputs in containers ---------------------------------------------------------------------------------------------


class Nested(nn.Module):
    def forward(self, pair, by_type, data, *more):
        return pair[1], by_type["a"], data.x, more[0]


def test_inputs_are_changed_wherever_they_are():
    model, graph = Nested(), Data(x=3 * X, edge_index=torch.zeros(2, 1, dtype=torch.long))
    given = ((X, -X), {"a": -X, "b": X}, graph, -X)
    treated = TreatedModel(model, given)
    with treated.contexts:
        apply_actions(treated, [Action("absolute_inputs", {"names": ("pair[1]", "by_type['a']", "x", "argument 4")})])
        found = model(*given)
    assert all(torch.equal(one, size * X.abs()) for one, size in zip(found[:2], (1, 1), strict=True))
    assert torch.equal(found[2], 3 * X.abs())
    assert torch.equal(graph.x, 3 * X)  # the user's stays as it is
