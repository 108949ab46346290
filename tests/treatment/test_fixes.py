"""Each fix on each kind of model it is offered for: the code to paste does what `treat` does."""

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import GAT, GCN, GIN, PNA, EdgeCNN, GraphSAGE

import gatdiag
from gatdiag.diagnosis import CAUSES, remedy
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.fixes import _PRINTED, GLOROT, Action
from gatdiag.treatment import ACTIONS
from gatdiag.treatment.actions import TreatedModel, apply_actions

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, 40, (2, 160), generator=torch.Generator().manual_seed(1))
MODELS = {
    "GCN": lambda: GCN(8, 8, 4, 3),
    "GCN with layer norm": lambda: GCN(8, 8, 4, 3, norm="layer"),
    "GCN with batch norm": lambda: GCN(8, 8, 4, 3, norm="batch"),
    "GAT": lambda: GAT(8, 8, 4, 3),
    "GATv2 with heads": lambda: GAT(8, 8, 4, 3, heads=2, v2=True),
    "GraphSAGE": lambda: GraphSAGE(8, 8, 4, 3),
    "GIN": lambda: GIN(8, 8, 4, 3),
    "EdgeCNN": lambda: EdgeCNN(8, 8, 4, 3),
    "PNA": lambda: PNA(8, 8, 4, 3, aggregators=["sum"], scalers=["identity"], deg=torch.ones(9, dtype=torch.long)),
}


def made(kind):
    torch.manual_seed(0)
    return MODELS[kind]()


@pytest.fixture(scope="module", params=MODELS)
def recorded(request, tmp_path_factory):
    """A kind of model, and what a diagnosis knows of one step of it."""
    model = made(request.param)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path_factory.mktemp("run") / "run"
    with gatdiag.watch(model, folder, laws=False):
        F.cross_entropy(model(X, EDGES), torch.arange(40) % 3).backward()
        optimizer.step()
    return request.param, Facts(gatdiag.load(folder))


FIXES = {
    "glorot": lambda facts: GLOROT.actions,
    "dead units": lambda facts: CAUSES["dead-units"].remedy.actions,
    "attention": lambda facts: [remedy.reinitialize_attention(facts, [layer["name"] for layer in facts.layers])],
    "normalization and skips": lambda facts: getattr(
        remedy.insert_modules(facts, "LayerNorm", "ReLU", "Skip"), "actions", ()
    ),
    "unfreeze": lambda facts: [Action("unfreeze")],
    "rows normalized": lambda facts: [Action("replace_batch_norms", {"norms": tuple(facts.signals["batch_norms"])})],
    "momentum": lambda facts: [Action("norm_momentum", {"value": 0.5})],
}


def after_pasting(kind, actions):
    model = made(kind)
    torch.manual_seed(1)
    for action in actions:
        exec(action.code, {"model": model, "torch": torch, "gatdiag": gatdiag, "x": X, "edge_index": EDGES})
    return model


def after_treating(kind, actions):
    model = made(kind)
    torch.manual_seed(1)
    treated = TreatedModel(model, (X, EDGES))
    with treated.contexts:
        apply_actions(treated, actions)
    return model


@pytest.mark.parametrize("fix", FIXES)
def test_what_is_pasted_is_what_is_treated(recorded, fix):
    kind, facts = recorded
    actions = [action for action in FIXES[fix](facts) if action is not None]
    pasted, treated = after_pasting(kind, actions), after_treating(kind, actions)
    assert pasted.state_dict().keys() == treated.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(pasted.parameters(), treated.parameters(), strict=True))
    assert torch.equal(pasted.eval()(X, EDGES), treated.eval()(X, EDGES))


def test_dead_weights_are_drawn_anew_by_the_names_they_have(recorded, tmp_path):
    kind, _ = recorded
    model = made(kind)
    name = next(name for name, weight in model.named_parameters() if name.startswith("convs.1") and weight.dim() == 2)
    with torch.no_grad():
        model.get_parameter(name)[0] = 0
    torch.save(model.state_dict(), tmp_path / "dead.pt")
    inspection = gatdiag.checkpoint.inspect(
        [gatdiag.checkpoint.open_checkpoint(tmp_path / "dead.pt")], tmp_path / "run"
    )
    (found,) = [one for one in gatdiag.diagnose(inspection.run) if one.code == "dead-weights" and one.actions]
    assert found.actions[0].settings["parameters"] == (name,)
    exec(found.remedy, {"model": model, "torch": torch})
    assert model.get_parameter(name)[0].norm() > 0


def test_adam_in_place_of_the_optimizer_is_torchs():
    def train(optimizer, model):
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(X, EDGES), torch.arange(40) % 3).backward()
            optimizer.step()

    usual, treated = made("GCN"), made("GCN")
    train(torch.optim.Adam(usual.parameters(), lr=0.01, weight_decay=0.1), usual)
    change = TreatedModel(treated)
    with change.contexts:
        apply_actions(change, [Action("adam", {"lr": 0.01, "weight_decay": 0.1})])
        train(torch.optim.SGD(treated.parameters(), lr=100.0), treated)
    assert all(torch.allclose(a, b) for a, b in zip(usual.parameters(), treated.parameters(), strict=True))


def test_every_action_prints_itself():
    assert {*_PRINTED} == {*ACTIONS}
