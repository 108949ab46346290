"""Structures of whole models, against structures written by hand."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn
from torch.nn.utils import prune

from gatdiag.errors import ModelError
from gatdiag.structure import discover
from gatdiag.structure.discovery import discover_in_order, order_layers, parameters_by_layer

X = torch.linspace(-1, 1, 32).view(4, 8)
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 2, 3, 0, 0, 1]])
DEGREES = torch.tensor([0, 2, 2])


def kinds(structure):
    return [(layer.name, layer.kind) for layer in structure]


def parameter(structure, name):
    """The parameter that has this name among its names."""
    return next(info for info in structure.parameters if name in info.names)


def complete(structure, model):
    """Assert that it lists every parameter once, with all names, its shape and flag; returns True."""
    assert [layer.index for layer in structure] == list(range(1, len(structure) + 1))
    listed = {info.name: (info.shape, info.trainable) for info in structure.parameters}
    assert len(listed) == len(structure.parameters)
    assert listed == {name: (tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()}
    aliases = {alias: info.name for info in structure.parameters for alias in info.names}
    everything = dict(model.named_parameters(remove_duplicate=False))
    assert set(aliases) == set(everything)
    assert all(everything[alias] is everything[name] for alias, name in aliases.items())
    return True


@pytest.mark.parametrize(("norm", "jk"), [(None, None), ("batch", "cat"), ("graph_norm", "lstm")])
@pytest.mark.parametrize(
    ("name", "conv", "options"),
    [
        ("GCN", "GCNConv", {}),
        ("GraphSAGE", "SAGEConv", {}),
        ("GIN", "GINConv", {}),
        ("GAT", "GATv2Conv", {"v2": True}),
        ("PNA", "PNAConv", {"aggregators": ["mean"], "scalers": ["identity"], "deg": DEGREES}),
        ("EdgeCNN", "EdgeConv", {}),
    ],
)
def test_models_of_pyg(name, conv, options, norm, jk):
    model = getattr(gnn, name)(8, 6, 2, out_channels=3, norm=norm, jk=jk, **options)
    normalized = {None: [], "batch": ["BatchNorm"], "graph_norm": ["GraphNorm"]}[norm]
    last = normalized if jk else []
    end = {None: [], "cat": ["Linear"], "lstm": ["LSTM", "Linear", "Linear"]}[jk]
    structure = discover(model, X, EDGES)
    assert [layer.kind for layer in structure if layer.executed] == [conv, *normalized, conv, *last, *end]
    assert structure.order == "execution"
    assert complete(structure, model)
    assert complete(discover(model), model)
    assert discover(model).order == "module"


@pytest.mark.parametrize(
    "make",
    [
        lambda: gnn.GraphUNet(8, 4, 2, depth=2),
        lambda: gnn.AttentiveFP(8, 4, 2, 3, 2, 2),
        lambda: gnn.LightGCN(5, 4, 2),
        lambda: gnn.SchNet(8, 8, 1),
        lambda: gnn.SGFormer(8, 4, 2),
        lambda: gnn.LINKX(4, 8, 4, 2, 1),
        lambda: gnn.DeepGCNLayer(gnn.GENConv(8, 8), nn.LayerNorm(8)),
        lambda: gnn.SAGPooling(8),
        lambda: gnn.SignedGCN(8, 4, 2),
        lambda: gnn.to_hetero(gnn.GraphSAGE(8, 4, 2), (["a"], [("a", "to", "a")])),
    ],
)
def test_other_models_of_pyg_are_listed_completely(make):
    model = make()
    assert complete(discover(model), model)


def test_mlp():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    assert kinds(discover(model, X)) == [("0", "Linear"), ("2", "Linear")]


def test_transformer_encoder_layer():
    model = nn.TransformerEncoderLayer(8, 2)
    assert kinds(discover(model, X)) == [
        ("self_attn", "MultiheadAttention"),
        ("norm1", "LayerNorm"),
        ("linear1", "Linear"),
        ("linear2", "Linear"),
        ("norm2", "LayerNorm"),
    ]
    assert "self_attn.out_proj.weight" in {info.name for info in discover(model, X)[0].parameters}
    assert kinds(discover(model.eval(), X)) == kinds(discover(model.train(), X))
    assert complete(discover(model, X), model)


def test_cnn():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
    structure = discover(model, torch.ones(2, 1, 8, 8))
    assert kinds(structure) == [("0", "Conv2d"), ("1", "BatchNorm2d"), ("4", "Linear")]
    assert [info.role for info in structure[1].parameters] == ["norm scale", "norm shift"]


class Mixed(nn.Module):
    """Has layers used out of order, twice and never, and parameters on the model, in lists and in dictionaries."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.never = nn.Linear(2, 2)
        self.last = nn.Linear(8, 8, bias=False)
        self.propagate = gnn.APPNP(2, 0.1)
        self.first = nn.Linear(8, 8)
        self.mix = nn.ParameterList([torch.ones(8, 8), torch.ones(8)])
        self.named = nn.ParameterDict({"att": torch.ones(1, 8)})
        self.first.bias.requires_grad_(False)

    def forward(self, x, edges):
        x = self.propagate(self.first(self.first(x)), edges)
        return self.last(x @ self.mix[0] * self.named["att"]) * self.scale


