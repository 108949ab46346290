"""Attention coefficients of a layer -> their entropy, averaged over nodes and heads.

PyG shows what they are computed from to hooks on a layer's edge update (`GATConv`, `GATv2Conv`) and on its messages. A
hook is there only while the layer runs, so that nothing of it is left when the model is saved.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.quantities import GROUPS
from gatdiag.structure.adapters import adapter_name, has_attention

Coefficients: TypeAlias = tuple[Tensor, Tensor]

_HIDDEN: Final = "attention dropout hides the coefficients"
_PER_RELATION: Final = "the coefficients sum to one over the edges of each relation, not over all edges of a node"


def _own(module: Any, _: Mapping[str, Any]) -> Any:
    return module._alpha


def _computed(module: Any, given: Mapping[str, Any]) -> Any:
    return module.get_attention(given["edge_index_i"], given["x_i"], given["x_j"], num_nodes=given["size_i"])


def _cosine(module: Any, given: Mapping[str, Any]) -> Any:
    from torch_geometric.utils import softmax

    scores = module.beta * (given["x_norm_i"] * given["x_norm_j"]).sum(-1)
    return softmax(scores, given["index"], given["ptr"], given["size_i"])


# Layers whose coefficients, before any dropout, come from what their messages are made of.
_OF_MESSAGES: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "TransformerConv": _own,
    "RGATConv": _own,
    "SuperGATConv": _computed,
    "AGNNConv": _cosine,
}
_OF_EDGES: Final = frozenset({"GATConv", "GATv2Conv"})


def obstacle(module: nn.Module) -> str | None:
    """Why the coefficients of this layer cannot be read; "" if they can, None for a layer that has none."""
    if not has_attention(module):
        return None
    name = adapter_name(module) or ""
    if name in _OF_EDGES:
        return _HIDDEN if module.training and float(getattr(module, "dropout", 0.0)) > 0.0 else ""
    if name in _OF_MESSAGES:
        methods = [getattr(type(module), method, None) for method in ("message", "get_attention")]
        if not all(method.__module__.startswith("torch_geometric.") for method in methods if method is not None):
            return f"{type(module).__name__} computes its coefficients in its own way"
        return _PER_RELATION if getattr(module, "attention_mechanism", "") == "within-relation" else ""
    return f"the coefficients of {name} cannot be read"


def listen_once(module: Any, tell: Callable[[Callable[[], Coefficients]], None]) -> Any:
    """Hand over a way to coefficients (E,) or (E, H) and their targets (E,) when they have been computed."""
    read = _OF_MESSAGES.get(adapter_name(module) or "")

    def of_edges(_: nn.Module, inputs: Any, alpha: Any) -> None:
        edges = inputs[0]
        if isinstance(alpha, Tensor) and isinstance(edges, Tensor) and edges.layout == torch.strided:
            tell(lambda: (alpha.detach(), edges[1].detach()))

    def of_messages(module: nn.Module, inputs: Any, _: Any) -> None:
        given = inputs[0]
        if read is not None:
            target = given["edge_index_i"] if "edge_index_i" in given else given["index"]
            tell(lambda: (read(module, given).detach(), target.detach()))

    if read is None:
        return module.register_edge_update_forward_hook(of_edges)
    return module.register_message_forward_hook(of_messages)


@torch.no_grad()
def spread(read: Callable[[], Coefficients]) -> dict[str, Tensor]:
    """The columns of the group "attention" of one layer."""
    return dict(zip(GROUPS["attention"].columns, metrics.attention_spread(*read()), strict=True))
