"""LipschitzNorm: scores of attention divided so that the layer is Lipschitz, whatever its inputs and weights are.

For a target i that attends to neighbors j, with x_j what is averaged and g~_ij the score before the softmax,

    g_ij = alpha g~_ij / c_i,        |softmax(g) X|_F is then Lipschitz with e^alpha / sqrt(n_i) + alpha sqrt(8)

(`gatdiag.metrics.attention_bound`), n_i the number of neighbors. The divisors c_i, for each head:

    linear (GATConv, GATv2Conv)     g~ = a^T [x_j | x_i | e_ij]
                                    c = ||a|| sqrt(max_j ||x_j||^2 + ||x_i||^2 + max_j ||e_ij||^2)
    quadratic (TransformerConv)     g~ = q_i . k_j
                                    c = max{u v, u w, v w}, u = ||q_i||, v = max_j ||k_j||, w = max_j ||v_j||

x, q, k, v are what the layer's own weights make of its input, e_ij of the edge's features. GATv2 applies LeakyReLU
before a, which stretches nothing, so its a counts once for each part of the sum: ||a|| sqrt(2).

Source:
    Dasoulas, Scaman & Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural
    Networks", ICML 2021.
"""

import math
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied, module_of, positive, put_on, refuse_without_values, take_off
from gatdiag.remedies.lipschitz_layers import CLASSES, Mode, Normalized, lengths
from gatdiag.structure.adapters import adapter_name

_OF_THE_AUTHORS: Final = ("GATConv", "TransformerConv")
_VECTORS: Final = ("att", "att_src", "att_dst")
_OVERRIDABLE: Final = ("forward", "edge_update", "message")


