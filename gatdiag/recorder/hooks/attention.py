"""The attention coefficients of a layer, and why those of some layers cannot be read.

PyG passes the inputs of the coefficients to hooks on a layer's edge update (`GATConv`, `GATv2Conv`) or on its messages.
A hook exists only while the layer runs, so that the model can be saved without it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from gatdiag.structure.adapters import adapter_name, has_attention
from gatdiag.structure.modules import attributes_of, is_training

Coefficients: TypeAlias = tuple[Tensor, Tensor]

_DROPOUT: Final = "attention dropout hides the coefficients"
_PER_RELATION: Final = "the coefficients sum to one over the edges of each relation, not over all edges of a node"


def _read_alpha(module: Any, _: Mapping[str, Any]) -> Any:
    return module._alpha


def _call_get_attention(module: Any, given: Mapping[str, Any]) -> Any:
    return module.get_attention(given["edge_index_i"], given["x_i"], given["x_j"], num_nodes=given["size_i"])


def _compute_cosine(module: Any, given: Mapping[str, Any]) -> Any:
    from torch_geometric.utils import softmax

    scores = module.beta * (given["x_norm_i"] * given["x_norm_j"]).sum(-1)
    return softmax(scores, given["index"], given["ptr"], given["size_i"])


# Layers whose coefficients, before dropout, can be computed from the inputs of their messages.
_FROM_MESSAGES: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "TransformerConv": _read_alpha,
    "RGATConv": _read_alpha,
    "SuperGATConv": _call_get_attention,
    "AGNNConv": _compute_cosine,
}
_FROM_EDGE_UPDATES: Final = frozenset({"GATConv", "GATv2Conv"})


def unreadable_reason(module: nn.Module) -> str | None:
    """Why the coefficients of this layer cannot be read; "" if they can, None for a layer without attention."""
    if not has_attention(module):
        return None
    name = adapter_name(module) or ""
    if name in _FROM_EDGE_UPDATES:
        return _DROPOUT if is_training(module) and float(attributes_of(module).get("dropout", 0.0)) > 0.0 else ""
    if name in _FROM_MESSAGES:
        methods = [getattr(type(module), method, None) for method in ("message", "get_attention")]
        if not all(method.__module__.startswith("torch_geometric.") for method in methods if method is not None):
            return f"{type(module).__name__} overrides how its coefficients are computed"
        return _PER_RELATION if attributes_of(module).get("attention_mechanism") == "within-relation" else ""
    return f"the coefficients of {name} cannot be read"


def hook_coefficients(module: Any, callback: Callable[[Callable[[], Coefficients]], None]) -> Any:
    """Hook a layer so that it reports its coefficients; returns the handle.

    Args:
        module: The layer.
        callback: Called with a function that returns coefficients (E,) or (E, H) and their target nodes (E,).
    """
    read = _FROM_MESSAGES.get(adapter_name(module) or "")

    def edge_update_hook(_: nn.Module, inputs: Any, alpha: Any) -> None:
        edges = inputs[0]
        if isinstance(alpha, Tensor) and isinstance(edges, Tensor) and edges.layout == torch.strided:
            callback(lambda: (alpha.detach(), edges[1].detach()))

    def message_hook(module: nn.Module, inputs: Any, _: Any) -> None:
        given = inputs[0]
        if read is not None:
            target = given["edge_index_i"] if "edge_index_i" in given else given["index"]
            callback(lambda: (read(module, given).detach(), target.detach()))

    if read is None:
        return module.register_edge_update_forward_hook(edge_update_hook)
    return module.register_message_forward_hook(message_hook)
