"""LipschitzNorm: scores of attention divided so that the layer is Lipschitz, whatever its inputs and weights are.

For a target i that attends to neighbors j, with x_j what is averaged and g~_ij the score before the softmax,

    g_ij = alpha g~_ij / c_i,        |softmax(g) X|_F is then Lipschitz with e^alpha / sqrt(n_i) + alpha sqrt(8)

(`gatdiag.metrics.attention_bound`), n_i the number of neighbors. The divisors c_i, for each head:

    linear (GATConv, GATv2Conv)                 g~ = a^T [x_j | x_i | e_ij]
                                                c = ||a|| sqrt(max_j ||x_j||^2 + ||x_i||^2 + max_j ||e_ij||^2)
    quadratic (TransformerConv, SuperGATConv)   g~ = q_i . k_j
                                                c = max{u v, u w, v w}, u = ||q_i||, v = max_j ||k_j||,
                                                    w = max_j ||v_j||
    gated (SuperGATConv, attention type MX)     g~ = a^T [x_j | x_i] sigmoid(x_i . x_j)
                                                c = 9/8 ||a|| R (1 + R^2 / 4), R^2 = max_j ||x_j||^2 + ||x_i||^2

x, q, k, v are what the layer's own weights make of its input, e_ij of the edge's features. GATv2 applies LeakyReLU
before a, which stretches nothing, so its a counts once for each part of the sum: ||a|| sqrt(2). The gated score is not
in the paper; its divisor is the smallest of this form that keeps the theorem's conditions, as a sigmoid is at most 1
and its slope at most 1/4.

Source:
    Dasoulas, Scaman & Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural
    Networks", ICML 2021.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from gatdiag import metrics
from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied, has_remedy, put_on, remove_all, take_off
from gatdiag.structure import unwrapped
from gatdiag.structure.adapters import adapter_name

Mode: TypeAlias = Literal["paper", "code"]
_LARGEST_EXPONENT: Final = 40.0  # whose exponentials are far from overflow
_LEAST_NORM: Final = 1e-12
_ALPHA, _MODE = "lipschitz_alpha", "lipschitz_mode"


class _Normalized:
    """A layer whose scores are divided. Lengths of nodes are taken once per node, not once per edge."""

    lipschitz_alpha: float
    lipschitz_mode: Mode

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG writes methods for a class when a layer is made or copied; those of the layer's own class are there."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.__dict__.pop("_lengths", None)

    def _measure(self: Any, edge_index: Any, target: Tensor | None, *sources: Tensor) -> None:
        """Keep the lengths of targets, and those of sources for each edge, until scores are divided."""
        neighbor = 0 if self.flow == "source_to_target" else 1
        self.__dict__["_lengths"] = target, *(self._lift(source, edge_index, neighbor) for source in sources)

    def _radius(self: Any, edge: Tensor | None, index: Tensor, size: int | None) -> Tensor:
        """(N, H): sqrt(max_j ||x_j||^2 + ||x_i||^2 + max_j ||e_ij||^2)."""
        length_i, length_j = self._lengths
        if length_i is not None:  # PyG counts sources in place of targets where edges are turned around
            size = length_i.shape[0]
        # If all neighbors are zero, the divisor is without effect, as long as it can be divided by.
        radius = _largest(length_j, index, size).clamp_min(torch.finfo(length_j.dtype).tiny ** 0.5)
        if edge is not None:
            radius = torch.hypot(radius, _largest(_length(edge), index, size))
        return radius if length_i is None else torch.hypot(radius, length_i)

    def _linear(self: Any, a: Tensor, edge: Tensor | None, index: Tensor, size: int | None) -> Any:
        """c / alpha of linear scores, for each edge; the length of `a` (1, H, any) is ||a||."""
        if self.lipschitz_mode == "paper":
            return (self._norm(a) * self._radius(edge, index, size)).index_select(0, index)
        # one norm for all heads; maxima of (node, head) pairs looked up by the number of the node; x_j, not x_i
        _, length_j = self._lengths
        misplaced = _largest(length_j, index, size).reshape(-1, 1)[index]
        return 4 * torch.linalg.vector_norm(a) * torch.hypot(misplaced, length_j) + 1e-12

    def _norm(self, a: Tensor) -> Tensor:
        """(1, H): ||a|| / alpha."""
        return _length(a).clamp_min(_LEAST_NORM) / self.lipschitz_alpha

    def _quadratic(self: Any, u: Tensor, v: Tensor, w: Tensor) -> Any:
        """(N, H): c / alpha of dot products; where it would be zero, the scores are zero as well."""
        largest = torch.maximum(torch.maximum(u * v, u * w), v * w)
        if self.lipschitz_mode == "code":
            return math.sqrt(self.out_channels) * (largest + 1e-12)
        return (largest / self.lipschitz_alpha).clamp_min(torch.finfo(largest.dtype).tiny)

    def _softmax(self, score: Tensor, index: Tensor, size: int | None) -> Tensor:
        if self.lipschitz_mode == "code" or self.lipschitz_alpha > _LARGEST_EXPONENT:
            from torch_geometric.utils import softmax

            alpha: Tensor = softmax(score, index, num_nodes=size)
            return alpha
        weight = score.exp()  # at most e^alpha: no maximum needs to be taken off first
        total = weight.new_zeros(_count(index, size), weight.shape[1]).index_add(0, index, weight)
        return weight / total.index_select(0, index)

    def _dropped(self: Any, alpha: Tensor) -> Any:
        return functional.dropout(alpha, p=self.dropout, training=self.training)


class _GAT(_Normalized):
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # PyG hands only a^T x on to what computes the scores: the lengths of x are taken where x is made.
        made: list[Tensor] = []

        def measure(_: nn.Module, __: Any, x: Tensor) -> None:
            made.append(_length(x.view(-1, self.heads, self.out_channels)))

        maps = [linear for linear in (self.lin, self.lin_src, self.lin_dst) if linear is not None]
        handles = [linear.register_forward_hook(measure) for linear in maps]
        self.__dict__["_made"] = made
        try:
            return super().forward(*args, **kwargs)
        finally:
            remove_all(handles)
            del self.__dict__["_made"]

    def edge_updater(self: Any, edge_index: Any, alpha: Any, edge_attr: Any = None, size: Any = None) -> Any:
        self._measure(edge_index, None if alpha[1] is None else self._made[-1], self._made[0])
        return super().edge_updater(edge_index, alpha=alpha, edge_attr=edge_attr, size=size)  # type: ignore[misc]

    def edge_update(
        self: Any,
        alpha_j: Tensor,
        alpha_i: Tensor | None,
        edge_attr: Any,
        index: Tensor,
        ptr: Any,
        dim_size: int | None,
    ) -> Any:
        score = alpha_j if alpha_i is None else alpha_j + alpha_i
        a, edge = [self.att_src, self.att_dst], None
        if edge_attr is not None and self.lin_edge is not None:
            edge = _edge_features(self, edge_attr)
            score = score + (edge * self.att_edge).sum(-1)
            a.append(self.att_edge)
        score = score / self._linear(torch.cat(a, -1), edge, index, dim_size)
        alpha = self._softmax(functional.leaky_relu(score, self.negative_slope), index, dim_size)
        return self._dropped(alpha.to(alpha_j.dtype))


class _GATv2(_Normalized):
    def edge_updater(self: Any, edge_index: Any, x: Any, edge_attr: Any = None, size: Any = None) -> Any:
        source = _length(x[0])
        self._measure(edge_index, source if x[1] is x[0] else _length(x[1]), source)
        return super().edge_updater(edge_index, x=x, edge_attr=edge_attr, size=size)  # type: ignore[misc]

    def edge_update(
        self: Any, x_j: Tensor, x_i: Tensor, edge_attr: Any, index: Tensor, ptr: Any, dim_size: int | None
    ) -> Any:
        x, edge = x_i + x_j, None
        if edge_attr is not None:
            edge = _edge_features(self, edge_attr)
            x = x + edge
        x = functional.leaky_relu(x, self.negative_slope)
        a = self.att * math.sqrt(2 if edge is None else 3)
        score = (x * self.att).sum(-1) / self._linear(a, edge, index, dim_size)
        return self._dropped(self._softmax(score, index, dim_size).to(x_j.dtype))


class _Transformer(_Normalized):
    def propagate(self: Any, edge_index: Any, query: Tensor, key: Tensor, value: Tensor, edge_attr: Any) -> Any:
        self._measure(edge_index, _length(query), _length(key), _length(value))
        given = {"query": query, "key": key, "value": value, "edge_attr": edge_attr}
        return super().propagate(edge_index, **given)  # type: ignore[misc]

    def message(
        self: Any,
        query_i: Tensor,
        key_j: Tensor,
        value_j: Tensor,
        edge_attr: Any,
        index: Tensor,
        ptr: Any,
        size_i: int | None,
    ) -> Any:
        u, v, w = self._lengths
        if self.lin_edge is not None:
            edge = _edge_features(self, edge_attr)
            key_j, value_j = key_j + edge, value_j + edge
            v, w = _length(key_j), _length(value_j)
        v, w = _largest(v, index, len(u)), _largest(w, index, len(u))
        if self.lipschitz_mode == "code":  # of the whole graph, each query as often as it has neighbors
            u = torch.linalg.vector_norm(u.index_select(0, index), dim=0)
        score = _dot(query_i, key_j) / self._quadratic(u, v, w).index_select(0, index)
        self._alpha = self._softmax(score, index, size_i).to(value_j.dtype)
        return value_j * self._dropped(self._alpha).unsqueeze(-1)


class _SuperGAT(_Normalized):
    def propagate(self: Any, edge_index: Any, x: Tensor) -> Any:
        length = _length(x)
        self._measure(edge_index, length, length)
        return super().propagate(edge_index, x=x)  # type: ignore[misc]

    def get_attention(
        self: Any,
        edge_index_i: Tensor,
        x_i: Tensor,
        x_j: Tensor,
        num_nodes: int | None,
        return_logits: bool = False,
    ) -> Any:
        if return_logits:  # of which the layer learns what edges are; they weigh nothing
            return super().get_attention(edge_index_i, x_i, x_j, num_nodes, return_logits=True)  # type: ignore[misc]
        score = _dot(x_i, x_j)
        if self.attention_type == "MX":
            score = ((x_j * self.att_l).sum(-1) + (x_i * self.att_r).sum(-1)) * score.sigmoid()
            radius = self._radius(None, edge_index_i, num_nodes)
            divisor = 1.125 * self._norm(torch.cat([self.att_l, self.att_r], -1)) * radius * (1 + radius.square() / 4)
        else:
            u, v = self._lengths
            v = _largest(v, edge_index_i, num_nodes)
            divisor = self._quadratic(u, v, v)
        score = functional.leaky_relu(score / divisor.index_select(0, edge_index_i), self.negative_slope)
        return self._softmax(score, edge_index_i, num_nodes).to(x_j.dtype)


_CLASSES: Final[Mapping[str, type]] = {
    "GATConv": _GAT,
    "GATv2Conv": _GATv2,
    "TransformerConv": _Transformer,
    "SuperGATConv": _SuperGAT,
}
_OF_THE_AUTHORS: Final = ("GATConv", "TransformerConv")
_VECTORS: Final = ("att", "att_src", "att_dst", "att_l", "att_r")
_OVERRIDABLE: Final = ("forward", "edge_update", "message", "get_attention")


def lipschitz_normalize_(model: nn.Module, *, alpha: float = 1.0, mode: Mode = "paper") -> Applied:
    """Divide the scores of a model's attention layers so that each is Lipschitz, in place; weights stay as they are.

    Without it attention is not Lipschitz: scores grow with the features and with the weights that make them, gradients
    with the scores, and over layers they explode. With it the more even attention of a small alpha is the cost.

    Args:
        model: Any module with PyG's `GATConv`, `GATv2Conv`, `TransformerConv` or `SuperGATConv` in it.
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
            is of a class that the authors' code does not normalize. Nothing was changed.

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
    if not alpha > 0.0 or not math.isfinite(alpha):
        raise InputError(f"alpha is the size of the largest score: a positive number was expected, got {alpha}")
    if mode not in get_args(Mode):
        raise InputError(f"Expected mode 'paper' or 'code', got {mode!r}")
    named = unwrapped(model).named_modules()
    layers = {name or "the model": module for name, module in named if adapter_name(module) in _CLASSES}
    if not layers:
        raise ModelError(f"Expected a model with {', '.join(_CLASSES)}, got {type(model).__name__} without any")
    applied = Applied("lipschitz_normalize")
    with applied.changing():
        for name, layer in layers.items():
            _normalize_(applied, name, layer, alpha, mode)
        return applied


