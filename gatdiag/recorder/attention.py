"""Attention coefficients of a layer -> their entropy, averaged over nodes and heads.

PyG shows the coefficients of `GATConv` and `GATv2Conv` to a hook on the layer's edge update. The hook is there only
while the layer runs, so that nothing of it is left when the model is saved.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.structure.adapters import adapter_name

_KNOWN = frozenset({"GATConv", "GATv2Conv"})


def shows_attention(module: nn.Module) -> bool:
    """Whether the coefficients of this layer can be read."""
    return adapter_name(module) in _KNOWN


def hidden_by_dropout(module: nn.Module) -> bool:
    """Whether the coefficients that can be read are those after dropout, which do not sum to one."""
    return module.training and float(getattr(module, "dropout", 0.0)) > 0.0


def listen_once(module: nn.Module, tell: Callable[[Tensor, Tensor], None]) -> Any:
    """Hand coefficients (E,) or (E, H) and their targets (E,) over when they have been computed.

    Returns:
        A handle, to be removed when the layer has run.
    """

    def hook(_: nn.Module, inputs: Any, alpha: Any) -> None:
        edges = inputs[0]
        if isinstance(alpha, Tensor) and isinstance(edges, Tensor) and edges.layout == torch.strided:
            tell(alpha.detach(), edges[1].detach())

    return module.register_edge_update_forward_hook(hook)  # type: ignore[operator]


def mean_entropies(alpha: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Mean over heads and over the nodes with incoming edges of H_i; over those with at least two, of H_i / log d_i."""
    if len(target) == 0:
        undefined = torch.full((), torch.nan, dtype=torch.float64, device=alpha.device)
        return {"attention_entropy": undefined, "relative_attention_entropy": undefined}
    nodes = int(target.max()) + 1
    reached = torch.zeros(nodes, dtype=torch.bool, device=target.device).index_fill(0, target, True)
    entropy = metrics.attention_entropy(alpha, target, nodes)
    relative = metrics.relative_attention_entropy(alpha, target, nodes)
    branching = ~relative.isnan() if bool(alpha.isfinite().all()) else reached.view(-1, *[1] * (alpha.dim() - 1))
    return {
        "attention_entropy": entropy[reached].mean(),
        "relative_attention_entropy": relative.masked_select(branching).mean(),
    }
