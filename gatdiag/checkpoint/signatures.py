"""By which names PyG's layers are recognized: one visible table.

Kind, names that must be there, names that may be, all relative to the layer's path. A name stands for the tensor and
for all that is below it, "name/3" for a tensor of three axes, and "-name" for what must not be there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Children: TypeAlias = Mapping[str, Shape | None]  # name right below a path -> shape of the tensor, None for a module


@dataclass(frozen=True)
class Signature:
    """The names of one kind of layer.

    Attributes:
        kind: Class of the layer, as in `gatdiag.structure.adapters`.
        required: Name -> how many axes its tensor must have; None: any, or a module.
        allowed: All names that may be right below the layer.
        absent: Names of tensors, dotted, that must not be there.
    """

    kind: str
    required: Mapping[str, int | None]
    allowed: frozenset[str]
    absent: tuple[str, ...]

    def fits(self, children: Children, has: Callable[[str], bool]) -> bool:
        """Whether a module with these children is of this kind; `has` says which dotted names are below it."""
        if not self.required.keys() <= children.keys() <= self.allowed:
            return False
        axes_fit = all(len(children[name] or ()) == axes for name, axes in self.required.items() if axes is not None)
        return axes_fit and not any(map(has, self.absent))


def _signature(kind: str, must: str, may: str) -> Signature:
    names = [name.partition("/") for name in must.split() if not name.startswith("-")]
    required = {name: int(axes) if axes else None for name, _, axes in names}
    absent = tuple(name[1:] for name in must.split() if name.startswith("-"))
    return Signature(kind, required, frozenset({*required, *may.split()}), absent)


_ROWS: Final = (
    ("GATv2Conv", "att/3 lin_l", "lin_r bias lin_edge res"),
    ("GATConv", "att_src/3 att_dst/3 lin", "bias att_edge lin_edge res"),
    ("GATConv", "att_src/3 att_dst/3 lin_src", "lin_dst bias att_edge lin_edge res"),
    ("GATConv", "att_l/3 att_r/3 lin_l", "lin_r bias"),  # PyG 1.6 to 2.0
    ("GATConv", "att/3 weight/2", "bias"),  # PyG before 1.6
    ("SuperGATConv", "att_l/3 att_r/3 lin", "bias"),
    ("HypergraphConv", "att/3 lin", "bias"),
    ("FAConv", "att_l att_r", ""),
    ("FeaStConv", "lin u c", "bias"),
    ("GeneralConv", "lin_msg", "lin_self lin_edge att_msg scaler"),
    ("DNAConv", "multi_head", ""),
    ("PDNConv", "lin mlp bias", ""),
    ("ResGatedGraphConv", "lin_key lin_query lin_value bias", "lin_skip"),
    ("TransformerConv", "lin_key lin_query lin_value", "lin_skip lin_edge lin_beta"),
    ("PointTransformerConv", "lin lin_src lin_dst", "pos_nn attn_nn"),
    ("GENConv", "mlp", "lin_src lin_dst lin_edge lin_aggr_out aggr_module norm"),
    ("ClusterGCNConv", "lin_out lin_root", ""),
    ("GraphConv", "lin_rel", "lin_root aggr_module"),
    ("GraphConv", "weight/2 lin", "bias"),  # PyG before 1.5
    ("SAGEConv", "lin_l", "lin_r lin aggr_module"),
    ("MFConv", "lins_l", "lins_r"),
    ("SignedConv", "lin_pos_l lin_pos_r lin_neg_l lin_neg_r", ""),
    ("LEConv", "lin1 lin2 lin3", ""),
    ("EGConv", "bases_lin comb_lin", "bias"),
    ("PANConv", "lin weight/1", ""),
    ("FiLMConv", "lins films", "lin_skip film_skip"),
    ("PNAConv", "pre_nns post_nns", "lin edge_encoder aggr_module"),
    ("ChebConv", "lins bias", ""),
    ("CGConv", "lin_f lin_s", "bn"),
    ("GINConv", "eps nn", ""),
    ("GINEConv", "eps nn lin", ""),
    ("NNConv", "nn bias", "lin"),
    ("EdgeConv", "nn", ""),
    ("GatedGraphConv", "weight/3 rnn", ""),
    ("ARMAConv", "init_weight", "weight root_weight bias"),
    ("GMMConv", "g mu sigma", "root bias"),
    ("SplineConv", "weight/3 lin", "bias"),
    ("RGATConv", "q k bias w l1 b1 l2 b2", "weight basis att lin_edge e"),
    ("RGCNConv", "weight/3 root", "bias comp"),
    ("RGCNConv", "weight/3 comp", "bias"),
    ("HGTConv", "kqv_lin out_lin k_rel v_rel", "skip p_rel"),
    ("HANConv", "proj k_lin lin_src lin_dst q", ""),
    ("HEATConv", "hetero_lin lin att edge_type_emb edge_attr_emb", ""),
    ("PointGNNConv", "mlp_h mlp_f mlp_g", ""),
    ("GravNetConv", "lin_s lin_h lin_out1", "lin_out2"),
    ("XConv", "mlp1 mlp2 conv", ""),
    ("MeshCNNConv", "kernels", ""),
    ("DirGNNConv", "conv_in conv_out", "lin"),
    ("AntiSymmetricConv", "W phi", "bias"),
    ("AGNNConv", "beta/1", ""),
    ("GCN2Conv", "weight1", "weight2"),
    ("GCNConv", "lin -lin.bias", "bias"),
    ("MultiheadAttention", "in_proj_weight out_proj", "in_proj_bias bias_k bias_v"),
    ("MultiheadAttention", "q_proj_weight k_proj_weight v_proj_weight out_proj", "in_proj_bias bias_k bias_v"),
    ("DiffGroupNorm", "lin norm", ""),
)

# Names that a user's block may well have too: they count only where the path says "conv".
_WEAK_ROWS: Final = (
    ("EdgeConv", "nn", ""),
    ("GENConv", "mlp", "lin_src lin_dst lin_edge lin_aggr_out aggr_module norm"),
    ("PointNetConv", "local_nn", "global_nn"),
    ("SGConv", "lin", ""),
)

_STRONG: Final = tuple(_signature(*row) for row in _ROWS)
_WEAK: Final = tuple(_signature(*row) for row in _WEAK_ROWS)

# Each signature needs one of these; a leaf, which has a weight and a bias, is seen at once to be none of them.
_TELLING: Final = frozenset(name for known in _STRONG + _WEAK for name in known.required) - {"weight", "bias"}


def matching_kind(path: str, children: Children, has: Callable[[str], bool]) -> str | None:
    """The kind of the first signature that fits the module at a path.

    Args:
        path: Of the module.
        children: What is right below it.
        has: Whether there is a tensor of this dotted name below it.

    Example:
        >>> matching_kind("convs.0", {"lin": None, "bias": (8,)}, lambda name: name == "lin.weight")
        'GCNConv'
    """
    if not children.keys() & _TELLING:
        return None
    signatures = _STRONG + _WEAK if "conv" in path.lower() else _STRONG
    return next((signature.kind for signature in signatures if signature.fits(children, has)), None)
