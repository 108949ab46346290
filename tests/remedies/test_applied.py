"""What all remedies promise: off again in any order, with copies that live on, and nothing left by an interrupt."""

import copy
import pickle
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch_geometric.nn import GATConv, GATv2Conv, HeteroConv, LayerNorm, PairNorm

from gatdiag.experiments.models import Stack
from gatdiag.remedies import (
    Skip,
    initialize_,
    insert_after_,
    insertion,
    leaky,
    leaky_relu_,
    lipschitz_norm,
    lipschitz_normalize_,
    output,
    rebalance_,
    rescale_output_,
    weight_norm,
    weight_normalize_,
)
from gatdiag.remedies.applied import add_mixin
from gatdiag.structure import discover

EDGES = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def network():
    torch.manual_seed(0)
    model = Stack([GATv2Conv(6, 3, heads=2), GATv2Conv(6, 6), nn.Linear(6, 6)])
    return model, torch.optim.Adam(model.parameters())


REMEDIES = {
    "scores": lipschitz_normalize_,
    "norm": lambda model: insert_after_(model, "convs.*", LayerNorm(6)),
    "weights": lambda model: weight_normalize_(model, 2.0),
    "relu": leaky_relu_,
    "pairs": lambda model: insert_after_(model, "convs.*", PairNorm()),
    "skip": lambda model: insert_after_(model, "convs.*", Skip(0.5)),
    "output": lambda model: rescale_output_(model, 2.0, 1.0),
}
"""Name -> every remedy that stays in the forward pass, for a model whose ``convs`` keep 6 columns."""


def state_of(model, optimizer):
    """All that a remedy may touch, as something that is equal if it is."""
    layers = [
        (name, type(layer), sorted(vars(layer)), list(layer._modules), len(layer._forward_hooks))
        for name, layer in model.named_modules()
    ]
    weights = [(name, id(weight), weight.tolist()) for name, weight in model.named_parameters()]
    hooks = len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)
    return layers, weights, hooks, model(X, EDGES).tolist()


@pytest.mark.parametrize("order", list(permutations(REMEDIES, 3)), ids="-".join)
@pytest.mark.parametrize("back", [(0, 1, 2), (2, 0, 1)], ids=str)
def test_remedies_come_off_in_any_order(order, back):
    model, optimizer = network()
    before = state_of(model, optimizer)
    applied = [REMEDIES[kind](model) for kind in order]
    kinds = [layer.kind for layer in discover(model)]
    assert [kind for kind in kinds if not kind.endswith("Norm")] == ["GATv2Conv", "GATv2Conv", "Linear"]
    for number in back:
        applied[number].undo()
    assert state_of(model, optimizer) == before


@pytest.mark.parametrize("back", [(0, 1, 2), (1, 0, 2), (2, 0, 1)], ids=str)
def test_remedies_that_set_weights_are_undone_in_any_order(back):
    model, optimizer = network()

    def state():
        tensors = [tensor for weight in model.parameters() for tensor in (weight, weight.grad)]
        memory = [value for weight in model.parameters() for value in optimizer.state[weight].values()]
        return [tensor.detach().clone() for tensor in [*tensors, *memory]]

    model(X, EDGES).square().sum().backward()
    optimizer.step()
    before = state()
    applied = [
        initialize_(model, "xavier"),
        rebalance_(model, X, EDGES, optimizer=optimizer),
        initialize_(model, "balanced_orthogonal"),
    ]
    set_by_all = [weight.clone() for weight in model.parameters()]
    applied[back[0]].undo()
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), set_by_all, strict=True))
    for number in back:
        applied[number].undo()
    assert all(torch.equal(a, b) for a, b in zip(state(), before, strict=True))


