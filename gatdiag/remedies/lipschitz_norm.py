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
from gatdiag.remedies.applied import Applied, has_remedy, put_on, take_off
from gatdiag.structure import unwrapped
from gatdiag.structure.adapters import adapter_name

Mode: TypeAlias = Literal["paper", "code"]
_ALPHA, _MODE = "lipschitz_alpha", "lipschitz_mode"


class _Normalized:
    """A layer whose scores are divided."""

    lipschitz_alpha: float
    lipschitz_mode: Mode

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG writes methods for a class when a layer is made or copied; those of the layer's own class are there."""


class _Linear(_Normalized):
    """Scores that are linear in what is attended to: its lengths are taken once per node, not once per edge."""

    def _lengths(self: Any, edge_index: Any, source: Tensor, target: Tensor | float) -> None:
        """Keep ||x_j||^2 of each edge and ||x_i||^2 of each target for `_factor`."""
        neighbor = 0 if self.flow == "source_to_target" else 1
        self.__dict__["_squares"] = self._lift(source, edge_index, neighbor), target

    def _factor(self: Any, norm: Tensor, edge: Tensor | None, index: Tensor, size: int | None) -> Tensor:
        """(E, H): what scores are multiplied by."""
        square_j, square_i = self.__dict__.pop("_squares")
        if isinstance(square_i, Tensor):  # PyG counts sources in place of targets where edges are turned around
            size = square_i.shape[0]
        largest = _largest(square_j, index, size)
        if edge is not None:
            largest = largest + _largest(_squared(edge), index, size)
        if self.lipschitz_mode == "paper":
            factor = _root(norm * (largest + square_i)).reciprocal() * float(self.lipschitz_alpha)
            return factor.index_select(0, index)
        # one norm for all heads; maxima of (node, head) pairs looked up by the number of the node; x_j in place of x_i
        misplaced = largest.reshape(-1, 1)[index]
        authors = 4 * torch.sqrt(norm.sum() * (misplaced + square_j)) + 1e-12
        return authors.reciprocal()


class _GAT(_Linear):
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # PyG hands only a^T x on to what computes the scores: the lengths of x are taken where x is made.
        made: list[Tensor] = []

        def measure(_: nn.Module, __: Any, x: Tensor) -> None:
            made.append(_squared(x.view(-1, self.heads, self.out_channels)))

        maps = [linear for linear in (self.lin, self.lin_src, self.lin_dst) if linear is not None]
        handles = [linear.register_forward_hook(measure) for linear in maps]
        self.__dict__["_made"] = made
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            del self.__dict__["_made"]
            self.__dict__.pop("_squares", None)
            for handle in handles:
                handle.remove()

    def edge_updater(self: Any, edge_index: Any, alpha: Any, edge_attr: Any = None, size: Any = None) -> Any:
        self._lengths(edge_index, self._made[0], 0.0 if alpha[1] is None else self._made[-1])
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
        norm, edge = _squared(self.att_src) + _squared(self.att_dst), None
        if edge_attr is not None and self.lin_edge is not None:
            edge = _edge_features(self, edge_attr)
            score = score + (edge * self.att_edge).sum(-1)
            norm = norm + _squared(self.att_edge)
        score = (score * self._factor(norm, edge, index, dim_size)).to(alpha_j.dtype)
        return super().edge_update(score, None, None, index, ptr, dim_size)  # type: ignore[misc]


class _GATv2(_Linear):
    def edge_updater(self: Any, edge_index: Any, x: Any, edge_attr: Any = None, size: Any = None) -> Any:
        source = _squared(x[0])
        self._lengths(edge_index, source, source if x[1] is x[0] else _squared(x[1]))
        return super().edge_updater(edge_index, x=x, edge_attr=edge_attr, size=size)  # type: ignore[misc]

    def edge_update(
        self: Any, x_j: Tensor, x_i: Tensor, edge_attr: Any, index: Tensor, ptr: Any, dim_size: int | None
    ) -> Tensor:
        total, edge = x_i + x_j, None
        if edge_attr is not None:
            edge = _edge_features(self, edge_attr)
            total = total + edge
        score = (functional.leaky_relu(total, self.negative_slope) * self.att).sum(-1)
        norm = (2 if edge is None else 3) * _squared(self.att)
        score = (score * self._factor(norm, edge, index, dim_size)).to(x_j.dtype)
        alpha = _softmax(score, index, ptr, dim_size)
        return functional.dropout(alpha, p=self.dropout, training=self.training)


class _Transformer(_Normalized):
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
        scale = math.sqrt(self.out_channels)  # by which the layer divides its scores
        edge = 0.0 if self.lin_edge is None else _edge_features(self, edge_attr)
        u = _length(query_i)
        if self.lipschitz_mode == "code":
            u = torch.linalg.vector_norm(u, dim=0)  # of the whole graph, each query as often as it has neighbors
        v, w = (_largest(_length(x + edge), index, size_i)[index] for x in (key_j, value_j))
        divisor = _quadratic_divisor(u, v, w)
        factor = 1 / (divisor + 1e-12) if self.lipschitz_mode == "code" else scale * self.lipschitz_alpha / divisor
        query_i = (query_i * factor.unsqueeze(-1)).to(query_i.dtype)
        return super().message(query_i, key_j, value_j, edge_attr, index, ptr, size_i)  # type: ignore[misc]


