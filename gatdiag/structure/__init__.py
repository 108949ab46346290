"""Structure: a model becomes ordered layers, each with the role of every parameter.

`discover` reads the layers off the table in `adapters.py`. `replicate` (in `replica.py`) is how any room runs the
user's model without changing it.
"""

from gatdiag.roles import ROLES, Role
from gatdiag.structure.discovery import discover
from gatdiag.structure.layers import Layer, Order, ParameterInfo, Structure
from gatdiag.structure.replica import Replica, replicate, unwrap

__all__ = [
    "ROLES",
    "Layer",
    "Order",
    "ParameterInfo",
    "Replica",
    "Role",
    "Structure",
    "discover",
    "replicate",
    "unwrap",
]
