"""The roles of parameters, which are the same for all architectures; kinds of layers."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

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

ROOT: Final = "(root)"  # name of the layer of the parameters that sit on the model itself
STACKED: Final = ("GATConv", "GATv2Conv", "GCNConv", "Linear")  # layer kinds whose stack is recognized without inputs


def is_conv(layer: Mapping[str, Any]) -> bool:
    """True for a graph convolution, by the kind that the meta data of a run give.

    Example:
        >>> is_conv({"kind": "GATv2Conv"}), is_conv({"kind": "Conv2d"})
        (True, False)
    """
    kind = str(layer.get("kind"))
    return "Conv" in kind and not kind.startswith(("Conv1d", "Conv2d", "Conv3d"))
