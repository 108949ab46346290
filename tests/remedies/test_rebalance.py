import copy
import math

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.errors import InputError, ModelError, OptimizerError
from gatdiag.experiments.models import Stack, gat, gcn
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.synthetic import block_model
from gatdiag.experiments.training import train
from gatdiag.laws.outputs import floating_tensors
from gatdiag.remedies import rebalance as rebalance_module
from gatdiag.remedies import rebalance_
from gatdiag.remedies.orbit import Orbit, multiply_
from tests.laws.models.operations import Written
from tests.laws.zoo import ZOO, build
from tests.remedies.stacks import EDGES, STACKS, X, initialized, interrupts, seeded, unchanged

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def loss(output):
    return F.cross_entropy(output, LABELS)


def roughened(model, spread=0.5, seed=0):
    """Every weight multiplied by a random factor, so that nothing balances."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_((spread * torch.randn(parameter.shape, generator=generator)).exp().to(parameter))
    return model


def unbalanced(model, *inputs, spread, seed=0):
    """Another point on the orbit: the same function, out of balance."""
    laws = gatdiag.find_laws(model, *inputs)
    generator = torch.Generator().manual_seed(seed)
    aside = spread * torch.randn(len(laws), generator=generator, dtype=torch.float64)
    for name, factor in Orbit(list(laws)).factors(aside).items():
        multiply_(laws.parameters[name], factor)
    return model


def assert_balanced(model, done, *args, **kwargs):
    """By laws found anew: c is zero wherever it is not said to have been left alone."""
    laws = gatdiag.find_laws(model, *args, **kwargs)
    left = {exclusion.what for exclusion in done.skipped}
    chosen = torch.tensor([law.name not in left for law in laws])
    assert int(chosen.sum()) == len(done.factors)
    if chosen.any():
        assert float(laws.normalized_c()[chosen].abs().max()) == pytest.approx(done.imbalance_after, abs=1e-9)


MODELS = {
    **STACKS,
    "residual gcn": lambda: gcn(5, 3, hidden_channels=6, layers=5, residual=True),
    "sage": lambda: Stack([gnn.SAGEConv(5, 4), gnn.SAGEConv(4, 6), gnn.SAGEConv(6, 3)]),
    "gin": lambda: Stack([gnn.GINConv(gnn.MLP([5, 6, 4])), gnn.GINConv(gnn.MLP([4, 6, 3]))]),
    "transformer": lambda: Stack([gnn.TransformerConv(5, 4, heads=2), gnn.TransformerConv(8, 4), gnn.GCNConv(4, 3)]),
    "residual gatv2": lambda: Stack([gnn.GATv2Conv(5, 4), gnn.GATv2Conv(4, 4), gnn.GATv2Conv(4, 3)], residual=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_c_comes_to_zero_and_the_outputs_stay(name):
    torch.manual_seed(0)
    model = roughened(MODELS[name]().double())
    with torch.no_grad():
        for bias in (p for n, p in model.named_parameters() if "bias" in n):
            bias.normal_()
    x = X.double()
    model.eval()
    before, norm = model(x, EDGES), sum(p.square().sum() for p in model.parameters())
    done = rebalance_(model, x, EDGES)
    assert (model(x, EDGES) - before).abs().max() <= 1e-12 * before.abs().max()
    assert sum(p.square().sum() for p in model.parameters()) < norm
    assert done.imbalance_before > 0.1
    assert done.imbalance_after < 1e-12
    assert done.c_after < 1e-11 < done.c_before
    assert len(done.factors) >= 4
    assert done.double.relative < 1e-12
    assert min(done.factors.values()) < 1
    assert_balanced(model, done, x, EDGES)


# Families of the zoo on which balancing differs: skips, tied weights, normalizations, edges, heads, jumping knowledge.
LIBRARY = [
    *(f"library: {kind}" for kind in ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "GCN cat", "GCN max", "GCN lstm")),
    *(f"library: {kind}" for kind in ("GIN layer_norm", "GIN pair_norm", "GCN graph_norm cat")),
    *(f"library: {kind}" for kind in ("GCN act first layer_norm", "GraphSAGE instance_norm", "GAT v1", "GAT lstm")),
    *(f"plain: {kind}" for kind in ("mlp tied", "autoencoder tied", "weight norm", "cnn", "transformer encoder layer")),
    *(f"convolutions: {kind}" for kind in ("gcnii", "gine", "gps", "hetero", "appnp", "jk max")),
    "more_convolutions: rgcn blocks",
    "more_convolutions: fast rgcn",
    *(
        f"attention: {kind}"
        for kind in ("gatv1 residual", "transformer edge features", "gatv2 heads mixed", "gatv2 elu")
    ),
]


@pytest.mark.parametrize("name", LIBRARY)
def test_models_of_every_kind_keep_their_function(name):
    assert name in ZOO
    case = build(name)
    model = roughened(case.model)
    replica = copy.deepcopy(model).eval() if "weight norm" not in name else None
    done = rebalance_(model, *case.args, **case.kwargs)
    assert done.double.relative < 1e-9
    assert done.imbalance_after < 1e-6
    assert all(math.isfinite(factor) and factor > 0 for factor in done.factors.values())
    assert_balanced(model, done, *case.args, **case.kwargs)
    if replica is not None:
        with torch.no_grad():
            outputs, expected = (list(floating_tensors(m(*case.args, **case.kwargs))) for m in (model.eval(), replica))
        size = max(float(tensor.abs().max()) for tensor in expected)
        torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4 * size)


def test_twice_is_once():
    torch.manual_seed(0)
    model = roughened(gat(5, 3, hidden_channels=4, layers=3).double())
    rebalance_(model, X.double(), EDGES)
    again = rebalance_(model, X.double(), EDGES)
    assert list(again.factors.values()) == pytest.approx([1.0] * 8, abs=1e-10)


def test_nothing_but_weights_and_gradients_changes():
    torch.manual_seed(0)
    model = roughened(gat(5, 3, hidden_channels=4, layers=3, dropout=0.5))
    loss(model(X, EDGES)).backward()
    before = {
        name: (id(p), id(p.grad), p.dtype, p.requires_grad, p.clone(), p.grad.clone()) for name, p in named(model)
    }
    state, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    done = rebalance_(model, X, EDGES)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    for name, p in named(model):
        *same, weight, gradient = before[name]
        assert [id(p), id(p.grad), p.dtype, p.requires_grad] == same
        assert p.is_leaf
        torch.testing.assert_close(p * p.grad, weight * gradient)
    assert not torch.equal(model.convs[0].lin_l.weight, before["convs.0.lin_l.weight"][4])
    assert done.skipped == ()


def named(model):
    return list(model.named_parameters())


def test_gradients_are_those_of_the_rescaled_model():
    torch.manual_seed(0)
    model = roughened(gat(5, 3, hidden_channels=4, layers=3).double())
    loss(model(X.double(), EDGES)).backward()
    rebalance_(model, X.double(), EDGES)
    carried = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss(model(X.double(), EDGES)).backward()
    for parameter, gradient in zip(model.parameters(), carried, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_a_backward_pass_of_before_is_refused_by_autograd():
    model = gat(5, 3, hidden_channels=4, layers=3)
    waiting = loss(model(X, EDGES))
    rebalance_(model, X, EDGES)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        waiting.backward()


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, nodes):
        return self.out(self.table(nodes).relu())


def test_sparse_gradients_are_refused_and_nothing_changed():
    model, nodes = roughened(Embedded()), torch.tensor([0, 2, 2, 5, 1, 0])
    loss(model(nodes)).backward()
    with unchanged(model), pytest.raises(ModelError, match="clear them first"):
        rebalance_(model, nodes)
    model.zero_grad()
    assert rebalance_(model, nodes).imbalance_after < 1e-6


def test_relative_gradients_balance():
    torch.manual_seed(0)
    model = roughened(gat(5, 3, hidden_channels=4, layers=4).double())
    x = X.double()
    before = model(x, EDGES)
    loss(before).backward()
    done = rebalance_(model, x, EDGES, towards="relative-gradients")
    torch.testing.assert_close(model(x, EDGES), before)
    assert done.towards == "relative-gradients"
    assert done.imbalance_before > 0.1
    assert done.imbalance_after < 1e-12
    assert done.factors
    model.zero_grad()
    loss(model(x, EDGES)).backward()
    laws = gatdiag.find_laws(model, x, EDGES)
    relative = {name: p.grad / p.detach() for name, p in named(model)}
    left = {exclusion.what for exclusion in done.skipped}
    imbalance = laws.normalized_c(relative).abs()
    assert max(float(value) for law, value in zip(laws, imbalance, strict=True) if law.name not in left) < 1e-7


def test_moments_follow():
    torch.manual_seed(0)
    model = roughened(gat(5, 3, hidden_channels=4, layers=3).double())
    optimizer = trained(model, X.double(), EDGES)
    before = {name: (p.detach().clone(), copy.deepcopy(optimizer.state[p])) for name, p in named(model)}
    rebalance_(model, X.double(), EDGES, optimizer=optimizer)
    for name, p in named(model):
        weight, state = before[name]
        now = optimizer.state[p]
        torch.testing.assert_close(now["exp_avg"] * p, state["exp_avg"] * weight)
        torch.testing.assert_close(now["exp_avg_sq"] * p**2, state["exp_avg_sq"] * weight**2)
        assert now["step"] == state["step"]


def test_unknown_optimizers_change_nothing():
    model = roughened(gat(5, 3, hidden_channels=4, layers=3))
    optimizer = torch.optim.LBFGS(model.parameters())
    with unchanged(model), pytest.raises(OptimizerError, match="create a new one"):
        rebalance_(model, X, EDGES, optimizer=optimizer)


def test_frozen_parameters_stay_and_are_named():
    model = roughened(gcn(5, 3, hidden_channels=4, layers=4))
    frozen = model.convs[1].lin.weight.requires_grad_(False)
    before = frozen.clone()
    done = rebalance_(model, X, EDGES)
    assert torch.equal(frozen, before)
    reasons = {exclusion.what: exclusion.reason for exclusion in done.skipped}
    assert "frozen" in reasons["convs.1.lin.weight"]
    between, *behind = done.factors
    assert between == "layer 1 (convs.0), all neurons"  # from the first to the last, past the frozen one
    assert len(behind) == 4
    assert all("convs.2" in name for name in behind)


def test_dead_neurons_are_skipped():
    torch.manual_seed(0)
    model = roughened(gcn(5, 3, hidden_channels=4, layers=3))
    with torch.no_grad():
        model.convs[0].lin.weight[1] = 0
    done = rebalance_(model, X, EDGES)
    (left,) = done.skipped
    assert "neuron 1" in left.what
    assert "its incoming weights are zero" in left.reason
    assert len(done.factors) == 7
    assert done.imbalance_after < 1e-6


def test_a_model_without_laws_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    with unchanged(model):
        done = rebalance_(model, X)
    assert (done.factors, done.c_before, done.imbalance_after) == ({}, 0.0, 0.0)
    assert any("tanh" in exclusion.reason for exclusion in done.skipped)


def test_low_precision_and_wrappers():
    torch.manual_seed(0)
    model = roughened(gcn(5, 3, hidden_channels=4, layers=3)).bfloat16()
    done = rebalance_(nn.DataParallel(model), X.bfloat16(), EDGES)
    assert done.imbalance_after < 0.02 < 0.1 < done.imbalance_before
    assert done.double.relative < 1e-12
    assert done.own.relative < done.own.epsilon**0.5


@pytest.mark.parametrize("towards", ["c", "relative-gradients"])
def test_complex_weights_are_balanced(towards):
    torch.manual_seed(0)
    model, x = Written(lambda x, a, b: torch.view_as_real(x @ a @ b)), torch.randn(5, 3, dtype=torch.cfloat)
    model.weights.update({name: nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat)) for name in "ab"})
    model(x).square().sum().backward()
    before = model(x)
    done = rebalance_(model, x, towards=towards)
    assert len(done.factors) == 3
    assert done.imbalance_after < 1e-5 < 0.01 < done.imbalance_before
    torch.testing.assert_close(model(x), before)


def shared_memory():
    model = gcn(4, 4, hidden_channels=4, layers=3)
    model.convs[1].lin.weight = nn.Parameter(model.convs[0].lin.weight.detach())
    return model


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: rebalance_("model", X), InputError, r"Expected a torch.nn.Module.*got str"),
        (lambda m: rebalance_(m, X, EDGES, towards="delta"), InputError, r"c, relative-gradients, got 'delta'"),
        (lambda m: rebalance_(m, X, EDGES, towards="relative-gradients"), InputError, r"call this after loss.backward"),
        (lambda m: rebalance_(m, X, EDGES, optimizer="SGD"), InputError, r"torch.optim.Optimizer, got str"),
        (
            lambda m: rebalance_(m, X, EDGES, optimizer=torch.optim.SGD([nn.Parameter(X)])),
            InputError,
            "without any of its parameters",
        ),
        (lambda m: rebalance_(m, X * math.nan, EDGES), ModelError, "not finite"),
        (lambda m: rebalance_(m), ModelError, "forward pass failed"),
        (lambda m: rebalance_(shared_memory(), X[:, :4], EDGES), ModelError, r"convs.0.lin.weight and convs.1.lin"),
    ],
)
def test_misfits_are_refused_and_nothing_changed(call, error, message):
    model = roughened(gat(5, 3, hidden_channels=4, layers=3))
    with unchanged(model), pytest.raises(error, match=message):
        call(model)


def test_a_network_that_imbalance_keeps_from_training_trains_as_if_it_had_none():
    graph = block_model(nodes=80, words=16)
    settings_ = Experiment(learning_rate=0.2, epochs=60)

    def made():
        return initialized(gat(16, 4, hidden_channels=16, layers=6), "balanced_orthogonal", generator=seeded())

    inputs = (graph.x, graph.edge_index)
    stuck, cured = (unbalanced(made(), *inputs, spread=2.0) for _ in range(2))
    assert rebalance_(cured, *inputs).imbalance_after < 1e-6
    losses = [train(model, graph, settings_).epochs[-1].loss for model in (made(), stuck, cured)]
    assert losses[2] == pytest.approx(losses[0], rel=0.05)
    assert losses[2] < 0.5 * math.log(4)
    assert not losses[1] < 0.9 * math.log(4)


# --- and back ---------------------------------------------------------------------------------------------------------


def snapshot(model, optimizer):
    tensors = [
        *model.parameters(),
        *(p.grad for p in model.parameters() if p.grad is not None),
        *(t for p in model.parameters() for t in optimizer.state.get(p, {}).values() if isinstance(t, torch.Tensor)),
    ]
    return [tensor.tolist() for tensor in tensors]


def trained(model, *inputs):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(*inputs)).backward()
        optimizer.step()
    return optimizer


def test_undoing_puts_all_back_bit_for_bit():
    torch.manual_seed(0)
    inputs = X, EDGES
    model = roughened(gat(5, 3, hidden_channels=4, layers=3))
    optimizer = trained(model, *inputs)
    before, output = snapshot(model, optimizer), model(*inputs)
    with rebalance_(model, *inputs, optimizer=optimizer) as done:
        assert snapshot(model, optimizer) != before
        assert "multiplied by 0." in str(done)
        assert {change.where for change in done.changes} >= set(done.scales)
    assert snapshot(model, optimizer) == before
    assert torch.equal(model(*inputs), output)
    optimizer.step()
    done.undo()


def test_an_interrupt_at_any_line_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    model = roughened(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    optimizer = trained(model, X)
    before = snapshot(model, optimizer)
    laws = rebalance_module.find_repeatable_laws(model, (X,), {})
    balanced = rebalance_module.find_verified_rescaling(model, laws, None, (X,), {})
    monkeypatch.setattr(rebalance_module, "find_repeatable_laws", lambda *_: laws)  # both are slow, and change nothing
    monkeypatch.setattr(rebalance_module, "find_verified_rescaling", lambda *_, **__: balanced)
    for line, done in interrupts(lambda: rebalance_(model, X, optimizer=optimizer), "rebalance.py"):
        assert done is not None or snapshot(model, optimizer) == before, line
    assert snapshot(model, optimizer) != before
    done.undo()
    assert snapshot(model, optimizer) == before
