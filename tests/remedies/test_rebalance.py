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
from gatdiag.remedies import rebalance_
from gatdiag.remedies.least_norm import Orbit, multiply_
from gatdiag.structure.tensors import floating_tensors
from tests.laws.zoo import ZOO, build
from tests.remedies.stacks import EDGES, STACKS, X, initialized, seeded, unchanged

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
    **{
        name: STACKS[name] for name in ("gatv2 unshared with heads of both kinds", "gat", "gatv2 between linear layers")
    },
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
    assert done.imbalance(dict(model.named_parameters())) == (done.c_after, done.imbalance_after)
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


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: rebalance_("model", X), InputError, r"Expected a torch.nn.Module.*got str"),
        (lambda m: rebalance_(m, X, EDGES, towards="delta"), InputError, r"c, relative-gradients, got 'delta'"),
        (lambda m: rebalance_(m, X, EDGES, towards="relative-gradients"), InputError, r"call this after loss.backward"),
        (lambda m: rebalance_(m, X, EDGES, optimizer="SGD"), InputError, r"torch.optim.Optimizer, got str"),
        (
            lambda m: rebalance_(m, X, EDGES, optimizer=torch.optim.LBFGS(m.parameters())),
            OptimizerError,
            "create a new one",
        ),
        (
            lambda m: rebalance_(m, X, EDGES, optimizer=torch.optim.SGD([nn.Parameter(X)])),
            InputError,
            "without any of its parameters",
        ),
        (lambda m: rebalance_(m, X * math.nan, EDGES), ModelError, "not finite"),
        (lambda m: rebalance_(m), ModelError, "forward pass failed"),
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


def test_it_is_a_line_of_text_whatever_it_holds():
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    done = rebalance_(model, torch.randn(5, 4))
    assert len(done.factors) == 64
    assert repr(done) == "Rebalanced(rebalance: 3 changes, 0 skipped)"
    assert len(done._repr_html_()) < 1_000
