"""LipschitzNorm: divide attention scores so that the layer is Lipschitz for any inputs and weights.

For a target i with n_i neighbors j, values x_j and scores g~_ij before the softmax,

    g_ij = alpha g~_ij / c_i,        softmax(g) X is then Lipschitz with constant e^alpha / sqrt(n_i) + alpha sqrt(8)

(`gatdiag.metrics.attention_bound`). The divisors c_i of each head:

    linear (GATConv, GATv2Conv)     g~ = a^T [x_j | x_i | e_ij]
                                    c = ||a|| sqrt(max_j ||x_j||^2 + ||x_i||^2 + max_j ||e_ij||^2)
    quadratic (TransformerConv)     g~ = q_i . k_j
                                    c = max{u v, u w, v w}, u = ||q_i||, v = max_j ||k_j||, w = max_j ||v_j||

x, q, k, v are the input times the layer's weights, and e_ij the edge features times theirs. GATv2 applies LeakyReLU,
which is 1-Lipschitz, before a, so a counts once for each part of the sum: ||a|| sqrt(2).

Source:
    Dasoulas, Scaman & Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural
    Networks", ICML 2021.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.errors import ModelError
from gatdiag.remedies.applied import Applied, add_mixin, check_positive, remove_mixin, unwrap_model
from gatdiag.remedies.lipschitz_layers import MIXINS, LipschitzMixin, vector_norms
from gatdiag.structure.adapters import adapter_name

_VECTORS: Final = ("att", "att_src", "att_dst")
_OVERRIDABLE: Final = ("forward", "edge_update", "message")


def lipschitz_normalize_(model: nn.Module, *, alpha: float = 1.0) -> Applied:
    """Divide the scores of a model's attention layers so that each layer is Lipschitz, in place; weights do not change.

    Attention is not Lipschitz: scores grow with features and weights, gradients with scores, and over many layers they
    explode. The cost of LipschitzNorm is more uniform attention for a small alpha.

    Args:
        model: Any module that contains PyG's `GATConv`, `GATv2Conv` or `TransformerConv`.
        alpha: Bound of the scores. If small, attention is close to the mean over neighbors; if large, it can be more
            selective, but gradients may grow more (`lipschitz_bound`).

    Returns:
        The changed layers, which can be undone.

    Raises:
        InputError: An argument is invalid.
        ModelError: The model has no such layer; or a layer has its own method for scores, is already normalized, or has
            a zero attention vector. Nothing was changed.

    Source:
        Dasoulas, Scaman & Virmaux, ICML 2021.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> model = GAT(4, 8, num_layers=2, heads=2)
        >>> print(lipschitz_normalize_(model, alpha=0.5))
        lipschitz_normalize:
          convs.0: scores divided (GATConv, alpha = 0.5)
          convs.1: scores divided (GATConv, alpha = 0.5)
    """
    alpha = check_positive("alpha", alpha)
    user = unwrap_model(model)
    layers = {name or "the model": layer for name, layer in user.named_modules() if adapter_name(layer) in MIXINS}
    if not layers:
        raise ModelError(f"Expected a model with {', '.join(MIXINS)}, but {type(model).__name__} has none")
    applied = Applied("lipschitz_normalize")
    with applied.undo_on_error():
        for name, layer in layers.items():
            _normalize_(applied, name, layer, alpha)
        return applied


def _normalize_(applied: Applied, name: str, layer: Any, alpha: float) -> None:
    kind = adapter_name(layer) or ""
    if isinstance(layer, LipschitzMixin):
        raise ModelError(f"{name} is already normalized: undo that first")
    own = [method for method in _OVERRIDABLE if not _is_from_pyg(getattr(layer, method, None))]
    if own:
        raise ModelError(f"{name} ({type(layer).__name__}) overrides {own[0]}(), so that its scores are not known")
    vectors = [vector.detach() for key in _VECTORS if (vector := getattr(layer, key, None)) is not None]
    if vectors and not vector_norms(torch.cat(vectors, -1)).all():
        raise ModelError(
            f"{name} has a head whose attention vector is zero, but scores are divided by its norm: draw it with "
            'initialize_(model, scheme, attention="random")'
        )

    def undo() -> None:
        remove_mixin(layer, MIXINS[kind])
        vars(layer).pop("lipschitz_alpha", None)

    applied.add_change(name, f"scores divided ({kind}, alpha = {alpha:g})", undo)
    layer.lipschitz_alpha = alpha
    add_mixin(layer, MIXINS[kind])


def _is_from_pyg(method: Any) -> bool:
    return getattr(method, "__module__", "torch_geometric").startswith(("torch_geometric", "gatdiag.remedies."))


def lipschitz_bound(layer: nn.Module, edge_index: Tensor, num_nodes: int) -> Tensor:
    """Upper bound L of a normalized layer: ||f(X) - f(Y)||_F <= L ||X - Y||_F for all X and Y, in evaluation mode.

    With L_i the theorem's bound for target i, as a function of the values, and N(i) its neighbors,

        L^2 <= max_j ( s^2 sum_{i: j in N(i)} L_i^2 + t^2 L_j^2 )

    where s^2 is ||W_s||_2^2 of the values (plus ||W_k||_2^2 of the keys), and t is ||W_t||_2 of the target's features
    or queries. Heads are combined as in `gatdiag.metrics.heads_bound`. The norm of a gradient grows by at most L.

    Args:
        layer: A layer normalized by `lipschitz_normalize_`.
        edge_index: Input of the layer, of shape (2, E) or sparse, without the self loops that the layer adds.
        num_nodes: N; for a bipartite graph, the larger number of nodes.

    Returns:
        0-d float64 tensor. Infinity if a gate multiplies features (`TransformerConv(beta=True)`).

    Raises:
        ModelError: The layer is not normalized.

    Example:
        >>> from torch_geometric.nn import GATConv
        >>> layer = GATConv(2, 2, bias=False)
        >>> _ = nn.init.eye_(layer.lin.weight), lipschitz_normalize_(layer, alpha=1e-9)
        >>> round(lipschitz_bound(layer, torch.tensor([[0, 1], [1, 0]]), 2).item(), 3)  # a mean of two, taken twice
        1.225
    """
    if not isinstance(layer, LipschitzMixin):
        raise ModelError(f"Expected a layer that lipschitz_normalize_ has normalized, got a {type(layer).__name__}")
    if getattr(layer, "lin_beta", None) is not None:
        return torch.tensor(math.inf, dtype=torch.float64)
    source, target = _edges(layer, edge_index, num_nodes)
    degrees, inverse = torch.bincount(target, minlength=num_nodes).unique(return_inverse=True)
    alpha = torch.tensor(layer.lipschitz_alpha, dtype=torch.float64)
    bounds = [
        metrics.attention_bound(alpha, 1, degree) if degree else torch.zeros_like(alpha) for degree in degrees.tolist()
    ]
    square = torch.stack(bounds)[inverse].square()
    received = torch.zeros_like(square).index_add(0, source, square[target])
    neighbor_norms, target_norms = _weight_norms(layer, adapter_name(layer))
    from_neighbors = neighbor_norms.square().unsqueeze(1) * received
    from_target = target_norms.square().unsqueeze(1) * square
    heads = (from_neighbors + from_target).amax(1).sqrt()
    bound = metrics.heads_bound(heads, concat=bool(layer.concat))
    for name in ("res", "lin_skip"):
        skip = getattr(layer, name, None)
        bound = bound if skip is None else bound + torch.linalg.matrix_norm(skip.weight.detach().double(), 2)
    return bound


def _weight_norms(layer: Any, kind: str | None) -> tuple[Tensor, Tensor]:
    """Spectral norms (H,) of the weights of neighbors, and of the weights of the target."""

    def norm(linear: Any) -> Tensor:
        weight: Tensor = linear.weight.detach().double()
        norms: Tensor = torch.linalg.matrix_norm(weight.view(layer.heads, layer.out_channels, -1), 2)
        return norms

    if kind == "TransformerConv":
        return (norm(layer.lin_key).square() + norm(layer.lin_value).square()).sqrt(), norm(layer.lin_query)
    if kind == "GATv2Conv":
        return norm(layer.lin_l), norm(layer.lin_r)
    if layer.lin is None:
        return norm(layer.lin_src), norm(layer.lin_dst)
    return norm(layer.lin), norm(layer.lin)


def _edges(layer: Any, edge_index: Any, num_nodes: int) -> tuple[Tensor, Tensor]:
    from torch_geometric.utils import is_sparse, to_edge_index

    if is_sparse(edge_index):  # rows are targets
        target, source = to_edge_index(edge_index)[0]
    else:
        source, target = edge_index.flip(0) if layer.flow == "target_to_source" else edge_index
    if getattr(layer, "add_self_loops", False):
        nodes = torch.arange(num_nodes, device=source.device)
        others = source != target
        return torch.cat([source[others], nodes]), torch.cat([target[others], nodes])
    return source, target
