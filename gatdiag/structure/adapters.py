"""The one table of PyG's classes: where each keeps its parameters, what tells it in a state dict, whether it stacks.

A class is looked up by its name along the method resolution order, among classes of torch and torch_geometric only:
so a user's subclass of `GATConv` is read as a `GATConv`, a class of the user's that merely has the same name is not,
and nothing is imported to look. A convolution that is not in the table is caught by `MessagePassing`, its base class.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gatdiag.roles import ATTENTION, BIAS, EDGE, FEATURE, OTHER, SCALE, SHIFT, Role

ALWAYS: Final = "always"


@dataclass(frozen=True)
class Adapter:
    """How a class of layers names what it holds. A name stands for the parameter and for all that is below it.

    What is called a bias, and what belongs to a normalization, has its role without being listed.

    Attributes:
        signatures: What tells the class in a state dict, which knows no classes: alternatives, each of them names that
            must be there, and after "|" names that may be there besides those listed by role. "name/3" is a tensor
            of three axes, "-name" must not be there, and "conv:" begins what counts only where the path says so, for a
            user's block may well have such names.
        feature: Names of feature weights.
        attention: Names of attention vectors.
        edge: Names of edge weights.
        bias: Names of biases that are not called so.
        other: Names of all else.
        stack: Matrices that each map the whole input of the layer to its neurons, which attention vectors score and
            biases shift: of such layers a plain stack is made. Empty where a layer computes anything else.
        attends: `ALWAYS` if it computes attention coefficients; the name of the attribute that says so; "" if it never
            does.
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
        listed: dict[Role, str] = {
            FEATURE: self.feature,
            ATTENTION: self.attention,
            EDGE: self.edge,
            BIAS: self.bias,
            OTHER: self.other,
        }
        return {role: tuple(names.split()) for role, names in listed.items() if names}


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
    # any other message passing layer
    "MessagePassing": _row(),
}

# Modules that are one layer with all that is inside them, without being convolutions.
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

# Words that parameters of normalizations go by.
_NORM_ROLES: Final[Mapping[str, Role]] = {
    "weight": SCALE,
    "scale": SCALE,
    "gamma": SCALE,
    "bias": SHIFT,
    "shift": SHIFT,
    "beta": SHIFT,
}
NORM: Final = re.compile(r"Norm(\dd)?$")
"""End of the name of a class that normalizes."""
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\..*$")
_REWRITTEN = re.compile(r"(?<=weight)_[gv]$|_orig$")  # by old-style weight normalization, spectral one, and pruning


def adapter_name(module: nn.Module) -> str | None:
    """The entry of `ADAPTERS` or `BLOCKS` that a module falls under; None for any other module."""
    names = (cls.__name__ for cls in _library_classes(module))
    return next((name for name in names if name in ADAPTERS or name in BLOCKS), None)


def has_attention(module: nn.Module) -> bool:
    """True if a layer computes attention coefficients."""
    switch = _entry(adapter_name(module)).attends
    return switch == ALWAYS or bool(switch and getattr(module, switch))


def layer_kind(module: nn.Module) -> str:
    """The class a module is known as: that of the library where there is an adapter for it, else its own."""
    own = type_before_parametrizations(module).__name__
    if adapter_name(module) is None:
        return own
    known = _library_classes(module)[0].__name__
    return own if known == "MessagePassing" else known


def _library_classes(module: nn.Module) -> list[type]:
    classes = type_before_parametrizations(module).__mro__
    return [cls for cls in classes if cls.__module__.startswith(("torch_geometric.", "torch.nn."))]


def is_normalization(module: nn.Module) -> bool:
    """True for a normalization, by the name of its class."""
    return any(NORM.search(cls.__name__) for cls in type(module).__mro__)


def parameter_role(name: str, dimensions: int, adapter: str | None, *, normalizes: bool) -> Role:
    """The role of one parameter.

    In this order: a parameter of a normalization is its scale or shift; what is called a bias is one; then what the
    adapter's entry says; then, of what no entry names, `att` and `att_...` score edges, a matrix below a name with
    `edge` reads edge features, any other matrix maps features, and the rest is "other".

    Args:
        name: Of the parameter, relative to its layer, parametrizations already looked through (`lin_l.weight`).
        dimensions: How many axes it has.
        adapter: As `adapter_name` gave it for the layer.
        normalizes: Whether the module that holds it does.

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
    return _listed(name, adapter) or _guessed(name, last, dimensions)


def _entry(adapter: str | None) -> Adapter:
    return ADAPTERS.get(adapter or "") or BLOCKS.get(adapter or "") or Adapter()


def _listed(name: str, adapter: str | None) -> Role | None:
    for role, places in _entry(adapter).roles.items():
        if any(f"{name}.".startswith(f"{place}.") for place in places):
            return role
    return None


def _guessed(name: str, last: str, dimensions: int) -> Role:
    if last == "att" or last.startswith("att_"):
        return ATTENTION
    if dimensions < 2:
        return OTHER
    return EDGE if "edge" in name else FEATURE


def weight_name(name: str) -> str:
    """The name of the weight that a tensor is stored for, which may be computed from it.

    Example:
        >>> weight_name("lin.parametrizations.weight.original0"), weight_name("lin.weight_orig")
        ('lin.weight', 'lin.weight')
    """
    return _REWRITTEN.sub("", _PARAMETRIZED.sub(r"\1", name))
