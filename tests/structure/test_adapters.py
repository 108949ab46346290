"""The table of layer classes against every convolution of PyG, and the roles of parameters."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn

from gatdiag.structure import Structure, discover
from gatdiag.structure.adapters import ADAPTERS, adapter_name, is_normalization, parameter_role

NODES, CHANNELS, HIDDEN, EDGE_CHANNELS = 4, 8, 4, 3
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 2, 3, 0, 0, 1]])
METADATA = (["paper", "author"], [("paper", "cites", "paper"), ("paper", "written_by", "author")])


def features() -> torch.Tensor:
    return torch.linspace(-1, 1, NODES * CHANNELS).view(NODES, CHANNELS)


def edge_features() -> torch.Tensor:
    return torch.linspace(0, 1, EDGES.shape[1] * EDGE_CHANNELS).view(-1, EDGE_CHANNELS)


def mlp(inputs: int = CHANNELS, outputs: int = HIDDEN) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def hetero_inputs() -> tuple[dict[str, torch.Tensor], dict[tuple[str, str, str], torch.Tensor]]:
    return {name: features() for name in METADATA[0]}, dict.fromkeys(METADATA[1], EDGES)


def pna(**kwargs: Any) -> gnn.PNAConv:
    degrees = torch.tensor([0, 2, 2])
    return gnn.PNAConv(CHANNELS, HIDDEN, ["mean", "max"], ["identity", "amplification"], degrees, **kwargs)


def plain(make: Callable[[], nn.Module], *more: Any) -> tuple[Callable[[], nn.Module], tuple[Any, ...]]:
    return make, (features(), EDGES, *more)


TYPES = torch.tensor([0, 1, 0, 1, 0, 1])
POSITIONS = torch.linspace(0, 1, NODES * 3).view(NODES, 3).sin()
HETERO = hetero_inputs()

# name -> (makes the layer, inputs of its forward pass)
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "SimpleConv": plain(lambda: gnn.SimpleConv()),
    "GCNConv": plain(lambda: gnn.GCNConv(CHANNELS, HIDDEN)),
    "ChebConv": plain(lambda: gnn.ChebConv(CHANNELS, HIDDEN, K=3)),
    "SAGEConv": plain(lambda: gnn.SAGEConv(CHANNELS, HIDDEN, project=True)),
    "GraphConv": plain(lambda: gnn.GraphConv(CHANNELS, HIDDEN)),
    "GatedGraphConv": plain(lambda: gnn.GatedGraphConv(CHANNELS, 2)),
    "ResGatedGraphConv": plain(
        lambda: gnn.ResGatedGraphConv(CHANNELS, HIDDEN, edge_dim=EDGE_CHANNELS), edge_features()
    ),
    "GATConv": plain(
        lambda: gnn.GATConv(CHANNELS, HIDDEN, heads=2, edge_dim=EDGE_CHANNELS, residual=True), edge_features()
    ),
    "GATConv pair": (
        lambda: gnn.GATConv((CHANNELS, CHANNELS), HIDDEN, add_self_loops=False),
        ((features(), features()), EDGES),
    ),
    "GATv2Conv": plain(
        lambda: gnn.GATv2Conv(CHANNELS, HIDDEN, heads=2, edge_dim=EDGE_CHANNELS, residual=True), edge_features()
    ),
    "GATv2Conv shared": plain(lambda: gnn.GATv2Conv(CHANNELS, HIDDEN, share_weights=True)),
    "TransformerConv": plain(
        lambda: gnn.TransformerConv(CHANNELS, HIDDEN, beta=True, edge_dim=EDGE_CHANNELS), edge_features()
    ),
    "AGNNConv": plain(lambda: gnn.AGNNConv()),
    "TAGConv": plain(lambda: gnn.TAGConv(CHANNELS, HIDDEN)),
    "GINConv": plain(lambda: gnn.GINConv(mlp(), train_eps=True)),
    "GINConv bare": plain(lambda: gnn.GINConv(nn.Identity())),
    "GINEConv": plain(lambda: gnn.GINEConv(mlp(), edge_dim=EDGE_CHANNELS), edge_features()),
    "ARMAConv": plain(lambda: gnn.ARMAConv(CHANNELS, HIDDEN, num_stacks=2, num_layers=2)),
    "SGConv": plain(lambda: gnn.SGConv(CHANNELS, HIDDEN)),
    "APPNP": plain(lambda: gnn.APPNP(2, 0.1)),
    "MFConv": plain(lambda: gnn.MFConv(CHANNELS, HIDDEN, max_degree=2)),
    "RGCNConv": plain(lambda: gnn.RGCNConv(CHANNELS, HIDDEN, 2, num_bases=2), TYPES),
    "FastRGCNConv": plain(lambda: gnn.FastRGCNConv(CHANNELS, HIDDEN, 2), TYPES),
    "RGATConv": plain(lambda: gnn.RGATConv(CHANNELS, HIDDEN, 2, edge_dim=EDGE_CHANNELS), TYPES, edge_features()),
    "RGATConv bases": plain(lambda: gnn.RGATConv(CHANNELS, HIDDEN, 2, num_bases=2), TYPES),
    "SignedConv": plain(lambda: gnn.SignedConv(CHANNELS, HIDDEN, first_aggr=True), EDGES),
    "DNAConv": (lambda: gnn.DNAConv(CHANNELS), (features().view(NODES, 1, CHANNELS).repeat(1, 2, 1), EDGES)),
    "PointNetConv": (lambda: gnn.PointNetConv(mlp(CHANNELS + 3), mlp(HIDDEN)), (features(), POSITIONS, EDGES)),
    "GMMConv": plain(lambda: gnn.GMMConv(CHANNELS, HIDDEN, EDGE_CHANNELS, 2), edge_features()),
    "NNConv": plain(lambda: gnn.NNConv(CHANNELS, HIDDEN, mlp(EDGE_CHANNELS, CHANNELS * HIDDEN)), edge_features()),
    "CGConv": plain(lambda: gnn.CGConv(CHANNELS, EDGE_CHANNELS, batch_norm=True), edge_features()),
    "EdgeConv": plain(lambda: gnn.EdgeConv(mlp(2 * CHANNELS))),
    "PPFConv": (
        lambda: gnn.PPFConv(mlp(CHANNELS + 4), mlp(HIDDEN)),
        (features(), POSITIONS, POSITIONS.roll(1, 0), EDGES),
    ),
    "FeaStConv": plain(lambda: gnn.FeaStConv(CHANNELS, HIDDEN, heads=2)),
    "PointTransformerConv": (lambda: gnn.PointTransformerConv(CHANNELS, HIDDEN), (features(), POSITIONS, EDGES)),
    "HypergraphConv": plain(
        lambda: gnn.HypergraphConv(CHANNELS, HIDDEN, use_attention=True), None, torch.ones(NODES, CHANNELS)
    ),
    "LEConv": plain(lambda: gnn.LEConv(CHANNELS, HIDDEN)),
    "PNAConv": plain(lambda: pna(towers=2, divide_input=True, edge_dim=EDGE_CHANNELS), edge_features()),
    "ClusterGCNConv": plain(lambda: gnn.ClusterGCNConv(CHANNELS, HIDDEN)),
    "GENConv": plain(
        lambda: gnn.GENConv(
            CHANNELS, HIDDEN, learn_t=True, msg_norm=True, learn_msg_scale=True, edge_dim=EDGE_CHANNELS
        ),
        edge_features(),
    ),
    "GCN2Conv": (
        lambda: gnn.GCN2Conv(CHANNELS, 0.1, 0.5, 1, shared_weights=False),
        (features(), features(), EDGES),
    ),
    "WLConvContinuous": plain(lambda: gnn.WLConvContinuous()),
    "FiLMConv": plain(lambda: gnn.FiLMConv(CHANNELS, HIDDEN, num_relations=2), TYPES),
    "SuperGATConv": plain(lambda: gnn.SuperGATConv(CHANNELS, HIDDEN, heads=2)),
    "FAConv": (lambda: gnn.FAConv(CHANNELS), (features(), features(), EDGES)),
    "EGConv": plain(lambda: gnn.EGConv(CHANNELS, 8, num_heads=2)),
    "PDNConv": plain(lambda: gnn.PDNConv(CHANNELS, HIDDEN, EDGE_CHANNELS, 5), edge_features()),
    "GeneralConv": plain(
        lambda: gnn.GeneralConv(CHANNELS, HIDDEN, EDGE_CHANNELS, skip_linear=True, attention=True), edge_features()
    ),
    "HGTConv": (lambda: gnn.HGTConv(CHANNELS, HIDDEN, METADATA), HETERO),
    "HEATConv": plain(
        lambda: gnn.HEATConv(CHANNELS, HIDDEN, 2, 2, 3, EDGE_CHANNELS, 3),
        torch.tensor([0, 1, 0, 1]),
        TYPES,
        edge_features(),
    ),
    "HeteroConv": (
        lambda: gnn.HeteroConv({edge: gnn.SAGEConv((CHANNELS, CHANNELS), HIDDEN) for edge in METADATA[1]}),
        HETERO,
    ),
    "HANConv": (lambda: gnn.HANConv(CHANNELS, HIDDEN, METADATA), HETERO),
    "LGConv": plain(lambda: gnn.LGConv()),
    "SSGConv": plain(lambda: gnn.SSGConv(CHANNELS, HIDDEN, 0.1)),
    "PointGNNConv": (
        lambda: gnn.PointGNNConv(mlp(CHANNELS, 3), mlp(3 + CHANNELS, HIDDEN), mlp(HIDDEN, CHANNELS)),
        (features(), POSITIONS, EDGES),
    ),
    "GPSConv": plain(lambda: gnn.GPSConv(CHANNELS, gnn.GCNConv(CHANNELS, CHANNELS), heads=2)),
    "GPSConv performer": plain(
        lambda: gnn.GPSConv(CHANNELS, gnn.GCNConv(CHANNELS, CHANNELS), heads=2, attn_type="performer")
    ),
    "AntiSymmetricConv": plain(lambda: gnn.AntiSymmetricConv(CHANNELS)),
    "DirGNNConv": plain(lambda: gnn.DirGNNConv(gnn.GCNConv(CHANNELS, HIDDEN))),
    "MixHopConv": plain(lambda: gnn.MixHopConv(CHANNELS, HIDDEN)),
    "MeshCNNConv": (
        lambda: gnn.MeshCNNConv(CHANNELS, HIDDEN),
        (features(), torch.stack([torch.tensor([1, 2, 3, 0] * 4), torch.arange(4).repeat_interleave(4)])),
    ),
}

NOT_RUN: dict[str, Callable[[], nn.Module]] = {"PANConv": lambda: gnn.PANConv(CHANNELS, HIDDEN, 2)}  # no torch-sparse
WITHOUT_PARAMETERS = {"SimpleConv", "GINConv bare", "APPNP", "WLConvContinuous", "LGConv"}
# Of another package that is not installed, or another name of a class above.
NOT_MADE = {"GravNetConv", "SplineConv", "DynamicEdgeConv", "XConv", "WLConv", "ECConv", "PointConv", "FusedGATConv"}


def test_no_convolution_is_forgotten():
    every = {name for name in gnn.conv.__all__ if name.endswith(("Conv", "APPNP")) and not name.startswith("CuGraph")}
    assert every - NOT_MADE == {name.split()[0] for name in [*CONVOLUTIONS, *NOT_RUN]} & every


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name not in WITHOUT_PARAMETERS])
def test_every_parameter_is_in_one_layer(name):
    make, inputs = CONVOLUTIONS[name]
    model = make()
    expected = sorted(name for name, _ in model.named_parameters())
    assert expected
    for structure in (discover(model), discover(model, *inputs)):
        assert sorted(info.name for layer in structure for info in layer.parameters) == expected
        assert sorted(alias for info in structure.parameters for alias in info.names) == sorted(
            name for name, _ in model.named_parameters(remove_duplicate=False)
        )


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *NOT_RUN])
def test_table_names_every_matrix(name):
    """All matrices of a convolution are listed; only roles of biases and norms follow from names."""
    model = NOT_RUN[name]() if name in NOT_RUN else CONVOLUTIONS[name][0]()
    assert bool(list(model.parameters())) == (name not in WITHOUT_PARAMETERS)
    adapter = adapter_name(model)
    if adapter is None:  # these two only arrange others
        assert name.split()[0] in {"HeteroConv", "GPSConv"}
        return
    listed = [place for places in ADAPTERS[adapter].roles.values() for place in places]
    for layer in discover(model) if name not in WITHOUT_PARAMETERS else ():
        for info in layer.parameters if layer.name == Structure.ROOT else ():
            if len(info.shape) > 1 and "bias" not in info.name:
                assert any(f"{info.name}.".startswith(f"{place}.") for place in listed), info.name


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name != "MessagePassing"])
def test_table_names_only_what_is_there(name):
    source = inspect.getsource(inspect.getmodule(getattr(gnn, name)))
    listed = [place for places in ADAPTERS[name].roles.values() for place in places]
    assert len(listed) == len(set(listed))
    for place in listed:
        assert re.search(rf"self\.{place}\b|'{place}'", source) or hasattr(gnn.MessagePassing(), place), place


def roles(model: nn.Module) -> dict[str, str]:
    return {info.name: info.role for info in discover(model).parameters}


# Written by hand from what each layer computes; a weight of each role.
EXPECTED_ROLES = {
    "GATConv": {
        "lin.weight": "feature weight",
        "res.weight": "feature weight",
        "lin_edge.weight": "edge weight",
        "att_src": "attention vector",
        "att_dst": "attention vector",
        "att_edge": "attention vector",
        "bias": "bias",
    },
    "GATv2Conv": {
        "lin_l.weight": "feature weight",
        "lin_l.bias": "bias",
        "lin_r.weight": "feature weight",
        "lin_r.bias": "bias",
        "lin_edge.weight": "edge weight",
        "res.weight": "feature weight",
        "att": "attention vector",
        "bias": "bias",
    },
    "FAConv": {"att_l.weight": "attention vector", "att_r.weight": "attention vector"},
    "RGCNConv": {"weight": "feature weight", "root": "feature weight", "comp": "other", "bias": "bias"},
    "GINEConv": {
        "nn.0.weight": "feature weight",
        "nn.0.bias": "bias",
        "nn.2.weight": "feature weight",
        "nn.2.bias": "bias",
        "lin.weight": "edge weight",
        "lin.bias": "bias",
    },
    "GENConv": {
        "aggr_module.t": "other",
        "lin_src.weight": "feature weight",
        "lin_edge.weight": "edge weight",
        "lin_dst.weight": "feature weight",
        "mlp.0.weight": "feature weight",
        "mlp.1.weight": "norm scale",
        "mlp.1.bias": "norm shift",
        "mlp.4.weight": "feature weight",
        "msg_norm.scale": "norm scale",
    },
}


@pytest.mark.parametrize("name", EXPECTED_ROLES)
def test_roles(name):
    assert roles(CONVOLUTIONS[name][0]()) == EXPECTED_ROLES[name]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (gnn.BatchNorm(3), {"module.weight": "norm scale", "module.bias": "norm shift"}),
        (gnn.HeteroBatchNorm(3, 2), {"weight": "norm scale", "bias": "norm shift"}),
        (gnn.GraphNorm(3), {"weight": "norm scale", "bias": "norm shift", "mean_scale": "other"}),
        (
            gnn.DiffGroupNorm(3, 2),
            {"lin.weight": "feature weight", "norm.weight": "norm scale", "norm.bias": "norm shift"},
        ),
        (nn.RMSNorm(3), {"weight": "norm scale"}),
        (nn.BatchNorm2d(3), {"weight": "norm scale", "bias": "norm shift"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_norm_roles(norm, expected):
    assert roles(norm) == expected
    assert len(discover(norm)) == 1


class OmegaGAT(gnn.GATConv):
    """A user's subclass with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(CHANNELS, HIDDEN)
        self.omega = nn.Parameter(torch.ones(1))


