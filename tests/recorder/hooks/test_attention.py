"""Attention entropy of every attention layer: recorded, or a note says why not."""

from contextlib import nullcontext

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

import gatdiag
from tests.metrics.oracles import attention_entropies
from tests.recorder.loops import Gat, graph, loss_of, sgd

NODES, WIDTH = 25, 6


class Wrapped(nn.Module):
    """A layer between two linear ones."""

    def __init__(self, layer, call=lambda layer, x, edges: layer(x, edges)):
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(4, WIDTH), layer, nn.Linear(WIDTH, 2)
        self.call = call

    def forward(self, x, edges):
        return self.after(self.call(self.layer, self.before(x), edges))


def data():
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, NODES, (2, 80), generator=generator)
    return torch.randn(NODES, 4, generator=generator), edges


def recorded(model, folder):
    x, edges = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, folder, metrics=["attention"]):
        for _ in range(2):
            model(x, edges).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return gatdiag.load(folder)


def of_transformer(layer, x, edges):
    _, (edges, alpha) = layer(x, edges, return_attention_weights=True)
    return alpha, edges[1]


def rgat(**options):
    layer = gnn.RGATConv(WIDTH, 3, num_relations=2, heads=2, **options)
    nn.init.ones_(layer.l2)  # PyG does not initialize it
    return layer


def of_rgat(layer, x, edges):
    _, (edges, alpha) = layer(x, edges, edges[0] % 2, return_attention_weights=True)
    return alpha, edges[1]


def with_loops(edges):
    return add_self_loops(remove_self_loops(edges)[0], num_nodes=NODES)[0]


def of_agnn(layer, x, edges):
    source, target = with_loops(edges)
    unit = torch.nn.functional.normalize(x, dim=-1)
    return softmax(layer.beta * (unit[source] * unit[target]).sum(-1), target, num_nodes=NODES), target


def of_supergat(layer, x, edges):
    edges = with_loops(edges)
    x = layer.lin(x).view(NODES, layer.heads, layer.out_channels)
    logits = (x[edges[1]] * x[edges[0]]).sum(-1)
    scores = (x[edges[0]] * layer.att_l).sum(-1) + (x[edges[1]] * layer.att_r).sum(-1)
    scores = nn.functional.leaky_relu(scores * logits.sigmoid(), layer.negative_slope)
    return softmax(scores, edges[1], num_nodes=NODES), edges[1]


READ = {
    "GATConv": (lambda: gnn.GATConv(WIDTH, 3, heads=2), None, of_transformer),
    "GATv2Conv": (lambda: gnn.GATv2Conv(WIDTH, 3, heads=2), None, of_transformer),
    "TransformerConv": (lambda: gnn.TransformerConv(WIDTH, 3, heads=2), None, of_transformer),
    "TransformerConv, dropout": (lambda: gnn.TransformerConv(WIDTH, 3, heads=2, dropout=0.5), None, of_transformer),
    "RGATConv": (
        rgat,
        lambda layer, x, edges: layer(x, edges, edges[0] % 2),
        of_rgat,
    ),
    "AGNNConv": (lambda: gnn.AGNNConv(), None, of_agnn),
    "SuperGATConv": (lambda: gnn.SuperGATConv(WIDTH, 3, heads=2, dropout=0.4), None, of_supergat),
}


@pytest.mark.parametrize("name", READ)
def test_the_entropy_is_that_of_the_layers_own_coefficients(tmp_path, name):
    make, call, coefficients = READ[name]
    torch.manual_seed(0)
    model = Wrapped(make(), call) if call else Wrapped(make())
    x, edges = data()
    with torch.no_grad():
        wanted = attention_entropies(*coefficients(model.eval().layer, model.before(x), edges))
    hooks = len(model.layer._message_forward_hooks)
    run = recorded(model.train(), tmp_path / "run")
    row = run.layers.set_index(["step", "layer"]).loc[(0, "layer")]
    assert (row.attention_entropy, row.relative_attention_entropy) == pytest.approx(wanted, rel=1e-5)
    assert len(model.layer._message_forward_hooks) == hooks == 0
    assert run.meta["notes"] == []


class Own(gnn.TransformerConv):
    def message(self, value_j):
        return value_j


@pytest.mark.parametrize(
    ("layer", "call", "note"),
    [
        (gnn.GATConv(WIDTH, WIDTH, dropout=0.5), None, "attention dropout hides the coefficients"),
        (
            rgat(attention_mechanism="within-relation"),
            lambda layer, x, edges: layer(x, edges, edges[0] % 2),
            "sum to one over the edges of each relation",
        ),
        (
            nn.MultiheadAttention(WIDTH, 2),
            lambda layer, x, edges: layer(x, x, x)[0],
            "of MultiheadAttention cannot be read",
        ),
        (
            gnn.GATConv(WIDTH, WIDTH),
            lambda layer, x, edges: layer(
                x, torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (NODES, NODES)).coalesce()
            ),
            "its coefficients could not be read",
        ),
        (Own(WIDTH, WIDTH), None, "Own overrides how its coefficients are computed"),
    ],
)
def test_where_none_can_be_read_a_note_says_why(tmp_path, layer, call, note):
    torch.manual_seed(0)
    run = recorded(Wrapped(layer, call) if call else Wrapped(layer), tmp_path / "run")
    assert run.layers.attention_entropy.isna().all()
    (only,) = [text for text in run.meta["notes"] if "attention" in text]
    assert only.startswith("attention entropy of layer")
    assert note in only


@pytest.mark.parametrize("kind", [gnn.GeneralConv, gnn.HypergraphConv, gnn.FiLMConv])
def test_a_layer_without_attention_needs_no_note(tmp_path, kind):
    run = recorded(Wrapped(kind(WIDTH, WIDTH)), tmp_path / "run")
    assert not any("attention" in text for text in run.meta["notes"])


@pytest.mark.parametrize("name", ["TransformerConv, dropout", "SuperGATConv"])
def test_recording_leaves_training_as_it_is(tmp_path, name):
    make, call, _ = READ[name]
    weights = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Wrapped(make(), call) if call else Wrapped(make())
        torch.manual_seed(1)
        x, edges = data()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        with gatdiag.watch(model, tmp_path / "run", metrics="full") if watched else nullcontext():
            for _ in range(3):
                model(x, edges).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        weights.append([value.detach().clone() for value in model.parameters()])
        weights[-1].append(torch.get_rng_state())
    assert all(torch.equal(bare, seen) for bare, seen in zip(*weights, strict=True))


def test_of_several_passes_before_a_step_all_layers_are_of_the_last(tmp_path):
    entropies = []
    for name, seeds in (("both", (0, 1)), ("last", (1,))):
        torch.manual_seed(0)
        model = Gat()
        optimizer = sgd(model)
        with gatdiag.watch(model, tmp_path / name):
            for seed in seeds:
                loss_of(model, graph(seed=seed)).backward()
            optimizer.step()
        entropies.append(gatdiag.load(tmp_path / name).layers.attention_entropy.tolist())
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-6)
