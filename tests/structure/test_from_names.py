"""Layers of a state dict, against those that `discover` finds in the model."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn

from gatdiag.structure import Structure, discover
from gatdiag.structure.from_names import find_layers, output_axes
from tests.laws.zoo import ZOO, build
from tests.structure.test_adapters import CONVOLUTIONS, NOT_RUN, WITHOUT_PARAMETERS

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")

UNNAMED = ("Conv1d", "Conv2d", "GRU", "GRUCell", "LSTM", "RNN")  # not recognized in a state dict
# Kinds that differ (in the model, in the state dict) because classes have the same names; roles agree.
SAME_NAMES = {
    ("BatchNorm2d", "BatchNorm1d"),
    ("DenseGATConv", "Module"),
    ("DenseGCNConv", "GCNConv"),
    ("FastRGCNConv", "RGCNConv"),
    ("GroupNorm", "LayerNorm"),
    ("HypergraphConv", "GCNConv"),
    ("InstanceNorm1d", "LayerNorm"),
    ("MemPooling", "Module"),
    ("MixHopConv", "ChebConv"),
    ("RGCNConv", "Module"),  # without root weight, where the last layer has as many inputs as relations; with blocks
    ("SGConv", "Linear"),
    ("SSGConv", "Linear"),
    ("SelectTopK", "Linear"),
    ("SoftmaxAggregation", "Module"),
    ("SparseLinear", "GCNConv"),
    ("StandardisedLinear", "Linear"),
    ("SuperGATConv", "GCNConv"),
    ("TAGConv", "ChebConv"),
    ("PReLU", "RMSNorm"),
    *((kind, "Module") for kind in ("Bilinear", "ConvTranspose1d", *UNNAMED)),
    ("Embedding", "Linear"),
    ("EmbeddingBag", "Linear"),
}
# Buffers that a state dict does not distinguish from parameters.
BUFFERS = ("eps", "scaler", "beta", "alpha", "readout.q", "mean", "before")
# A vector of slopes looks like the scale of a normalization.
ROLES = {"architectures: prelu channelwise": {"1.weight"}}
CUSTOM = ("operations", "architectures: lora", "attention: lipschitz", "attention: omega", "attention: several")


def layer_of(structure, name):
    return next(layer for layer in structure if any(info.name == name for info in layer.parameters))


@pytest.mark.parametrize("name", list(ZOO))
def test_layers_names_and_roles_are_those_of_the_model(name):
    model = build(name).model
    of_model, of_dict = discover(model), find_layers(model.state_dict())
    known = {info.name: (info.names, info.role, info.shape) for info in of_model.parameters}
    found = {info.name: (info.names, info.role, info.shape) for info in of_dict.parameters}
    differing = {key for key in known if known[key] != found.get(key)}
    assert differing == ROLES.get(name, set())
    assert all(key.endswith(BUFFERS) for key in found.keys() - known.keys())
    assert [key for key in found if key in known] == list(known)
    assert [layer.index for layer in of_dict] == list(range(1, len(of_dict) + 1))
    if name.startswith(CUSTOM):
        return
    for info in of_model.parameters:
        real, shown = (layer_of(structure, info.name) for structure in (of_model, of_dict))
        library = type(model.get_submodule("" if real.name == Structure.ROOT else real.name)).__module__
        if not library.startswith(("torch.", "torch_geometric.")) or real.kind not in dir(gnn) + dir(nn):
            continue
        nested = shown.name.startswith(real.name) or real.name.startswith(shown.name)
        assert (real.name, real.kind) == (shown.name, shown.kind) or (
            nested and ({(real.kind, shown.kind)} & SAME_NAMES or real.name != shown.name)
        ), info.name


# Read as another kind (see the module's docstring), or with options that add tensors which no signature has.
READ_OTHERWISE = {
    "TAGConv",
    "FastRGCNConv",
    "PPFConv",
    "SSGConv",
    "MixHopConv",
    "HGTConv",
    "HANConv",
    "GPSConv performer",
}
KINDS = {
    **{name: make for name, (make, _) in CONVOLUTIONS.items() if name not in READ_OTHERWISE | WITHOUT_PARAMETERS},
    **NOT_RUN,
    "GINEConv": lambda: gnn.GINEConv(nn.Sequential(nn.Linear(4, 3)), train_eps=True, edge_dim=2),
    "GENConv": lambda: gnn.GENConv(4, 3, edge_dim=2),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "GraphNorm": lambda: gnn.GraphNorm(4),
    "BatchNorm": lambda: gnn.BatchNorm(4),
    "LayerNorm": lambda: gnn.LayerNorm(4),
    "DiffGroupNorm": lambda: gnn.DiffGroupNorm(4, 2),
    "Embedding": lambda: nn.ModuleDict({"emb": nn.Embedding(5, 4)}),
    "LSTM": lambda: nn.LSTM(4, 3, bidirectional=True),
    "GRUCell": lambda: nn.GRUCell(4, 3),
    "Conv2d": lambda: nn.Conv2d(3, 2, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_by_its_names(kind):
    model = nn.ModuleDict({"conv": KINDS[kind]()})
    known, found = discover(model), find_layers(model.state_dict())
    kinds = ("Module" if layer.kind in UNNAMED else layer.kind for layer in known)
    assert [(layer.name, layer.kind) for layer in found] == [
        (layer.name, kind) for layer, kind in zip(known, kinds, strict=True)
    ]
    assert [(info.name, info.role, info.module) for info in found.parameters] == [
        (info.name, info.role, info.module) for info in known.parameters
    ]


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "GATv2Conv", "GraphConv", "LEConv"])
def test_a_bare_layer_is_the_root(kind):
    layer = KINDS[kind]()
    assert [(found.name, found.kind) for found in find_layers(layer.state_dict())] == [(Structure.ROOT, kind)]


def zeros(**shapes):
    return {name.replace("__", "."): torch.zeros(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("kind", "tensors", "roles"),
    [
        ("GCNConv", zeros(conv1__weight=(5, 4), conv1__bias=(4,)), ["feature weight", "bias"]),
        ("GCNConv", zeros(conv1__weight=(4, 4), conv1__bias=(4,)), ["feature weight", "bias"]),
        ("Linear", zeros(lin1__weight=(4, 4), lin1__bias=(4,)), ["feature weight", "bias"]),
        (
            "GATConv",
            zeros(c__weight=(5, 8), c__att=(1, 2, 8), c__bias=(8,)),
            ["feature weight", "attention vector", "bias"],
        ),
        (
            "GATConv",
            zeros(
                c__att_l=(1, 2, 4), c__att_r=(1, 2, 4), c__bias=(8,), c__lin_l__weight=(8, 5), c__lin_r__weight=(8, 5)
            ),
            ["attention vector", "attention vector", "bias", "feature weight", "feature weight"],
        ),
        (
            "SplineConv",
            zeros(c__weight=(2, 4, 3), c__bias=(3,), c__lin__weight=(3, 4)),
            ["feature weight", "bias", "feature weight"],
        ),
        ("GATv2Conv", zeros(c__att=(1, 1, 4), c__lin_l__weight=(4, 5)), ["attention vector", "feature weight"]),
        (
            "GraphConv",
            zeros(c__weight=(5, 4), c__lin__weight=(4, 5), c__lin__bias=(4,)),
            ["feature weight"] * 2 + ["bias"],
        ),
    ],
)
def test_names_of_older_versions_and_of_formats_that_drop_what_is_shared(kind, tensors, roles):
    (layer,) = find_layers(tensors)
    assert (layer.kind, [info.role for info in layer.parameters]) == (kind, roles)


def test_shared_weights_are_one_parameter_even_where_the_format_stores_both():
    conv = gnn.GATv2Conv(4, 3, share_weights=True)
    copied = {name: tensor.clone() for name, tensor in conv.state_dict().items()}
    for tensors in (conv.state_dict(), copied):
        assert [info.names for info in find_layers(tensors).parameters] == [
            info.names for info in discover(conv).parameters
        ]
    apart = gnn.GATv2Conv(4, 3).state_dict()
    assert all(len(info.names) == 1 for info in find_layers(apart).parameters)


def test_lists_of_parameters_belong_to_the_module_that_has_them():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.ParameterList([torch.ones(3, 4), torch.ones(4, 2)])
            self.scale_edges = nn.ParameterList([torch.ones(2, 2)])

    model = nn.ModuleDict({"first": Mixed(), "lin": nn.Linear(4, 2)})
    known, found = discover(model), find_layers(model.state_dict())
    assert found.parameters == known.parameters
    assert [layer.name for layer in found] == [layer.name for layer in known] == ["first", "lin"]


def test_names_without_sense_are_layers_of_their_own():
    tensors = {name: torch.zeros(2, 2) for name in ("", ".", "a..b", "a", "a.b.c", "0", "weight_ih", "\x1b[31m<b>")}
    tensors |= {"c.weight_ih": torch.zeros(()), "c.weight_hh": torch.zeros(0), "." * 100_000: torch.zeros(1)}
    structure = find_layers(tensors)
    assert {info.name for info in structure.parameters} == set(tensors)
    assert len(find_layers({})) == 0


def test_buffers_and_integers_are_no_parameters():
    tensors = nn.ModuleDict({"bn": nn.BatchNorm1d(3), "lin": nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))})
    found = {info.name for info in find_layers(tensors.state_dict()).parameters}
    assert found == dict(tensors.named_parameters()).keys()
    assert not find_layers({"index": torch.arange(3), "mask": torch.ones(3, dtype=torch.bool)}).layers


def test_every_number_type_is_read():
    weight = torch.ones(3, 4)
    for tensor in (weight.bfloat16(), weight.double(), weight.to("meta")):
        names = ("c.att", "c.lin_l.weight", "c.lin_r.weight")
        tensors = dict(zip(names, (torch.ones(1, 1, 3), tensor, tensor.clone()), strict=True))
        assert [layer.kind for layer in find_layers(tensors)] == ["GATv2Conv"]


def test_names_that_are_sorted_like_text_are_put_in_the_order_of_their_numbers():
    tensors = {f"convs.{i}.lin.weight": torch.ones(2, 2) for i in range(12)}
    in_file = {name: tensors[name] for name in sorted(tensors)}
    assert [layer.name for layer in find_layers(in_file)] == [f"convs.{i}" for i in range(12)]

    reversed_ = dict(reversed(tensors.items()))
    assert [layer.name for layer in find_layers(reversed_)] == [f"convs.{i}" for i in reversed(range(12))]


def leaf(*shape, bias=None):
    return {"weight": shape} if bias is None else {"weight": shape, "bias": (bias,)}


def axes(pattern, *leaves):
    """Output axes of the layers of a series."""
    found = output_axes({pattern.replace("#", str(number)): own for number, own in enumerate(leaves)})
    return list(found.values())


@pytest.mark.parametrize("pattern", ["conv#", "conv_mlp.#", "convs.#.fc", "layers.#"])
def test_biases_of_a_series_tell_for_its_square_matrices(pattern):
    assert axes(pattern, leaf(64, 20, bias=64), leaf(64, 64, bias=64), leaf(64, 64), leaf(7, 64, bias=7)) == [0] * 4
    assert axes(pattern, leaf(20, 64, bias=64), leaf(64, 64, bias=64), leaf(64, 64), leaf(64, 7, bias=7)) == [1] * 4


def test_without_biases_the_one_order_that_fits_tells():
    assert axes("layers.#", leaf(64, 20), leaf(64, 64), leaf(7, 64)) == [0] * 3
    assert axes("layers.#", leaf(20, 64), leaf(64, 64), leaf(64, 7)) == [1] * 3
    assert axes("layers.#", leaf(4, 5), leaf(5, 4)) == [None] * 2
    assert axes("layers.#", leaf(4, 5)) == [0]


def test_numbers_of_a_series_count_as_such():
    leaves = {f"layers.{number}": leaf(number + 1, number) for number in (*range(10, 13), *range(1, 10))}
    assert set(output_axes(leaves).values()) == {0}


def test_what_nothing_tells_is_in_doubt():
    assert axes("conv#", leaf(8, 8, bias=8)) == axes("layers.#", leaf(8, 8)) == [None]
    assert axes("layers.#", *[leaf(8, 8, bias=8)] * 3) == [None] * 3
    assert axes("layers.#", leaf(8, 5, bias=8), leaf(8, 8, bias=8), leaf(8, 7, bias=7)) == [0, None, 1]


def test_a_linear_map_that_is_called_so_has_its_outputs_in_rows():
    for name in ("lin", "lin2", "linear", "fc1", "lin_out"):
        assert output_axes({f"interactions.0.conv.{name}": leaf(8, 8, bias=8)}).popitem()[1] == 0
    assert axes("mlp.lins.#", leaf(8, 8, bias=8), leaf(8, 8)) == [0] * 2
    assert axes("online.#", leaf(8, 8, bias=8)) == [None]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("interactions.0.conv.lin2", "Linear"),
        ("conv_mlp.0", "Linear"),
        ("conv1", "GCNConv"),
        ("convs.0", "GCNConv"),
        ("layers.0", "Linear"),
    ],
)
def test_what_a_square_matrix_with_a_bias_is_called(path, kind):
    (layer,) = find_layers({f"{path}.weight": torch.zeros(8, 8), f"{path}.bias": torch.zeros(8)})
    assert (layer.name, layer.kind) == (path, kind)
