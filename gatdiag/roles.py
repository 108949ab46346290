"""The roles of parameters, which are the same for all architectures."""

from typing import Final, Literal, TypeAlias, get_args

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
