"""Each fix on each kind of model: what `treat` does and what the pasted code does is the same, and neither fails."""

import copy
from functools import cache
from pathlib import Path
from re import findall
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import gatdiag
from gatdiag.diagnosis import CAUSES, inputs, precision, remedy, targets
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.fixes import _PRINTED, GLOROT, OF_DATA, Action, Remedy, paste, variable
from gatdiag.roles import FEATURE
from gatdiag.treatment import ACTIONS
from gatdiag.treatment.actions import TreatedModel, apply_actions
from tests.treatment.kinds import EDGES, KINDS, X
from tests.treatment.pasting import Pasted

STEPS = 3


def made(kind):
    torch.manual_seed(0)
    return KINDS[kind].make()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(kind, model, optimizer, given, each_step=lambda: None):
    """Train as all kinds do: gradients are never cleared, so that each fix of the loop changes something."""
    torch.manual_seed(2)
    for _ in range(STEPS):
        each_step()
        out = KINDS[kind].call(model, given)
        F.cross_entropy(out, torch.arange(len(out)) % out.shape[1]).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def facts_of(tmp_path_factory):
    """A kind of model -> what a diagnosis knows of its training, which is recorded once."""

    @cache
    def recorded(kind):
        model = made(kind)
        folder = tmp_path_factory.mktemp("run") / "run"
        with gatdiag.watch(model, folder, laws=True):
            train(kind, model, make_optimizer(model), KINDS[kind].inputs)
        return Facts(gatdiag.load(folder))

    return recorded


def first_input(facts, action):
    names = [one["name"] for one in facts.inputs][:1]
    return inputs._change(facts, Action(action, {"names": tuple(names)})) if names else None


def absolute_weights(facts):
    known = "edge_weight" in facts.signals["arguments"]
    return Remedy(Action("absolute_inputs", {"names": ("edge_weight",)})) if known else None


def matrices(facts):
    return [one for one in facts.parameters.values() if one["role"] == FEATURE]


def batch_norms(facts):
    return tuple(facts.signals.get("batch_norms") or ())


def with_batch_norms(facts, action, **settings):
    return Remedy(Action(action, settings)) if batch_norms(facts) else None


def fresh_attention(facts):
    action = remedy.reinitialize_attention(facts, [layer["name"] for layer in facts.layers])
    return action and Remedy(action)


