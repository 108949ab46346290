"""Where each kind of layer keeps the parameters of each role: one visible table, and rules for what is not in it.

A class is looked up by its name along the method resolution order, among classes of torch and torch_geometric only:
so a user's subclass of `GATConv` is read as a `GATConv`, a class of the user's that merely has the same name is not,
and nothing is imported to look. A convolution that is not in the table is caught by `MessagePassing`, its base class.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

Role: TypeAlias = Literal[
    "feature weight", "attention vector", "bias", "edge weight", "norm scale", "norm shift", "other"
]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

FEATURE: Final[Role] = "feature weight"  # maps node features: W, also of the root node, queries, keys and values
ATTENTION: Final[Role] = "attention vector"  # scores edges: a
EDGE: Final[Role] = "edge weight"  # reads edge features or relative positions
BIAS: Final[Role] = "bias"
SCALE: Final[Role] = "norm scale"
SHIFT: Final[Role] = "norm shift"
OTHER: Final[Role] = "other"  # gates, exponents, temperatures, mixing coefficients

# Class -> role -> names inside the layer; a name stands for the parameter and for all that is below it. What is
# called a bias, and what belongs to a normalization, is recognized without being listed.
ADAPTERS: Final[Mapping[str, Mapping[Role, str]]] = {
    # spectral and isotropic convolutions
    "GCNConv": {FEATURE: "lin"},
    "GCN2Conv": {FEATURE: "weight1 weight2"},
    "ChebConv": {FEATURE: "lins"},
    "TAGConv": {FEATURE: "lins"},
    "MixHopConv": {FEATURE: "lins"},
    "SGConv": {FEATURE: "lin"},
    "SSGConv": {FEATURE: "lin"},
    "ARMAConv": {FEATURE: "init_weight weight root_weight"},
    "ClusterGCNConv": {FEATURE: "lin_out lin_root"},
    "EGConv": {FEATURE: "bases_lin comb_lin"},
    "PANConv": {FEATURE: "lin", OTHER: "weight"},
    "FAConv": {ATTENTION: "att_l att_r"},
    "AntiSymmetricConv": {FEATURE: "W"},
    # neighbor aggregation
    "SAGEConv": {FEATURE: "lin lin_l lin_r"},
    "GraphConv": {FEATURE: "lin_rel lin_root"},
    "LEConv": {FEATURE: "lin1 lin2 lin3"},
    "MFConv": {FEATURE: "lins_l lins_r"},
    "SignedConv": {FEATURE: "lin_pos_l lin_pos_r lin_neg_l lin_neg_r"},
    "DirGNNConv": {FEATURE: "lin"},
    "GINConv": {FEATURE: "nn", OTHER: "eps"},
    "GINEConv": {FEATURE: "nn", EDGE: "lin", OTHER: "eps"},
    "PNAConv": {FEATURE: "pre_nns post_nns lin", EDGE: "edge_encoder"},
    "GENConv": {FEATURE: "lin_src lin_dst mlp", EDGE: "lin_edge", OTHER: "aggr_module"},
    "EdgeConv": {FEATURE: "nn"},
    "DynamicEdgeConv": {FEATURE: "nn"},
    "GatedGraphConv": {FEATURE: "weight rnn"},
    "ResGatedGraphConv": {FEATURE: "lin_key lin_query lin_value lin_skip"},
    "GeneralConv": {FEATURE: "lin_msg lin_self", ATTENTION: "att_msg", EDGE: "lin_edge"},
    # attention
    "GATConv": {FEATURE: "lin lin_src lin_dst res", ATTENTION: "att_src att_dst att_edge", EDGE: "lin_edge"},
    "GATv2Conv": {FEATURE: "lin_l lin_r res", ATTENTION: "att", EDGE: "lin_edge"},
    "SuperGATConv": {FEATURE: "lin", ATTENTION: "att_l att_r"},
    "TransformerConv": {FEATURE: "lin_query lin_key lin_value lin_skip", EDGE: "lin_edge", OTHER: "lin_beta"},
    "AGNNConv": {OTHER: "beta"},
    "FeaStConv": {FEATURE: "lin", ATTENTION: "u", BIAS: "c"},
    "DNAConv": {FEATURE: "multi_head"},
    "HypergraphConv": {FEATURE: "lin", ATTENTION: "att"},
    "PointTransformerConv": {FEATURE: "lin lin_src lin_dst attn_nn", EDGE: "pos_nn"},
    # edge features, relations and node types
    "NNConv": {FEATURE: "lin", EDGE: "nn"},
    "GMMConv": {FEATURE: "g root", EDGE: "mu sigma"},
    "SplineConv": {FEATURE: "weight lin"},
    "CGConv": {FEATURE: "lin_f lin_s"},
    "PDNConv": {FEATURE: "lin", EDGE: "mlp"},
    "RGCNConv": {FEATURE: "weight root", OTHER: "comp"},
    "RGATConv": {
        FEATURE: "weight basis",
        ATTENTION: "q k e",
        EDGE: "lin_edge",
        BIAS: "b1 b2",
        OTHER: "att w l1 l2",  # att mixes the bases of the weights; w, l1 and l2 scale by degree
    },
    "FiLMConv": {FEATURE: "lins films lin_skip film_skip"},
    "HGTConv": {FEATURE: "kqv_lin out_lin k_rel v_rel", ATTENTION: "p_rel", OTHER: "skip"},
    "HANConv": {FEATURE: "proj k_lin", ATTENTION: "lin_src lin_dst q"},
    "HEATConv": {FEATURE: "hetero_lin lin", ATTENTION: "att", EDGE: "edge_type_emb edge_attr_emb"},
    # points and meshes
    "PointNetConv": {FEATURE: "local_nn global_nn"},
    "PPFConv": {FEATURE: "local_nn global_nn"},
    "PointGNNConv": {FEATURE: "mlp_h mlp_f mlp_g"},
    "GravNetConv": {FEATURE: "lin_s lin_h lin_out1 lin_out2"},
    "XConv": {FEATURE: "mlp1 mlp2 conv"},
    "MeshCNNConv": {FEATURE: "kernels"},
    # propagation alone
    "APPNP": {},
    "LGConv": {},
    "SimpleConv": {},
    # any other message passing layer
    "MessagePassing": {},
}

# Modules that are one layer with all that is inside them, without being convolutions.
BLOCKS: Final[Mapping[str, Mapping[Role, str]]] = {
    "MultiheadAttention": {FEATURE: "in_proj_weight q_proj_weight k_proj_weight v_proj_weight out_proj"},
    "BatchNorm": {},
    "InstanceNorm": {},
    "HeteroBatchNorm": {},
    "HeteroLayerNorm": {},
    "GraphNorm": {OTHER: "mean_scale"},
    "DiffGroupNorm": {FEATURE: "lin"},
}


# Words that parameters of normalizations go by.
_NORM_ROLES: Final[Mapping[str, Role]] = {
    "weight": SCALE,
    "scale": SCALE,
    "gamma": SCALE,
    "bias": SHIFT,
    "shift": SHIFT,
    "beta": SHIFT,
}
_NORM = re.compile(r"Norm(\dd)?$")


def adapter_name(module: nn.Module) -> str | None:
    """The entry of `ADAPTERS` or `BLOCKS` that a module falls under; None for any other module."""
    names = (cls.__name__ for cls in _library_classes(module))
    return next((name for name in names if name in ADAPTERS or name in BLOCKS), None)


def kind_of(module: nn.Module) -> str:
    """The class a module is known as: that of the library where there is an adapter for it, else its own."""
    own = type_before_parametrizations(module).__name__
    known = next((cls.__name__ for cls in _library_classes(module)), own)
    return own if adapter_name(module) is None or known == "MessagePassing" else known


def _library_classes(module: nn.Module) -> list[type]:
    classes = type_before_parametrizations(module).__mro__
    return [cls for cls in classes if cls.__module__.startswith(("torch_geometric.", "torch.nn."))]


def role_of(name: str, dimensions: int, owner: nn.Module, adapter: str | None) -> Role:
    """The role of one parameter.

    In this order: a parameter of a normalization is its scale or shift; what is called a bias is one; then what the
    adapter's entry says; then, of what no entry names, `att` and `att_...` score edges, a matrix below a name with
    `edge` reads edge features, any other matrix maps features, and the rest is "other".

    Args:
        name: Of the parameter, relative to its layer, parametrizations already looked through (`lin_l.weight`).
        dimensions: How many axes it has.
        owner: The module that holds it.
        adapter: As `adapter_name` gave it for the layer.

    Example:
        >>> role_of("weight", 1, nn.LayerNorm(3), None)
        'norm scale'
        >>> role_of("lin_edge.weight", 2, nn.Linear(2, 3), "GATv2Conv")
        'edge weight'
    """
    last = name.rpartition(".")[2]
    if last in _NORM_ROLES and any(_NORM.search(cls.__name__) for cls in type(owner).__mro__):
        return _NORM_ROLES[last]
    if "bias" in last:
        return BIAS
    return _listed(name, adapter) or _guessed(name, last, dimensions)


def _listed(name: str, adapter: str | None) -> Role | None:
    entry = {**ADAPTERS, **BLOCKS}.get(adapter or "", {})
    for role, places in entry.items():
        if any(f"{name}.".startswith(f"{place}.") for place in places.split()):
            return role
    return None


def _guessed(name: str, last: str, dimensions: int) -> Role:
    if last == "att" or last.startswith("att_"):
        return ATTENTION
    if dimensions < 2:
        return OTHER
    return EDGE if "edge" in name else FEATURE
