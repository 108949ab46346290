"""Every convolution of PyG as the law table (`reports.papers.laws`) runs it: how it is made, and on which inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn

NODES: Final = 9
WIDE: Final = 6  # outputs of a layer that may have another number of outputs than of inputs
WIDTH: Final = 4  # its inputs, and both of a layer that keeps the number
Make: TypeAlias = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class Layer:
    """A convolution with its options.

    Attributes:
        name: Class in `torch_geometric.nn.conv`.
        make: (inputs, outputs) -> the layer.
        options: What differs from the defaults, for the table.
        inputs: Makes its inputs beside the features, (nodes, channels).
        call: Called with the layer, the features and these inputs.
        keeps_width: Whether it has as many outputs as inputs.
    """

    name: str
    make: Make
    options: str = ""
    inputs: Callable[[], tuple[Any, ...]] = lambda: (edges(),)
    call: Callable[..., Any] = lambda layer, x, *rest: layer(x, *rest)
    keeps_width: bool = False


def unavailable(reason: str) -> Make:
    """A layer that cannot be made here."""

    def make(inputs: int, outputs: int) -> nn.Module:
        raise ImportError(reason)

    return make


def edges() -> Tensor:
    """A connected directed graph without self-loops, in-degrees 2 to 4, no symmetry."""
    ring = [(i, (i + 1) % NODES) for i in range(NODES)]
    skip = [(i, (i + 3) % NODES) for i in range(NODES)]
    extra = [(0, 5), (2, 7), (4, 1), (6, 3), (8, 5), (5, 0), (7, 2)]
    return torch.tensor(ring + skip + extra).t().contiguous()


def _undirected() -> Tensor:
    both: Tensor = torch.unique(torch.cat([edges(), edges().flip(0)], dim=1), dim=1)
    return both


def _few_edges() -> Tensor:
    """In-degrees 0, 1 and 2, all of them present."""
    return torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 3], [3, 4, 5, 5, 6, 7, 7, 8, 4, 8, 6]])


def _two_graphs() -> tuple[Tensor, Tensor]:
    return edges(), _few_edges()


def _hyperedges() -> Tensor:
    return torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 2, 6, 8], [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 1, 0, 1]])


def _with_features(width: int = 3) -> tuple[Tensor, Tensor]:
    return edges(), torch.randn(edges().shape[1], width)


def _with_kinds() -> tuple[Tensor, Tensor]:
    return edges(), torch.arange(edges().shape[1]) % 2


def _with_positions() -> tuple[Tensor, Tensor]:
    return torch.randn(NODES, 3), edges()


def _mesh() -> tuple[Tensor]:
    """Four neighbors of each edge of a mesh, as (neighbor, edge).

    PyG documents (edge, neighbor); in that order, version 2.8 subtracts each edge from itself, and two of the five
    kernels get no gradient.
    """
    return (torch.stack([(torch.arange(4 * NODES) * 5 + 3) % NODES, torch.arange(NODES).repeat_interleave(4)]),)


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))


_TYPES: Final = (["node"], [("node", "to", "node"), ("node", "by", "node")])


def _on_types(layer: Any, x: Tensor, *edge_indices: Tensor) -> Tensor:
    """Call a layer for heterogeneous graphs on a graph of one type of nodes and two types of edges."""
    out: Tensor = layer({"node": x}, dict(zip(_TYPES[1], edge_indices, strict=True)))["node"]
    return out


_PNA: Final = (["mean", "max", "std"], ["identity", "amplification"])
_CUGRAPH: Final = "needs pylibcugraphops, for NVIDIA GPUs; {} computes the same"

LAYERS: Final = (
    Layer("SimpleConv", lambda i, o: gnn.SimpleConv(), keeps_width=True),
    Layer("GCNConv", gnn.GCNConv),
    Layer("ChebConv", partial(gnn.ChebConv, K=3), "K=3"),
    Layer("SAGEConv", gnn.SAGEConv),
    Layer("SAGEConv", partial(gnn.SAGEConv, aggr="max", project=True), "aggr=max, project"),
    Layer("SAGEConv", partial(gnn.SAGEConv, normalize=True), "normalize"),
    Layer("CuGraphSAGEConv", unavailable(_CUGRAPH.format("SAGEConv"))),
    Layer("GraphConv", gnn.GraphConv),
    Layer(
        "GravNetConv",
        partial(gnn.GravNetConv, space_dimensions=2, propagate_dimensions=3, k=3),
        "k=3",
        inputs=lambda: (),
    ),
    Layer("GatedGraphConv", lambda i, o: gnn.GatedGraphConv(o, 2), "2 layers", keeps_width=True),
    Layer("ResGatedGraphConv", gnn.ResGatedGraphConv),
    Layer("GATConv", gnn.GATConv),
    Layer("GATConv", lambda i, o: gnn.GATConv(i, o // 2, heads=2), "2 heads, concatenated"),
    Layer("GATConv", partial(gnn.GATConv, heads=2, concat=False), "2 heads, mean"),
    Layer("GATConv", partial(gnn.GATConv, edge_dim=3), "edge_dim", _with_features, lambda a, x, e, f: a(x, e, f)),
    Layer("CuGraphGATConv", unavailable(_CUGRAPH.format("GATConv"))),
    Layer("FusedGATConv", unavailable("needs dgNN, for NVIDIA GPUs; GATConv computes the same")),
    Layer("GATv2Conv", gnn.GATv2Conv),
    Layer("GATv2Conv", partial(gnn.GATv2Conv, share_weights=True, bias=False), "share_weights, no bias"),
    Layer("GATv2Conv", lambda i, o: gnn.GATv2Conv(i, o // 2, heads=2), "2 heads, concatenated"),
    Layer("TransformerConv", gnn.TransformerConv),
    Layer("TransformerConv", partial(gnn.TransformerConv, beta=True), "beta"),
    Layer("AGNNConv", lambda i, o: gnn.AGNNConv(), keeps_width=True),
    Layer("TAGConv", partial(gnn.TAGConv, K=2), "K=2"),
    Layer("GINConv", lambda i, o: gnn.GINConv(_mlp(i, o), train_eps=True), "train_eps"),
    Layer("GINEConv", lambda i, o: gnn.GINEConv(_mlp(i, o), edge_dim=3), "edge_dim", _with_features),
    Layer("ARMAConv", partial(gnn.ARMAConv, num_stacks=2, num_layers=2), "2 stacks, 2 layers"),
    Layer("SGConv", partial(gnn.SGConv, K=2), "K=2"),
    Layer("SSGConv", partial(gnn.SSGConv, alpha=0.1, K=2), "K=2"),
    Layer("APPNP", lambda i, o: gnn.APPNP(K=3, alpha=0.1), "K=3", keeps_width=True),
    Layer("MFConv", partial(gnn.MFConv, max_degree=2), "max_degree=2", lambda: (_few_edges(),)),
    Layer("RGCNConv", partial(gnn.RGCNConv, num_relations=2), "2 relations", _with_kinds),
    Layer("RGCNConv", partial(gnn.RGCNConv, num_relations=2, num_bases=2), "2 relations, 2 bases", _with_kinds),
    Layer("FastRGCNConv", partial(gnn.FastRGCNConv, num_relations=2), "2 relations", _with_kinds),
    Layer("CuGraphRGCNConv", unavailable(_CUGRAPH.format("RGCNConv"))),
    Layer("RGATConv", partial(gnn.RGATConv, num_relations=2), "2 relations", _with_kinds),
    Layer(
        "SignedConv",
        lambda i, o: gnn.SignedConv(i, o // 2, first_aggr=True),
        "first_aggr",
        _two_graphs,
    ),
    Layer(
        "DNAConv",
        lambda i, o: gnn.DNAConv(o),
        call=lambda layer, x, e: layer(x.unsqueeze(1), e),
        options="one earlier layer",
        keeps_width=True,
    ),
    Layer("PointNetConv", lambda i, o: gnn.PointNetConv(_mlp(i + 3, 5), _mlp(5, o)), "MLPs", _with_positions),
    Layer("GMMConv", partial(gnn.GMMConv, dim=2, kernel_size=2), "kernel_size=2", lambda: _with_features(2)),
    Layer(
        "SplineConv",
        partial(gnn.SplineConv, dim=2, kernel_size=2),
        "kernel_size=2",
        lambda: (edges(), torch.rand(edges().shape[1], 2)),
    ),
    Layer("NNConv", lambda i, o: gnn.NNConv(i, o, _mlp(3, i * o)), "MLP", _with_features),
    Layer("CGConv", lambda i, o: gnn.CGConv(i, 3), "dim=3", _with_features, keeps_width=True),
    Layer("EdgeConv", lambda i, o: gnn.EdgeConv(_mlp(2 * i, o)), "MLP"),
    Layer("DynamicEdgeConv", lambda i, o: gnn.DynamicEdgeConv(_mlp(2 * i, o), k=3), "MLP, k=3", lambda: ()),
    Layer(
        "XConv",
        partial(gnn.XConv, dim=2, kernel_size=3, hidden_channels=2),
        "kernel_size=3",
        lambda: (torch.randn(NODES, 2),),
    ),
    Layer(
        "PPFConv",
        lambda i, o: gnn.PPFConv(_mlp(i + 4, 5), _mlp(5, o)),
        "MLPs",
        lambda: (torch.randn(NODES, 3), torch.randn(NODES, 3), edges()),
    ),
    Layer("FeaStConv", partial(gnn.FeaStConv, heads=2), "2 heads"),
    Layer("PointTransformerConv", gnn.PointTransformerConv, inputs=_with_positions),
    Layer("HypergraphConv", gnn.HypergraphConv, inputs=lambda: (_hyperedges(),)),
    Layer(
        "HypergraphConv",
        partial(gnn.HypergraphConv, use_attention=True),
        "use_attention",
        lambda: (_hyperedges(), torch.randn(3, WIDTH)),
        lambda layer, x, e, f: layer(x, e, None, f),
    ),
    Layer("LEConv", gnn.LEConv),
    Layer(
        "PNAConv",
        lambda i, o: gnn.PNAConv(i, o, *_PNA, deg=torch.tensor([0, 0, 5, 3, 1])),
        "mean, max, std; identity, amplification",
    ),
    Layer("ClusterGCNConv", gnn.ClusterGCNConv),
    Layer("GENConv", gnn.GENConv),
    Layer("GENConv", partial(gnn.GENConv, aggr="add", norm="layer"), "aggr=add, norm=layer"),
    Layer(
        "GCN2Conv",
        lambda i, o: gnn.GCN2Conv(o, alpha=0.1, theta=0.5, layer=1),
        "alpha=0.1, theta=0.5; x_0 is its input",
        call=lambda layer, x, e: layer(x, x, e),
        keeps_width=True,
    ),
    Layer("PANConv", partial(gnn.PANConv, filter_size=2), "filter_size=2", call=lambda layer, x, e: layer(x, e)[0]),
    Layer("WLConv", unavailable("it has no parameters: it colors nodes with hashes of integers")),
    Layer("WLConvContinuous", lambda i, o: gnn.WLConvContinuous(), keeps_width=True),
    Layer("FiLMConv", gnn.FiLMConv),
    Layer("SuperGATConv", partial(gnn.SuperGATConv, is_undirected=True), "MX", lambda: (_undirected(),)),
    Layer(
        "SuperGATConv",
        partial(gnn.SuperGATConv, attention_type="SD", is_undirected=True),
        "SD",
        lambda: (_undirected(),),
    ),
    Layer(
        "FAConv",
        lambda i, o: gnn.FAConv(o),
        "x_0 is its input",
        call=lambda layer, x, e: layer(x, x, e),
        keeps_width=True,
    ),
    Layer("EGConv", partial(gnn.EGConv, num_heads=2, num_bases=2), "2 heads, 2 bases"),
    Layer("PDNConv", partial(gnn.PDNConv, edge_dim=3, hidden_channels=4), "edge_dim", _with_features),
    Layer("GeneralConv", gnn.GeneralConv),
    Layer("GeneralConv", partial(gnn.GeneralConv, attention=True), "attention"),
    Layer("HGTConv", lambda i, o: gnn.HGTConv(i, o, _TYPES), "2 types of edges", _two_graphs, _on_types),
    Layer(
        "HEATConv",
        lambda i, o: gnn.HEATConv(i, o, 2, 2, 2, 3, 2),
        "2 types",
        lambda: (edges(), torch.arange(NODES) % 2, *_with_kinds()[1:], *_with_features()[1:]),
    ),
    Layer(
        "HeteroConv",
        lambda i, o: gnn.HeteroConv({kind: gnn.SAGEConv(i, o) for kind in _TYPES[1]}),
        "of SAGEConv, 2 types of edges",
        _two_graphs,
        _on_types,
    ),
    Layer("HANConv", lambda i, o: gnn.HANConv(i, o, _TYPES), "2 types of edges", _two_graphs, _on_types),
    Layer("LGConv", lambda i, o: gnn.LGConv(), keeps_width=True),
    Layer(
        "PointGNNConv",
        lambda i, o: gnn.PointGNNConv(_mlp(i, 3), _mlp(i + 3, 5), _mlp(5, o)),
        "MLPs",
        _with_positions,
        keeps_width=True,
    ),
    Layer(
        "GPSConv",
        lambda i, o: gnn.GPSConv(i, gnn.GCNConv(i, i), 2, norm=None),
        "of GCNConv, 2 heads, no norm",
        keeps_width=True,
    ),
    Layer("GPSConv", lambda i, o: gnn.GPSConv(i, gnn.GCNConv(i, i), 2), "of GCNConv, 2 heads", keeps_width=True),
    Layer("AntiSymmetricConv", lambda i, o: gnn.AntiSymmetricConv(o), keeps_width=True),
    Layer("AntiSymmetricConv", lambda i, o: gnn.AntiSymmetricConv(o, act="relu"), "act=relu", keeps_width=True),
    Layer("DirGNNConv", lambda i, o: gnn.DirGNNConv(gnn.SAGEConv(i, o)), "of SAGEConv"),
    Layer("MixHopConv", lambda i, o: gnn.MixHopConv(i, o // 2, powers=[0, 1]), "powers 0, 1"),
    Layer("MeshCNNConv", gnn.MeshCNNConv, inputs=_mesh),
)
"""All of `torch_geometric.nn.conv`, some with several options, in its order."""