class _SuperGAT(_Normalized):
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
        similarity, length_i = (_wide(x_i) * _wide(x_j)).sum(-1), _length(x_i)
        largest = _largest(_length(x_j), edge_index_i, num_nodes)[edge_index_i]
        if self.attention_type == "MX":
            score = ((x_j * self.att_l).sum(-1) + (x_i * self.att_r).sum(-1)) * similarity.sigmoid()
            square = largest.square() + length_i.square()
            norm = _squared(self.att_l) + _squared(self.att_r)
            divisor = 1.125 * _root(norm * square) * (1 + square / 4)
        else:
            score, divisor = similarity, _quadratic_divisor(length_i, largest, largest)
        score = functional.leaky_relu(self.lipschitz_alpha * score / divisor, self.negative_slope)
        return _softmax(score.to(x_j.dtype), edge_index_i, None, num_nodes)


_CLASSES: Final[Mapping[str, type]] = {
    "GATConv": _GAT,
    "GATv2Conv": _GATv2,
    "TransformerConv": _Transformer,
    "SuperGATConv": _SuperGAT,
}
_OF_THE_AUTHORS: Final = ("GATConv", "TransformerConv")
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

    def undo() -> None:
        take_off(layer, _CLASSES[kind])
        for attribute in (_ALPHA, _MODE):
            vars(layer).pop(attribute, None)

    factor = f"alpha = {alpha:g}" if mode == "paper" else "as in the authors' code"
    applied.record(name, f"scores divided ({kind}, {factor})", undo)
    layer.lipschitz_alpha, layer.lipschitz_mode = float(alpha), mode
    put_on(layer, _CLASSES[kind])


def _is_of_pyg(method: Any) -> bool:
    module = getattr(method, "__module__", "torch_geometric")
    return module.startswith(("torch_geometric", __name__, "gatdiag.remedies."))


def lipschitz_bound(layer: nn.Module, edge_index: Tensor, num_nodes: int) -> Tensor:
    """Upper bound L of a normalized layer, ||f(X) - f(Y)||_F <= L ||X - Y||_F for all X and Y, in evaluation.

    With L_i the theorem's bound of target i in what the layer's weights make of its input, N(i) its neighbors,

        L^2 <= max_j ( s^2 sum_{i: j in N(i)} L_i^2 + t^2 L_j^2 )

    where s^2 is ||W_s||_2^2 of what is averaged (plus ||W_k||_2^2 of keys), and t = ||W_t||_2 of the target's features
    or queries; heads are put together as in `gatdiag.metrics.heads_bound`. Gradients grow by at most L.

    Args:
        layer: A layer that `lipschitz_normalize_` has normalized in mode ``paper``.
        edge_index: (2, E) as the layer is given it; self loops that the layer adds are added.
        num_nodes: N; where sources and targets differ, the larger number of the two.

    Returns:
        0-d, float64. Infinity where a gate multiplies features (`TransformerConv(beta=True)`).

    Raises:
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
    degree = torch.bincount(target, minlength=num_nodes).double()
    reached = degree > 0
    alpha = torch.tensor(getattr(layer, _ALPHA), dtype=torch.float64)
    square = (alpha.exp() * degree.clamp_min(1).rsqrt() + math.sqrt(8) * alpha).square() * reached
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


def _edges(layer: Any, edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    source, target = edge_index.flip(0) if layer.flow == "target_to_source" else edge_index
    if getattr(layer, "add_self_loops", False):
        nodes = torch.arange(num_nodes, device=edge_index.device)
        others = source != target
        return torch.cat([source[others], nodes]), torch.cat([target[others], nodes])
    return source, target


def _length(x: Tensor) -> Tensor:
    """||x|| over the last axis, in single precision at least."""
    length: Tensor = torch.linalg.vector_norm(_wide(x), dim=-1)
    return length


def _squared(x: Tensor) -> Tensor:
    return _length(x).square()


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _root(square: Tensor) -> Tensor:
    """The square root, and where that is zero, which means scores of zero, something to divide by."""
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def _quadratic_divisor(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """max{u v, u w, v w}, or where that is zero, as the scores are then, something to divide by."""
    divisor = torch.maximum(torch.maximum(u * v, u * w), v * w)
    return divisor.clamp_min(torch.finfo(divisor.dtype).tiny)


def _largest(square: Tensor, index: Tensor, size: int | None) -> Tensor:
    """(N, H): the largest among the edges of each target."""
    nodes = int(index.max()) + 1 if size is None else size
    place = index.unsqueeze(-1).expand_as(square)
    return square.new_zeros(nodes, square.shape[1]).scatter_reduce(0, place, square, "amax")


def _edge_features(layer: Any, edge_attr: Tensor) -> Tensor:
    """(E, H, C)."""
    features = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
    made: Tensor = layer.lin_edge(features).view(-1, layer.heads, layer.out_channels)
    return made


def _softmax(score: Tensor, index: Tensor, ptr: Tensor | None, size: int | None) -> Tensor:
    from torch_geometric.utils import softmax

    found: Tensor = softmax(score, index, ptr, size)
    return found