FIXES = {  # what a diagnosis proposes for a run; None if it has nothing of the kind to propose
    "fresh weights": lambda facts: GLOROT,
    "dead units": lambda facts: CAUSES["dead-units"].remedy,
    "balanced": lambda facts: Remedy(remedy.balanced_initialization(facts), remedy.use_adam(facts)),
    "attention": fresh_attention,
    "dead weights": lambda facts: Remedy(remedy.draw(matrices(facts)) or ""),
    "normalization": lambda facts: remedy.insert_modules(facts, "LayerNorm"),
    "skips": lambda facts: remedy.insert_modules(facts, "LayerNorm", "ReLU", "Skip"),
    "unfreeze": lambda facts: Remedy(Action("unfreeze")),
    "register": lambda facts: Remedy(Action("register")) if facts.signals["foreign_leaves"] else None,
    "dropout": lambda facts: Remedy(Action("dropout", {"attributes": tuple(facts.signals["dropout"]), "rate": 0.5})),
    "output": lambda facts: Remedy(Action("rescale_output", {"scale": 2.0, "shift": 1.0})),
    "clear": lambda facts: CAUSES["gradients-not-cleared"].remedy,
    "rate": lambda facts: remedy.change_learning_rate(facts, 0.02),
    "constant rate": lambda facts: Remedy(Action("constant_rate", {"value": 0.01})),
    "decay": lambda facts: Remedy(remedy.change_optimizer(facts, "weight_decay", {"weight_decay": 0.0}, value=0.0)),
    "momentum": lambda facts: Remedy(remedy.set_in_optimizer(facts, "momentum", 0.5)),
    "rate and momentum": lambda facts: Remedy(
        *remedy.change_learning_rate(facts, 0.02).fixes, remedy.set_in_optimizer(facts, "momentum", 0.5)
    ),
    "rows normalized": lambda facts: with_batch_norms(facts, "replace_batch_norms", norms=batch_norms(facts)),
    "momentum of norms": lambda facts: with_batch_norms(facts, "norm_momentum", value=0.5),
    "single precision": precision._in_single_precision,
    "Adam": lambda facts: Remedy(remedy.use_adam(facts)),
    "all parameters": lambda facts: Remedy(remedy.optimize_all(facts)),
    "one optimizer": lambda facts: Remedy(remedy.keep_optimizer(facts)),
    "inputs standardized": lambda facts: first_input(facts, "standardize_inputs"),
    "inputs finite": lambda facts: first_input(facts, "replace_non_finite_inputs"),
    "edge weights": absolute_weights,
    "several": lambda facts: Remedy(
        *remedy.change_learning_rate(facts, 0.02).fixes, Action("clear_gradients"), *GLOROT.fixes,
        remedy.change_optimizer(facts, "weight_decay", {"weight_decay": 0.0}, value=0.0),
    ),
}  # fmt: skip
WITHOUT_STACK = ("weight-normed", "EdgeCNN", "PNA", "at the root", "LSTM", "CNN", "unregistered")
STACKS = tuple(kind for kind in KINDS if kind not in WITHOUT_STACK)
ONLY_FOR = {  # the kinds of models that there is something to propose for; all, if it is not here
    "attention": ("GAT", "GATv2 with heads", "TransformerConv"),
    "normalization": STACKS,
    "skips": STACKS,
    "register": ("unregistered",),
    "rows normalized": ("GCN with batch norm", "CNN"),
    "momentum of norms": ("GCN with batch norm", "CNN"),
    "edge weights": ("GCN of weighted edges",),
}
OFFERED = {kind: [fix for fix in FIXES if kind in ONLY_FOR.get(fix, KINDS)] for kind in KINDS}
NOT_OFFERED = {  # what would fail is text that says when it can be done
    "to_hetero": {"dead units": {"leaky_relu"}, "output": {"rescale_output"}},
    "weight-normed": {name: {"initialize"} for name in ("fresh weights", "dead units", "balanced", "several")},
}


def after_pasting(kind, code):
    given = copy.deepcopy(dict(KINDS[kind].inputs))
    data = given.get("data", SimpleNamespace(**given))
    pasted = Pasted(code, {"model": made(kind), "data": data, **{variable(name): x for name, x in given.items()}})
    torch.manual_seed(1)
    pasted.after_making_the_model()
    for name in given:
        given[name] = getattr(data, name) if name in OF_DATA else pasted.names[variable(name)]
    model = pasted.names["model"]
    pasted.names["optimizer"] = make_optimizer(model)
    pasted.after_making_the_optimizer()
    train(kind, model, pasted.names["optimizer"], given, pasted.in_each_step)
    return model, KINDS[kind].call(model.eval(), given)


def after_treating(kind, actions):
    model, given = made(kind), KINDS[kind].inputs
    torch.manual_seed(1)
    args, keywords = ((), given) if KINDS[kind].is_by_name else (tuple(given.values()), {})
    treated = TreatedModel(model, args, keywords)
    with treated.contexts:
        apply_actions(treated, actions)
        train(kind, model, make_optimizer(model), given)
        assert len(treated.changes) >= len(actions)
        return model, KINDS[kind].call(model.eval(), given)


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_proposed_is_proposed(facts_of, kind):
    facts = facts_of(kind)
    assert [fix for fix, propose in FIXES.items() if propose(facts) is not None] == OFFERED[kind]


