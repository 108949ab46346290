"""The table of PyG's layer classes: the roles of their parameters, and how to recognize them in a state dict.

A class is looked up by name along its method resolution order, among classes of torch and torch_geometric only. So a
user's subclass of `GATConv` counts as a `GATConv`, a user's class that merely has this name does not, and PyG need not
be imported. A convolution that is not in the table falls under its base class, `MessagePassing`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from gatdiag.roles import ATTENTION, BIAS, EDGE, FEATURE, OTHER, SCALE, SHIFT, Role
from gatdiag.structure.modules import attributes_of, children_of

ALWAYS: Final = "always"
EXPLAINER_MASK: Final = "_edge_mask"  # parameter of each layer while an explainer runs, which trains it


@dataclass(frozen=True)
class Adapter:
    """The names of a layer class's parameters, by role. A name covers the parameter or submodule and all below it.

    Biases that are called so, and the parameters of normalizations, need not be listed.

    Attributes:
        signatures: Alternatives that identify the class in a state dict. Each lists names that are required and, after
            "|", names that are allowed in addition to those listed by role. "name/3" is a tensor with three
            dimensions, "-name" must be absent, and a leading "conv:" requires "conv" in the path, because blocks of the
            user's may well have the same names.
        feature: Names of feature weights.
        attention: Names of attention vectors.
        edge: Names of edge weights.
        bias: Names of biases that are not called "bias".
        other: Names of all other parameters.
        stack: Names of the matrices that each map the layer's whole input to its neurons, where the layer computes
            nothing but such maps, biases and attention scores, so that it can be part of a plain stack; else "".
        attends: `ALWAYS` if the layer computes attention coefficients; the name of the attribute that says
            whether it does; "" if it never does.
    """

    signatures: tuple[str, ...] = ()
    feature: str = ""
    attention: str = ""
    edge: str = ""
    bias: str = ""
    other: str = ""
    stack: str = ""
    attends: str = ""

    @property
    def roles(self) -> dict[Role, tuple[str, ...]]:
        """Role -> names."""
        roles: dict[Role, str] = {
            FEATURE: self.feature,
            ATTENTION: self.attention,
            EDGE: self.edge,
            BIAS: self.bias,
            OTHER: self.other,
        }
        return {role: tuple(names.split()) for role, names in roles.items() if names}


def _row(*signatures: str, **names: str) -> Adapter:
    return Adapter(signatures, **names)


ADAPTERS: Final[Mapping[str, Adapter]] = {
    # spectral and isotropic convolutions
    "GCNConv": _row("lin -lin.bias", feature="lin", stack="lin"),
    "GCN2Conv": _row("weight1", feature="weight1 weight2"),
    "ChebConv": _row("lins bias", feature="lins", stack="lins"),
    "TAGConv": _row(feature="lins"),
    "MixHopConv": _row(feature="lins"),
    "SGConv": _row("conv: lin", feature="lin", stack="lin"),
    "SSGConv": _row(feature="lin"),
    "ARMAConv": _row("init_weight", feature="init_weight weight root_weight"),
    "ClusterGCNConv": _row("lin_out lin_root", feature="lin_out lin_root", stack="lin_out lin_root"),
    "EGConv": _row("bases_lin comb_lin", feature="bases_lin comb_lin"),
    "PANConv": _row("lin weight/1", feature="lin", other="weight"),
    "FAConv": _row("att_l att_r", attention="att_l att_r", attends=ALWAYS),
    "AntiSymmetricConv": _row("W phi", feature="W"),
    # neighbor aggregation
    "SAGEConv": _row("lin_l", feature="lin lin_l lin_r", stack="lin_l lin_r"),
    "GraphConv": _row("lin_rel", "weight/2 lin", feature="lin_rel lin_root", stack="lin_rel lin_root"),  # before 1.5
    "LEConv": _row("lin1 lin2 lin3", feature="lin1 lin2 lin3", stack="lin1 lin2 lin3"),
    "MFConv": _row("lins_l", feature="lins_l lins_r"),
    "SignedConv": _row("lin_pos_l lin_pos_r lin_neg_l lin_neg_r", feature="lin_pos_l lin_pos_r lin_neg_l lin_neg_r"),
    "DirGNNConv": _row("conv_in conv_out", feature="lin"),
    "GINConv": _row("eps nn", feature="nn", other="eps"),
    "GINEConv": _row("eps nn lin", feature="nn", edge="lin", other="eps"),
    "PNAConv": _row("pre_nns post_nns", feature="pre_nns post_nns lin", edge="edge_encoder"),
    "GENConv": _row("mlp | norm lin_aggr_out", feature="lin_src lin_dst mlp", edge="lin_edge", other="aggr_module"),
    "EdgeConv": _row("nn", feature="nn"),
    "DynamicEdgeConv": _row(feature="nn"),
    "GatedGraphConv": _row("weight/3 rnn", feature="weight rnn"),
    "ResGatedGraphConv": _row("lin_key lin_query lin_value bias", feature="lin_key lin_query lin_value lin_skip"),
    "GeneralConv": _row(
        "lin_msg | scaler", feature="lin_msg lin_self", attention="att_msg", edge="lin_edge", attends="attention"
    ),
    # attention
    "GATConv": _row(
        "att_src/3 att_dst/3 lin",
        "att_src/3 att_dst/3 lin_src",
        "att_l/3 att_r/3 lin_l | lin_r",  # PyG 1.6 to 2.0
        "att/3 weight/2",  # before 1.6
        feature="lin lin_src lin_dst res",
        attention="att_src att_dst att_edge",
        edge="lin_edge",
        stack="lin lin_src lin_l res",
        attends=ALWAYS,
    ),
    "GATv2Conv": _row(
        "att/3 lin_l",
        feature="lin_l lin_r res",
        attention="att",
        edge="lin_edge",
        stack="lin_l lin_r res",
        attends=ALWAYS,
    ),
    "SuperGATConv": _row("att_l/3 att_r/3 lin", feature="lin", attention="att_l att_r", attends=ALWAYS),
    "TransformerConv": _row(
        "lin_key lin_query lin_value",
        feature="lin_query lin_key lin_value lin_skip",
        edge="lin_edge",
        other="lin_beta",
        attends=ALWAYS,
    ),
    "AGNNConv": _row("beta/1", other="beta", attends=ALWAYS),
    "FeaStConv": _row("lin u c", feature="lin", attention="u", bias="c", attends=ALWAYS),
    "DNAConv": _row("multi_head", feature="multi_head", attends=ALWAYS),
    "HypergraphConv": _row("att/3 lin", feature="lin", attention="att", attends="use_attention"),
    "PointTransformerConv": _row(
        "lin lin_src lin_dst", feature="lin lin_src lin_dst attn_nn", edge="pos_nn", attends=ALWAYS
    ),
    # edge features, relations and node types
    "NNConv": _row("nn bias", feature="lin", edge="nn"),
    "GMMConv": _row("g mu sigma", feature="g root", edge="mu sigma"),
    "SplineConv": _row("weight/3 lin", feature="weight lin"),
    "CGConv": _row("lin_f lin_s | bn", feature="lin_f lin_s"),
    "PDNConv": _row("lin mlp bias", feature="lin", edge="mlp"),
    "RGCNConv": _row("weight/3 root", "weight/3 comp", feature="weight root", other="comp"),
    "RGATConv": _row(
        "q k bias w l1 b1 l2 b2",
        feature="weight basis",
        attention="q k e",
        edge="lin_edge",
        bias="b1 b2",
        other="att w l1 l2",  # att mixes the bases of the weights; w, l1 and l2 scale by degree
        attends=ALWAYS,
    ),
    "FiLMConv": _row("lins films", feature="lins films lin_skip film_skip"),
    "HGTConv": _row(
        "kqv_lin out_lin k_rel v_rel",
        feature="kqv_lin out_lin k_rel v_rel",
        attention="p_rel",
        other="skip",
        attends=ALWAYS,
    ),
    "HANConv": _row(
        "proj k_lin lin_src lin_dst q", feature="proj k_lin", attention="lin_src lin_dst q", attends=ALWAYS
    ),
    "HEATConv": _row(
        "hetero_lin lin att edge_type_emb edge_attr_emb",
        feature="hetero_lin lin",
        attention="att",
        edge="edge_type_emb edge_attr_emb",
        attends=ALWAYS,
    ),
    # points and meshes
    "PointNetConv": _row("conv: local_nn", feature="local_nn global_nn"),
    "PPFConv": _row(feature="local_nn global_nn"),
    "PointGNNConv": _row("mlp_h mlp_f mlp_g", feature="mlp_h mlp_f mlp_g"),
    "GravNetConv": _row("lin_s lin_h lin_out1", feature="lin_s lin_h lin_out1 lin_out2"),
    "XConv": _row("mlp1 mlp2 conv", feature="mlp1 mlp2 conv"),
    "MeshCNNConv": _row("kernels", feature="kernels"),
    # propagation alone
    "APPNP": _row(),
    "LGConv": _row(),
    "SimpleConv": _row(),
    # any other convolution
    "MessagePassing": _row(),
}

# Modules that are one layer together with their submodules, but no convolutions.
BLOCKS: Final[Mapping[str, Adapter]] = {
    "MultiheadAttention": _row(
        "in_proj_weight out_proj | in_proj_bias bias_k bias_v",
        "q_proj_weight k_proj_weight v_proj_weight out_proj | in_proj_bias bias_k bias_v",
        feature="in_proj_weight q_proj_weight k_proj_weight v_proj_weight out_proj",
        attends=ALWAYS,
    ),
    "BatchNorm": _row(),
    "InstanceNorm": _row(),
    "HeteroBatchNorm": _row(),
    "HeteroLayerNorm": _row(),
    "GraphNorm": _row("mean_scale/1 weight bias", other="mean_scale"),
    "DiffGroupNorm": _row("lin norm", feature="lin"),
}

_NORM_ROLES: Final[Mapping[str, Role]] = {
    "weight": SCALE,
    "scale": SCALE,
    "gamma": SCALE,
    "bias": SHIFT,
    "shift": SHIFT,
    "beta": SHIFT,
}
NORM: Final = re.compile(r"Norm(\dd)?$")
"""Matches the name of a normalization class."""
_SCORING = re.compile(r"att$|att_|attn_(l|r|src|dst)$")
"""Matches the name of an attention vector, also in DGL."""
_SCORING_VECTOR = re.compile(r"a(_?(src|dst|l|r|1|2))?$|attn$")
"""Matches that of one in pyGAT and other code, if it is a vector: the same letters name matrices."""
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\..*$")
_SUFFIX = re.compile(r"(?<=weight)_[gv]$|_orig$")  # of torch.nn.utils.weight_norm, spectral_norm and prune


def adapter_name(module: nn.Module) -> str | None:
    """The key of `ADAPTERS` or `BLOCKS` that a module falls under, if any."""
    names = (cls.__name__ for cls in _library_classes(module))
    return next((name for name in names if name in ADAPTERS or name in BLOCKS), None)


def has_attention(module: nn.Module) -> bool:
    """Whether a layer computes attention coefficients."""
    switch = _adapter(adapter_name(module)).attends
    return switch == ALWAYS or bool(switch and attributes_of(module).get(switch))


def layer_kind(module: nn.Module) -> str:
    """The name of the library class a module derives from, if there is an adapter for it; else of its own class."""
    own = _own_class(module).__name__
    if adapter_name(module) is None:
        return own
    library = _library_classes(module)[0].__name__
    return own if library == "MessagePassing" else library


def _library_classes(module: nn.Module) -> list[type]:
    classes = _own_class(module).__mro__
    return [cls for cls in classes if cls.__module__.startswith(("torch_geometric.", "torch.nn."))]


def _own_class(module: nn.Module) -> type:
    """The class of a module before it was parametrized, as by `torch.nn.utils.parametrize`."""
    is_parametrized = isinstance(children_of(module).get("parametrizations"), nn.ModuleDict)
    return type(module).__bases__[0] if is_parametrized else type(module)


def is_normalization(module: nn.Module) -> bool:
    """Whether a module is a normalization, by the name of its class."""
    return any(NORM.search(cls.__name__) for cls in type(module).__mro__)


def parameter_role(
    name: str, dimensions: int, adapter: str | None, *, normalizes: bool, is_vector: bool = False
) -> Role:
    """The role of a parameter.

    The first rule that applies decides: a parameter of a normalization is its scale or shift; one with "bias" in its
    name is a bias; one that the adapter lists has the role given there; `att` and `att_...` are attention vectors, as
    are `attn_l` and `attn_r` (DGL) and a vector called `a` (pyGAT); a matrix with "edge" in its name is an edge weight,
    any other matrix a feature weight; everything else is "other".

    Args:
        name: Name of the parameter relative to its layer, without parametrizations (`lin_l.weight`).
        dimensions: Number of dimensions of the parameter.
        adapter: `adapter_name` of the layer.
        normalizes: Whether the module that owns the parameter is a normalization.
        is_vector: Whether it is a matrix with one row or one column.

    Example:
        >>> parameter_role("weight", 1, None, normalizes=True)
        'norm scale'
        >>> parameter_role("lin_edge.weight", 2, "GATv2Conv", normalizes=False)
        'edge weight'
    """
    last = name.rpartition(".")[2]
    if normalizes and last in _NORM_ROLES:
        return _NORM_ROLES[last]
    if "bias" in last:
        return BIAS
    for role, listed in _adapter(adapter).roles.items():
        if any(f"{name}.".startswith(f"{each}.") for each in listed):
            return role
    if _SCORING.match(last) or (is_vector and _SCORING_VECTOR.match(last)):
        return ATTENTION
    if dimensions < 2:
        return OTHER
    return EDGE if "edge" in name else FEATURE


def is_vector(shape: Sequence[int]) -> bool:
    """Whether this is the shape of a matrix with one row or one column."""
    return len(shape) == 2 and 1 in shape


def _adapter(name: str | None) -> Adapter:
    return ADAPTERS.get(name or "") or BLOCKS.get(name or "") or Adapter()


def weight_name(name: str) -> str:
    """The name of the weight that a stored tensor belongs to: without parametrizations, weight norm and pruning.

    Example:
        >>> weight_name("lin.parametrizations.weight.original0"), weight_name("lin.weight_orig")
        ('lin.weight', 'lin.weight')
    """
    return _SUFFIX.sub("", _PARAMETRIZED.sub(r"\1", name))