class OwnConv(gnn.MessagePassing):
    """A user's convolution, which is not in the table."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = gnn.Linear(CHANNELS, HIDDEN)
        self.lin_edge = gnn.Linear(EDGE_CHANNELS, HIDDEN)
        self.att = nn.Parameter(torch.ones(1, HIDDEN))
        self.gate = nn.Parameter(torch.ones(1))


def test_subclass_is_read_as_its_base():
    assert roles(OmegaGAT())["att_src"] == "attention vector"
    assert roles(OmegaGAT())["omega"] == "other"
    assert [layer.kind for layer in discover(OmegaGAT())] == ["GATConv"]


def test_unknown_convolution_is_one_layer_with_guessed_roles():
    assert [layer.kind for layer in discover(OwnConv())] == ["OwnConv"]
    assert roles(OwnConv()) == {
        "lin.weight": "feature weight",
        "lin.bias": "bias",
        "lin_edge.weight": "edge weight",
        "lin_edge.bias": "bias",
        "att": "attention vector",
        "gate": "other",
    }


def test_same_name_outside_the_libraries_is_no_adapter():
    namesake = type("GATConv", (nn.Module,), {})()
    assert adapter_name(namesake) is None
    assert adapter_name(gnn.FusedGATConv.__new__(gnn.FusedGATConv)) == "GATConv"


def test_a_class_that_merely_mentions_a_norm_is_no_norm():
    owner = type("LayerNormGCN", (nn.Module,), {})()
    assert parameter_role("weight", 2, None, normalizes=is_normalization(owner)) == "feature weight"


@pytest.mark.parametrize(
    ("name", "is_vector", "role"),
    [
        ("a", True, "attention vector"),  # pyGAT
        ("a", False, "feature weight"),
        ("attn_l", False, "attention vector"),  # DGL
        ("weight", True, "feature weight"),
    ],
)
def test_attention_vectors_of_other_libraries_are_known_by_name_and_shape(name, is_vector, role):
    assert parameter_role(name, 2, None, normalizes=False, is_vector=is_vector) == role