def _normalize_(applied: Applied, name: str, layer: Any, alpha: float, mode: Mode) -> None:
    kind = adapter_name(layer) or ""
    if has_remedy(layer, _CLASSES[kind]):
        raise ModelError(f"{name} is normalized already: undo that first")
    own = [method for method in _OVERRIDABLE if not _is_of_pyg(getattr(layer, method, None))]
    if own:
        raise ModelError(f"{name} ({type(layer).__name__}) has its own {own[0]}(), so that its scores are not known")
    if mode == "code" and kind not in _OF_THE_AUTHORS:
        raise ModelError(f"{name} is a {kind}, of which the authors' code has no normalized version: use mode='paper'")
    vectors = [vector.detach() for key in _VECTORS if (vector := getattr(layer, key, None)) is not None]
    if vectors and not _length(torch.cat(vectors, -1)).all():
        raise ModelError(
            f"{name} has a head whose attention vector is zero, and scores are divided by its norm: set it"
        )

    def undo() -> None:
        take_off(layer, _CLASSES[kind])
        for attribute in (_ALPHA, _MODE):
            vars(layer).pop(attribute, None)

    factor = f"alpha = {alpha:g}" if mode == "paper" else "as in the authors' code"
    applied.record(name, f"scores divided ({kind}, {factor})", undo)
    layer.lipschitz_alpha, layer.lipschitz_mode = float(alpha), mode
    put_on(layer, _CLASSES[kind])


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
        InputError: `edge_index` is neither.
        ModelError: The layer is not normalized, or in mode ``code``, for which nothing is proven.

    Example:
        >>> from torch_geometric.nn import GATConv
        >>> layer = GATConv(2, 2, bias=False)
        >>> _ = nn.init.eye_(layer.lin.weight), lipschitz_normalize_(layer, alpha=1e-9)
        >>> round(lipschitz_bound(layer, torch.tensor([[0, 1], [1, 0]]), 2).item(), 3)  # a mean of two, taken twice
        1.225
    """
    kind = adapter_name(layer) or ""
    if kind not in _CLASSES or not has_remedy(layer, _CLASSES[kind]) or getattr(layer, _MODE) != "paper":
        raise ModelError(f"Expected a layer normalized in mode 'paper', got {type(layer).__name__} that is not")
    if getattr(layer, "lin_beta", None) is not None:
        return torch.tensor(math.inf, dtype=torch.float64)
    source, target = _edges(layer, edge_index, num_nodes)
    degrees, place = torch.bincount(target, minlength=num_nodes).unique(return_inverse=True)
    alpha = torch.tensor(getattr(layer, _ALPHA), dtype=torch.float64)
    bounds = [
        metrics.attention_bound(alpha, 1, degree) if degree else torch.zeros_like(alpha) for degree in degrees.tolist()
    ]
    square = torch.stack(bounds)[place].square()
    received = torch.zeros_like(square).index_add(0, source, square[target])
    sources, own = _weight_norms(layer, kind)
    heads = (sources.square().unsqueeze(1) * received + own.square().unsqueeze(1) * square).amax(1).sqrt()
    bound = metrics.heads_bound(heads, concat=bool(layer.concat))
    for name in ("res", "lin_skip"):
        skip = getattr(layer, name, None)
        bound = bound if skip is None else bound + torch.linalg.matrix_norm(skip.weight.detach().double(), 2)
    return bound


def _weight_norms(layer: Any, kind: str) -> tuple[Tensor, Tensor]:
    """(H,) each: of what moves with a neighbor, and with the target."""

    def norm(linear: Any) -> Tensor:
        weight: Tensor = linear.weight.detach().double()
        size: Tensor = torch.linalg.matrix_norm(weight.view(layer.heads, layer.out_channels, -1), 2)
        return size

    if kind == "TransformerConv":
        return (norm(layer.lin_key).square() + norm(layer.lin_value).square()).sqrt(), norm(layer.lin_query)
    if kind == "GATv2Conv":
        return norm(layer.lin_l), norm(layer.lin_r)
    if kind == "GATConv" and layer.lin is None:
        return norm(layer.lin_src), norm(layer.lin_dst)
    own = norm(layer.lin)
    return (math.sqrt(2) * own if getattr(layer, "attention_type", "") == "SD" else own), own


def _edges(layer: Any, edge_index: Any, num_nodes: int) -> tuple[Tensor, Tensor]:
    from torch_geometric.utils import is_sparse, to_edge_index

    if is_sparse(edge_index):  # rows are targets
        target, source = to_edge_index(edge_index)[0]
    elif isinstance(edge_index, Tensor) and edge_index.dim() == 2 and len(edge_index) == 2:
        source, target = edge_index.flip(0) if layer.flow == "target_to_source" else edge_index
    else:
        got = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise InputError(f"Expected edge_index of shape (2, edges) or a sparse adjacency matrix, got {got}")
    if getattr(layer, "add_self_loops", False):
        nodes = torch.arange(num_nodes, device=source.device)
        others = source != target
        return torch.cat([source[others], nodes]), torch.cat([target[others], nodes])
    return source, target


def _length(x: Tensor) -> Tensor:
    """||x|| over the last axis, in single precision at least."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=_wide(x))
    return length


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x.to(_wide(x)) * y.to(_wide(y))).sum(-1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _largest(length: Tensor, index: Tensor, size: int | None) -> Tensor:
    """(N, H): the largest among the edges of each target."""
    nothing = length.new_zeros(_count(index, size), length.shape[1])
    return nothing.scatter_reduce(0, index.unsqueeze(-1).expand_as(length), length, "amax")


def _count(index: Tensor, size: int | None) -> int:
    return int(index.max()) + 1 if size is None else size


def _edge_features(layer: Any, edge_attr: Tensor) -> Tensor:
    """(E, H, C)."""
    features = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
    made: Tensor = layer.lin_edge(features).view(-1, layer.heads, layer.out_channels)
    return made