@pytest.mark.parametrize(("kind", "fix"), [(kind, fix) for kind in KINDS for fix in OFFERED[kind]])
def test_what_is_pasted_is_what_is_treated(facts_of, kind, fix):
    facts = facts_of(kind)
    proposed = FIXES[fix](facts)
    finding = facts.finding("dead-units", "", remedy=proposed)
    refused = {action.name for action in proposed.actions} - {action.name for action in finding.actions}
    assert refused == NOT_OFFERED.get(kind, {}).get(fix, set())
    treated, out = after_treating(kind, finding.actions)
    codes = [paste(finding.actions)] if refused else [paste(finding.actions), finding.remedy]
    for code in codes:
        pasted, same = after_pasting(kind, code)
        assert pasted.state_dict().keys() == treated.state_dict().keys(), code
        for name, weight in pasted.state_dict().items():
            torch.testing.assert_close(weight, treated.state_dict()[name], msg=lambda text: f"{name}: {text}\n{code}")
        torch.testing.assert_close(out, same)


@pytest.mark.parametrize("kind", ["transformer"])
def test_what_is_inserted_stays_in_evaluation(kind):
    model = made(kind)
    for name in ("encoder.layers.0.linear2", "encoder.layers.1.self_attn"):
        gatdiag.remedies.insert_after_(model, name, gatdiag.remedies.Skip(5.0))
    expected = KINDS[kind].call(model, KINDS[kind].inputs)
    with torch.no_grad():
        torch.testing.assert_close(KINDS[kind].call(model.eval(), KINDS[kind].inputs), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_dead_weights_are_drawn_anew_by_the_names_they_have(tmp_path, kind):
    model = made(kind)
    name = next(name for name, one in model.named_parameters() if one.dim() == 2 and "parametriz" not in name)
    with torch.no_grad():
        model.get_parameter(name)[0] = 0
    torch.save(model.state_dict(), tmp_path / "dead.pt")
    inspection = gatdiag.checkpoint.inspect(
        [gatdiag.checkpoint.open_checkpoint(tmp_path / "dead.pt")], tmp_path / "run"
    )
    for found in gatdiag.diagnose(inspection.run):
        if found.code == "dead-weights":
            assert found.actions
            exec(found.remedy, {"model": model, "torch": torch})
            assert model.get_parameter(found.actions[0].settings["parameters"][0])[0].norm() > 0


def test_adam_in_place_of_the_optimizer_is_torchs():
    def steps(optimizer, model):
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(X, EDGES), torch.arange(40) % 3).backward()
            optimizer.step()

    usual, treated = made("GraphSAGE"), made("GraphSAGE")
    steps(torch.optim.Adam(usual.parameters(), lr=0.01, weight_decay=0.1), usual)
    change = TreatedModel(treated)
    with change.contexts:
        apply_actions(change, [Action("adam", {"lr": 0.01, "weight_decay": 0.1})])
        steps(torch.optim.SGD(treated.parameters(), lr=100.0), treated)
    assert all(torch.allclose(a, b) for a, b in zip(usual.parameters(), treated.parameters(), strict=True))


def test_every_action_is_proposed_somewhere_printed_and_executed_here():
    sources = [path.read_text() for path in Path(gatdiag.diagnosis.__file__).parent.glob("*.py")]
    named = {name for text in sources for name in findall(r'(?:Action\(|change_optimizer\(facts,)\s*"(\w+)"', text)}
    named |= {name for text in sources for name in findall(r'"((?!zero)\w+_inputs)"', text)}
    assert named == {*ACTIONS} == {*_PRINTED}


def test_targets_far_from_zero_are_learned_by_an_output_in_their_units():
    facts = SimpleNamespace(output={"implied_mean": -99.98, "implied_variance": 4.0}, is_adam=True, steps_column=None)
    facts.steps_column, facts.groups = lambda _: np.array([0.1]), []
    fix = targets._rescale_output(facts, 2.0)
    assert fix.code.startswith("gatdiag.remedies.rescale_output_(model, 2, -99.98)  # or train on")