@pytest.mark.parametrize("kind", REMEDIES)
def test_a_remedy_survives_copies_pickles_state_dicts_and_mixed_precision(kind):
    model, _ = network()
    REMEDIES[kind](model)
    model.eval()
    expected, keys = model(X, EDGES), list(model.state_dict())
    pickled = pickle.loads(pickle.dumps(model))
    fresh, _ = network()
    REMEDIES[kind](fresh)
    fresh.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickled, pickle.loads(pickle.dumps(pickled)), copy.deepcopy(pickled), fresh):
        assert torch.equal(twin.eval()(X, EDGES), expected)
        assert list(twin.state_dict()) == keys
        assert [repr(layer) for layer in twin.modules()] == [repr(layer) for layer in model.modules()]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(twin(X, EDGES).float(), expected, rtol=0.05, atol=0.05)
        twin.train()(X, EDGES).square().sum().backward()
        assert all(weight.grad.isfinite().all() for weight in twin.parameters())


def test_layers_with_several_remedies_are_pickled():
    model, _ = network()
    for apply in (REMEDIES["norm"], REMEDIES["weights"], REMEDIES["scores"]):
        apply(model)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X, EDGES), model(X, EDGES))


def test_copies_live_on_when_a_remedy_is_undone():
    model, _ = network()
    with insert_after_(model, "convs.2", Skip()), weight_normalize_(model, 2.0):
        expected = model(X, EDGES)
        best = copy.deepcopy(model)
    assert not torch.equal(model(X, EDGES), expected)
    assert torch.equal(best(X, EDGES), expected)


class Heterogeneous(nn.Module):
    def __init__(self):
        super().__init__()
        relations = {
            ("paper", "cites", "paper"): lambda: GATConv(6, 3, heads=2, residual=True, edge_dim=2),
            ("author", "writes", "paper"): lambda: GATv2Conv((6, 6), 3, heads=2, add_self_loops=False),
            ("paper", "of", "author"): lambda: GATConv((6, 6), 6, add_self_loops=False),
        }
        layers = [{relation: make() for relation, make in relations.items()} for _ in range(2)]
        self.convs = nn.ModuleList([HeteroConv(layer) for layer in layers])

    def forward(self, x, edges, features):
        for conv in self.convs:
            x = conv(x, edges, edge_attr_dict=features)
        return x["paper"]


def test_a_heterogeneous_model_takes_every_remedy_and_gives_it_back():
    torch.manual_seed(0)
    model = Heterogeneous()
    writes = torch.tensor([[0, 1, 2, 0], [0, 3, 4, 1]])
    edges = {
        ("paper", "cites", "paper"): EDGES,
        ("author", "writes", "paper"): writes,
        ("paper", "of", "author"): writes.flip(0),
    }
    given = {"paper": X, "author": X[:3]}, edges, {("paper", "cites", "paper"): torch.randn(5, 2)}
    before, state, kinds = model(*given), copy.deepcopy(model.state_dict()), [type(layer) for layer in model.modules()]
    applied = [
        lipschitz_normalize_(model),
        insert_after_(model, "convs.*.convs.*", PairNorm()),
        weight_normalize_(model, 2.0),
        insert_after_(model, "convs.*.convs.*", Skip()),
    ]
    assert [len(one.changes) for one in applied] == [6, 6, 12, 6]
    model(*given).square().sum().backward()
    assert sum(weight.grad is not None for weight in model.parameters()) > 30
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
    for one in applied:
        one.undo()
    assert torch.equal(model(*given), before)
    assert [type(layer) for layer in model.modules()] == kinds
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_parametrization_of_the_users_stays():
    model, _ = network()
    applied = insert_after_(model, "convs.2", Skip())
    parametrizations.weight_norm(model.convs[2])
    applied.undo()
    assert nn.utils.parametrize.is_parametrized(model.convs[2], "weight")
    assert model(X, EDGES).isfinite().all()


@pytest.mark.parametrize("kind", REMEDIES)
def test_an_interrupt_halfway_leaves_nothing_behind(kind, monkeypatch):
    model, optimizer = network()
    layers, seen = len(REMEDIES[kind](network()[0]).changes), []
    before = state_of(model, optimizer)

    def interrupt(layer, mixin):
        seen.append(layer)
        if len(seen) == min(layers, 2):
            raise KeyboardInterrupt
        add_mixin(layer, mixin)

    for module in (insertion, leaky, lipschitz_norm, output, weight_norm):
        monkeypatch.setattr(module, "add_mixin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        REMEDIES[kind](model)
    assert state_of(model, optimizer) == before
