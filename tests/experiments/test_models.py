from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gatdiag.errors import InputError
from gatdiag.experiments.models import build, gat, gcn
from gatdiag.experiments.settings import Network, choices

residual_gcn = partial(gcn, residual=True)

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def averaged(scores, source, loops=True):
    """The mean of sources u, with weights by the softmax of scores[v, u] over the neighbors u of v."""
    linked = torch.eye(len(scores), dtype=torch.bool) if loops else torch.zeros(scores.shape[:2], dtype=torch.bool)
    linked[EDGES[1], EDGES[0]] = True
    alpha = scores.masked_fill(~linked[..., None], -torch.inf).softmax(1)
    return torch.einsum("vuh,uhc->vhc", alpha, source).flatten(1)


def attention_layer(conv, x):
    """GATv2 over dense pairs of nodes, self-loops included; lin_r is lin_l if weights are shared."""
    heads, width = conv.att.shape[1:]
    source, target = ((x @ linear.weight.T).view(-1, heads, width) for linear in (conv.lin_l, conv.lin_r))
    return averaged((F.leaky_relu(source[None] + target[:, None], 0.2) * conv.att).sum(-1), source)


def first_attention_layer(conv, x):
    """GATv1, with its bias."""
    heads, width = conv.att_src.shape[1:]
    source = (x @ conv.lin.weight.T).view(-1, heads, width)
    scores = (source * conv.att_src).sum(-1)[None] + (source * conv.att_dst).sum(-1)[:, None]
    return averaged(F.leaky_relu(scores, 0.2), source) + (0 if conv.bias is None else conv.bias)


def omega_layer(conv, x):
    own = x @ conv.conv.lin_l.weight.T
    return (1 - conv.omega) * own + conv.omega * attention_layer(conv.conv, x)


def dot_product_layer(conv, x):
    query, key, value = (linear(x).view(4, conv.heads, -1) for linear in (conv.lin_query, conv.lin_key, conv.lin_value))
    scores = torch.einsum("vhc,uhc->vuh", query, key) / query.shape[2] ** 0.5
    return averaged(scores, value, loops=False) + conv.lin_skip(x)


def graph_convolution(conv, x):
    adjacency = torch.eye(len(x))
    adjacency[EDGES[1], EDGES[0]] = 1.0
    scale = adjacency.sum(1).rsqrt()
    return scale[:, None] * adjacency * scale[None] @ x @ conv.lin.weight.T


@pytest.mark.parametrize("factory", [gat, gcn, residual_gcn])
def test_the_defaults_are_ten_layers_of_width_64_without_bias(factory):
    names = [name for name, _ in factory(5, 3).named_parameters()]
    assert not [name for name in names if "bias" in name]
    model = factory(5, 3)
    assert len(model.convs) == 10
    assert model(X, EDGES).shape == (4, 3)
    assert model.convs[8](torch.ones(4, 64), EDGES).shape == (4, 64)


@pytest.mark.parametrize("factory", [gat, gcn, residual_gcn])
def test_dropout_acts_in_training_only(factory):
    torch.manual_seed(0)
    model = factory(5, 3, hidden_channels=8, layers=2, dropout=0.5)
    assert not torch.equal(model(X, EDGES), model(X, EDGES))
    model.eval()
    assert torch.equal(model(X, EDGES), model(X, EDGES))


