"""The layers of a model in order, and the role of each of their parameters.

`discover` finds the layers, by the table of PyG's classes in `adapters.py`. `replicate` copies the user's model so that
it can be run without changing it.
"""

from gatdiag.structure.discovery import discover
from gatdiag.structure.layers import Layer, ParameterInfo, Structure
from gatdiag.structure.replica import Replica, replicate, unwrap

__all__ = [
    "Layer",
    "ParameterInfo",
    "Replica",
    "Structure",
    "discover",
    "replicate",
    "unwrap",
]