def test_execution_order():
    structure = discover(Mixed(), X, EDGES)
    assert kinds(structure) == [
        ("first", "Linear"),
        ("propagate", "APPNP"),
        ("(root)", "Mixed"),
        ("last", "Linear"),
        ("never", "Linear"),
    ]
    assert [layer.executed for layer in structure] == [True, True, True, True, False]
    assert complete(structure, Mixed())
    assert not parameter(structure, "first.bias").trainable


def test_module_order_without_inputs():
    structure = discover(Mixed())
    assert structure.order == "module"
    assert [layer.name for layer in structure] == ["(root)", "never", "last", "propagate", "first"]
    assert {layer.executed for layer in structure} == {None}


def test_keyword_inputs_are_inputs():
    assert discover(Mixed(), edges=EDGES, x=X) == discover(Mixed(), X, EDGES)


def test_parameters_outside_modules():
    root = discover(Mixed())[0]
    assert {info.name: (info.role, info.module) for info in root.parameters} == {
        "scale": ("other", ""),
        "mix.0": ("feature weight", ""),
        "mix.1": ("other", ""),
        "named.att": ("attention vector", ""),
    }


def test_tied_weight_is_listed_once_with_all_names():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    model[2].weight = model[3].weight = model[0].weight
    structure = discover(model, X)
    assert parameter(structure, "0.weight").names == ("0.weight", "2.weight", "3.weight")
    assert [[info.name for info in layer.parameters] for layer in structure] == [["0.weight", "0.bias"], ["2.bias"], []]
    assert complete(structure, model)


def test_module_used_twice_is_one_layer():
    conv = gnn.GCNConv(8, 8)
    model = gnn.Sequential("x, edge_index", [(conv, "x, edge_index -> x"), (conv, "x, edge_index -> x")])
    structure = discover(model, X, EDGES)
    assert len(structure) == 1
    assert len(parameter(structure, "module_0.bias").names) == 2


def test_shared_weights_of_gatv2():
    structure = discover(gnn.GATv2Conv(8, 4, share_weights=True), X, EDGES)
    assert parameter(structure, "lin_r.weight").names == ("lin_l.weight", "lin_r.weight")


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "rewrite",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 4), lambda: gnn.Linear(8, 4, bias=False)])
def test_rewritten_weights(rewrite, make):
    model = nn.Sequential(rewrite(make()))
    for structure in (discover(model), discover(model, X)):
        assert kinds(structure) == [("0", "Linear")]
        assert {info.role for info in structure.parameters if "weight" in info.name} == {"feature weight"}
        assert {info.module for info in structure.parameters} == {"0"}
        assert complete(structure, model)


def test_a_pruned_norm_keeps_its_scale():
    structure = discover(prune.random_unstructured(nn.LayerNorm(8), "weight", 0.5))
    assert parameter(structure, "weight_orig").role == "norm scale"


def test_rewritten_weight_of_a_convolution():
    conv = gnn.GATv2Conv(8, 4)
    nn.utils.parametrizations.weight_norm(conv.lin_l)
    nn.utils.parametrizations.weight_norm(conv, "att")
    structure = discover(conv, X, EDGES)
    assert kinds(structure) == [("(root)", "GATv2Conv")]
    assert parameter(structure, "parametrizations.att.original0").role == "attention vector"
    assert parameter(structure, "lin_l.parametrizations.weight.original1").role == "feature weight"
    assert parameter(structure, "lin_l.parametrizations.weight.original1").module == "lin_l"


def test_observed_uses_give_the_structure_that_a_run_gives():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first, self.unused = nn.Linear(4, 2), gnn.SAGEConv(8, 4), nn.Linear(3, 3)
            self.propagate = gnn.APPNP(2, 0.1)

        def forward(self, x, edge_index):
            return self.last(self.propagate(self.first(x, edge_index), edge_index))

    model = Swapped()
    uses = ["", "first", "first.lin_l", "first.lin_l.weight", "propagate", "last", "last.weight"]
    used = order_layers(parameters_by_layer(model), uses)

    assert used == ["first", "propagate", "last"]
    assert discover_in_order(model, used) == discover(model, X, EDGES)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ModelError, match="Sequential has none"):
        discover(nn.Sequential(nn.ReLU(), gnn.APPNP(2, 0.1)), X)