def lipschitz_normalize_(model: nn.Module, *, alpha: float = 1.0, mode: Mode = "paper") -> Applied:
    """Divide the scores of a model's attention layers so that each is Lipschitz, in place; weights stay as they are.

    Without it attention is not Lipschitz: scores grow with the features and with the weights that make them, gradients
    with the scores, and over layers they explode. With it the more even attention of a small alpha is the cost.

    Args:
        model: Any module with PyG's `GATConv`, `GATv2Conv` or `TransformerConv` in it.
        alpha: Size of the largest score. Small: attention close to the mean over neighbors. Large: it may choose among
            them, and gradients may grow more (`lipschitz_bound`).
        mode: ``paper``: what is described above, per head. ``code``: what the authors' code computes in its place, to
            reproduce their results: in GAT layers the divisor is 4 ||a|| sqrt(max_j ||x_j||^2 + ||x_j||^2) with ||a||
            over all heads, each edge's own x_j instead of x_i, and, with several heads, maxima of other nodes; in
            Transformer layers ||q_i|| is a norm over all edges of the graph, and scores are divided by sqrt(C) first.

    Returns:
        The layers, and the way back.

    Raises:
        InputError: An argument does not fit.
        ModelError: The model has no such layer; or one computes its scores in its own way, or is normalized already, or
            is of a class that the authors' code does not normalize; or its attention vector is zero. Nothing was
            changed.

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
    alpha = positive(alpha, "alpha is the size of the largest score")
    if mode not in get_args(Mode):
        raise InputError(f"Expected mode 'paper' or 'code', got {mode!r}")
    user = module_of(model)
    layers = {name or "the model": layer for name, layer in user.named_modules() if adapter_name(layer) in CLASSES}
    if not layers:
        raise ModelError(f"Expected a model with {', '.join(CLASSES)}, got {type(model).__name__} without any")
    refuse_without_values(user.named_parameters())
    applied = Applied("lipschitz_normalize")
    with applied.changing():
        for name, layer in layers.items():
            _normalize_(applied, name, layer, alpha, mode)
        return applied


def _normalize_(applied: Applied, name: str, layer: Any, alpha: float, mode: Mode) -> None:
    kind = adapter_name(layer) or ""
    if isinstance(layer, Normalized):
        raise ModelError(f"{name} is normalized already: undo that first")
    own = [method for method in _OVERRIDABLE if not _is_of_pyg(getattr(layer, method, None))]
    if own:
        raise ModelError(f"{name} ({type(layer).__name__}) has its own {own[0]}(), so that its scores are not known")
    if mode == "code" and kind not in _OF_THE_AUTHORS:
        raise ModelError(f"{name} is a {kind}, of which the authors' code has no normalized version: use mode='paper'")
    vectors = [vector.detach() for key in _VECTORS if (vector := getattr(layer, key, None)) is not None]
    if vectors and not lengths(torch.cat(vectors, -1)).all():
        raise ModelError(
            f"{name} has a head whose attention vector is zero, and scores are divided by its norm: draw it, as "
            'initialize_(model, scheme, attention="random") does'
        )

    def undo() -> None:
        take_off(layer, CLASSES[kind])
        for attribute in ("lipschitz_alpha", "lipschitz_mode"):
            vars(layer).pop(attribute, None)

    factor = f"alpha = {alpha:g}" if mode == "paper" else "as in the authors' code"
    applied.record(name, f"scores divided ({kind}, {factor})", undo)
    layer.lipschitz_alpha, layer.lipschitz_mode = alpha, mode
    put_on(layer, CLASSES[kind])


def _is_of_pyg(method: Any) -> bool:
    return getattr(method, "__module__", "torch_geometric").startswith(("torch_geometric", "gatdiag.remedies."))


def lipschitz_bound(layer: nn.Module, edge_index: Tensor, num_nodes: int) -> Tensor:
    """Upper bound L of a normalized layer, ||f(X) - f(Y)||_F <= L ||X - Y||_F for all X and Y, in evaluation.

    With L_i the theorem's bound of target i in what the layer's weights make of its input, N(i) its neighbors,

        L^2 <= max_j ( s^2 sum_{i: j in N(i)} L_i^2 + t^2 L_j^2 )

    where s^2 is ||W_s||_2^2 of what is averaged (plus ||W_k||_2^2 of keys), and t = ||W_t||_2 of the target's features
    or queries; heads are put together as in `gatdiag.metrics.heads_bound`. Gradients grow by at most L.

    Args:
        layer: A layer that `lipschitz_normalize_` has normalized in mode ``paper``.
        edge_index: As the layer is given it, (2, E) or sparse; self loops that the layer adds are added.
        num_nodes: N; where sources and targets differ, the larger number of the two.

    Returns:
        0-d, float64. Infinity where a gate multiplies features (`TransformerConv(beta=True)`).

    Raises:
        InputError: `edge_index` is neither, or names nodes beyond `num_nodes`.
        ModelError: The layer is not normalized, or in mode ``code``, for which nothing is proven.

    Example:
        >>> from torch_geometric.nn import GATConv
        >>> layer = GATConv(2, 2, bias=False)
        >>> _ = nn.init.eye_(layer.lin.weight), lipschitz_normalize_(layer, alpha=1e-9)
        >>> round(lipschitz_bound(layer, torch.tensor([[0, 1], [1, 0]]), 2).item(), 3)  # a mean of two, taken twice
        1.225
    """
    if not isinstance(layer, Normalized) or layer.lipschitz_mode != "paper":
        raise ModelError(f"Expected a layer normalized in mode 'paper', got {type(layer).__name__} that is not")
    if getattr(layer, "lin_beta", None) is not None:
        return torch.tensor(math.inf, dtype=torch.float64)
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int) or num_nodes < 1:
        raise InputError(f"num_nodes= is a whole number from 1, got {num_nodes!r}")
    source, target = _edges(layer, edge_index, num_nodes)
    degrees, place = torch.bincount(target, minlength=num_nodes).unique(return_inverse=True)
    alpha = torch.tensor(layer.lipschitz_alpha, dtype=torch.float64)
    bounds = [
        metrics.attention_bound(alpha, 1, degree) if degree else torch.zeros_like(alpha) for degree in degrees.tolist()
    ]
    square = torch.stack(bounds)[place].square()
    received = torch.zeros_like(square).index_add(0, source, square[target])
    sources, own = _weight_norms(layer, adapter_name(layer))
    heads = (sources.square().unsqueeze(1) * received + own.square().unsqueeze(1) * square).amax(1).sqrt()
    bound = metrics.heads_bound(heads, concat=bool(layer.concat))
    for name in ("res", "lin_skip"):
        skip = getattr(layer, name, None)
        bound = bound if skip is None else bound + torch.linalg.matrix_norm(skip.weight.detach().double(), 2)
    return bound


def _weight_norms(layer: Any, kind: str | None) -> tuple[Tensor, Tensor]:
    """(H,) each: of what moves with a neighbor, and with the target."""

    def norm(linear: Any) -> Tensor:
        weight: Tensor = linear.weight.detach().double()
        size: Tensor = torch.linalg.matrix_norm(weight.view(layer.heads, layer.out_channels, -1), 2)
        return size

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
    elif isinstance(edge_index, Tensor) and edge_index.dim() == 2 and len(edge_index) == 2:
        source, target = edge_index.flip(0) if layer.flow == "target_to_source" else edge_index
    else:
        got = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise InputError(f"Expected edge_index of shape (2, edges) or a sparse adjacency matrix, got {got}")
    if source.is_floating_point():
        raise InputError(f"Expected edge_index to hold the numbers of nodes, got {source.dtype}")
    if source.numel() and (largest := int(torch.maximum(source, target).max())) >= num_nodes:
        raise InputError(f"Expected num_nodes= to be larger than all of edge_index, got {num_nodes} for node {largest}")
    if getattr(layer, "add_self_loops", False):
        nodes = torch.arange(num_nodes, device=source.device)
        others = source != target
        return torch.cat([source[others], nodes]), torch.cat([target[others], nodes])
    return source, target