def perturbed(model):
    """Biases, omega and norms begin where an error would not be seen."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (Network("gatv2", share_weights=False, heads=2), attention_layer),
        (Network("gatv2", residual=True, activation="elu"), attention_layer),
        (Network("gat", heads=3, bias=True), first_attention_layer),
        (Network("omega-gat", heads=2, share_weights=False), omega_layer),
        (Network("transformer", heads=2, bias=True, residual=True), dot_product_layer),
        (Network("gcn", activation="elu"), graph_convolution),
        (Network("gcn", residual=True), graph_convolution),
    ],
)
def test_a_network_is_a_stack_of_its_dense_layers(network, layer):
    torch.manual_seed(0)
    model = perturbed(build(replace(network, layers=4, width=4), 5, 3))
    phi, h = {"relu": F.relu, "elu": F.elu}[network.activation], X
    for number, conv in enumerate(model.convs[:-1]):
        out = phi(layer(conv, h))
        assert out.shape == (4, 4 * network.heads)
        h = h + out if network.residual and number else out
    logits = layer(model.convs[-1], h)
    assert logits.shape == (4, 3)
    torch.testing.assert_close(model(X, EDGES), logits)


def test_sgc_is_a_power_of_the_normalized_adjacency():
    torch.manual_seed(0)
    model = build(Network("sgc", layers=3), 5, 3)
    conv = SimpleNamespace(lin=nn.Linear(5, 5, bias=False))
    nn.init.eye_(conv.lin.weight)
    h = X
    for _ in range(3):
        h = graph_convolution(conv, h)
    torch.testing.assert_close(model(X, EDGES), h @ model.convs[0].lin.weight.T)


def paired(x):
    x = x - x.mean(0)
    return x / (1e-5 + x.square().sum(1).mean()).sqrt()


@pytest.mark.parametrize(("kind", "layer"), [("deep-gat", first_attention_layer), ("deep-gt", dot_product_layer)])
@pytest.mark.parametrize("norm", ["none", "pairnorm"])
def test_the_deep_ones_have_linear_ends_and_the_norm_last(kind, layer, norm):
    torch.manual_seed(0)
    model = perturbed(build(Network(kind, layers=3, width=4, heads=2, bias=True, activation="elu", norm=norm), 5, 3))
    h = X @ model.first.weight.T + model.first.bias
    assert h.shape == (4, 4)
    for number, conv in enumerate(model.convs):
        h = layer(conv, h)
        h = F.elu(h) if number < 2 else h
        h = paired(h) if norm == "pairnorm" else h
    assert h.shape == (4, 8)
    torch.testing.assert_close(model(X, EDGES), h @ model.last.weight.T + model.last.bias)


@pytest.mark.parametrize(
    ("network", "count"),
    [  # 3 layers, 5 features, width 4, 3 classes
        (Network("gat"), 5 * 4 + 4 * 4 + 4 * 3 + 2 * (4 + 4 + 3)),
        (Network("gatv2"), 5 * 4 + 4 * 4 + 4 * 3 + (4 + 4 + 3)),
        (Network("gatv2", share_weights=False), 2 * (5 * 4 + 4 * 4 + 4 * 3) + (4 + 4 + 3)),
        (Network("gatv2", heads=2), 5 * 8 + 8 * 8 + 8 * 3 + (8 + 8 + 3)),
        (Network("omega-gat"), 5 * 4 + 4 * 4 + 4 * 3 + (4 + 4 + 3) + 3),
        (Network("gcn"), 5 * 4 + 4 * 4 + 4 * 3),
        (Network("gcn", bias=True, norm="layernorm"), 5 * 4 + 4 * 4 + 4 * 3 + (4 + 4 + 3) + 2 * (4 + 4)),
        (Network("sgc"), 5 * 3),
        (Network("sage"), 2 * (5 * 4 + 4 * 4 + 4 * 3)),
        (Network("gin"), 5 * 4 + 4 * 4 + 4 * 4 + 4 * 4 + 4 * 3 + 3 * 3),
        (Network("mlp"), 5 * 4 + 4 * 4 + 4 * 3),
        (Network("transformer", heads=2), 4 * (5 * 8 + 8 * 8) + 4 * 8 * 3),
        (Network("deep-gat", heads=2), 5 * 4 + 4 + (4 * 8 + 8 * 8 + 8 * 8) + 3 * 2 * 8 + 8 * 3 + 3),
        (Network("deep-gt", heads=2), 5 * 4 + 4 + 4 * (4 * 8 + 8 * 8 + 8 * 8) + 8 * 3 + 3),
    ],
)
def test_parameters_are_as_many_as_the_layers_say(network, count):
    model = build(replace(network, layers=3, width=4), 5, 3)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("kind", choices(Network)["model"])
def test_one_layer_maps_features_to_classes(kind):
    assert build(Network(kind, layers=1, width=4), 5, 3)(X, EDGES).shape == (4, 3)


@pytest.mark.parametrize("norm", choices(Network)["norm"])
def test_norms_stand_after_all_layers_but_the_last(norm):
    model = build(Network("gcn", layers=3, width=4, norm=norm), 5, 3)
    assert len(model.norms) == (0 if norm == "none" else 2)
    assert model(X, EDGES).shape == (4, 3)


@pytest.mark.parametrize("kind", ["omega-gat", "deep-gt"])
def test_dropout_of_attention_acts_in_training_only(kind):
    torch.manual_seed(0)
    model = build(Network(kind, layers=2, width=8, attention_dropout=0.5), 5, 3)
    assert not torch.equal(model(X, EDGES), model(X, EDGES))
    model.eval()
    assert torch.equal(model(X, EDGES), model(X, EDGES))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gnn"}, "model to be one of gat, gatv2.*'gnn'"),
        ({"layers": 0}, "Expected 1 or more layers, got 0"),
        ({"dropout": 1.0}, r"dropout to be in \[0, 1\)"),
        ({"model": "gcn", "heads": 2}, "heads=2 expects model to be one of gat,.* got gcn"),
        ({"model": "gat", "share_weights": False}, "share weights=False expects model to be one of gatv2, omega-gat"),
        ({"model": "sgc", "residual": True}, "residual=True expects model"),
        ({"norm": "graphnorm"}, "norm to be one of none, pairnorm"),
    ],
)
def test_networks_that_do_not_exist_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Network(**wrong)
