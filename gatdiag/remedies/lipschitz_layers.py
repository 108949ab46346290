"""Mixins of PyG's attention layers for LipschitzNorm, which divide their scores.

The formulas are in `gatdiag.remedies.lipschitz_norm`. Norms are computed once per node, not once per edge.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_MAX_EXPONENT: Final = 40.0  # far from overflow
_MIN_NORM: Final = 1e-12


class LipschitzMixin:
    """Mixin of a layer whose scores are divided."""

    lipschitz_alpha: float

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Do nothing: PyG would generate methods for this class, but those of the layer's own class are used."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer's own forward, and drop the stored norms."""
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.__dict__.pop("_norms", None)

    def _store_norms(self: Any, edge_index: Any, target: Tensor | None, *sources: Tensor) -> None:
        """Store the norms of targets, and those of sources for each edge, until scores are divided."""
        neighbor = 0 if self.flow == "source_to_target" else 1
        self.__dict__["_norms"] = target, *(self._lift(source, edge_index, neighbor) for source in sources)

    def _radius(self: Any, edge: Tensor | None, index: Tensor, size: int | None) -> Tensor:
        """(N, H): sqrt(max_j ||x_j||^2 + ||x_i||^2 + max_j ||e_ij||^2)."""
        norm_i, norm_j = self._norms
        if norm_i is not None:  # for reversed edges, PyG's size is the number of sources
            size = norm_i.shape[0]
        # If all neighbors are zero, the divisor has no effect, but must not be zero.
        radius = _scatter_max(norm_j, index, size).clamp_min(torch.finfo(norm_j.dtype).tiny ** 0.5)
        if edge is not None:
            radius = torch.hypot(radius, _scatter_max(vector_norms(edge), index, size))
        return radius if norm_i is None else torch.hypot(radius, norm_i)

    def linear_divisor(self: Any, a: Tensor, edge: Tensor | None, index: Tensor, size: int | None) -> Any:
        """c / alpha of linear scores, for each edge; `a` is of shape (1, H, any)."""
        norm = vector_norms(a).clamp_min(_MIN_NORM) / self.lipschitz_alpha
        return (norm * self._radius(edge, index, size)).index_select(0, index)

    def _quadratic_divisor(self: Any, u: Tensor, v: Tensor, w: Tensor) -> Any:
        """(N, H): c / alpha of dot products; if it is zero, so are the scores."""
        largest = torch.maximum(torch.maximum(u * v, u * w), v * w)
        return (largest / self.lipschitz_alpha).clamp_min(torch.finfo(largest.dtype).tiny)

    def _softmax(self, score: Tensor, index: Tensor, size: int | None) -> Tensor:
        if self.lipschitz_alpha > _MAX_EXPONENT:
            from torch_geometric.utils import softmax

            alpha: Tensor = softmax(score, index, num_nodes=size)
            return alpha
        weight = score.exp()  # at most e^alpha, so the maximum need not be subtracted
        total = weight.new_zeros(_num_targets(index, size), weight.shape[1]).index_add(0, index, weight)
        return weight / total.index_select(0, index)

    def _dropout(self: Any, alpha: Tensor) -> Any:
        return functional.dropout(alpha, p=self.dropout, training=self.training)


class LipschitzGAT(LipschitzMixin):
    """Mixin of `GATConv`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer's own forward, which gives the norms of what its linear layers return."""
        # PyG passes only a^T x to edge_updater, so the norms of x are computed after the linear layers.
        norms: list[Tensor] = []

        def hook(_: nn.Module, __: Any, x: Tensor) -> None:
            norms.append(vector_norms(x.view(-1, self.heads, self.out_channels)))

        linears = [linear for linear in (self.lin, self.lin_src, self.lin_dst) if linear is not None]
        handles = [linear.register_forward_hook(hook) for linear in linears]
        self.__dict__["_linear_norms"] = norms
        try:
            return super().forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
            del self.__dict__["_linear_norms"]

    def edge_updater(self: Any, edge_index: Any, alpha: Any, edge_attr: Any = None, size: Any = None) -> Any:
        """Store the norms, and call the layer's own method."""
        norms = self._linear_norms
        self._store_norms(edge_index, None if alpha[1] is None else norms[-1], norms[0])
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
        """Divided scores after the softmax."""
        score = alpha_j if alpha_i is None else alpha_j + alpha_i
        a, edge = [self.att_src, self.att_dst], None
        if edge_attr is not None and self.lin_edge is not None:
            edge = _edge_features(self, edge_attr)
            score = score + (edge * self.att_edge).sum(-1)
            a.append(self.att_edge)
        score = score / self.linear_divisor(torch.cat(a, -1), edge, index, dim_size)
        alpha = self._softmax(functional.leaky_relu(score, self.negative_slope), index, dim_size)
        return self._dropout(alpha.to(alpha_j.dtype))


class _GATv2(LipschitzMixin):
    def edge_updater(self: Any, edge_index: Any, x: Any, edge_attr: Any = None, size: Any = None) -> Any:
        source = vector_norms(x[0])
        self._store_norms(edge_index, source if x[1] is x[0] else vector_norms(x[1]), source)
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
        score = (x * self.att).sum(-1) / self.linear_divisor(a, edge, index, dim_size)
        return self._dropout(self._softmax(score, index, dim_size).to(x_j.dtype))


class _Transformer(LipschitzMixin):
    def propagate(self: Any, edge_index: Any, query: Tensor, key: Tensor, value: Tensor, edge_attr: Any) -> Any:
        self._store_norms(edge_index, vector_norms(query), vector_norms(key), vector_norms(value))
        inputs = {"query": query, "key": key, "value": value, "edge_attr": edge_attr}
        return super().propagate(edge_index, **inputs)  # type: ignore[misc]

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
        u, v, w = self._norms
        if self.lin_edge is not None:
            edge = _edge_features(self, edge_attr)
            key_j, value_j = key_j + edge, value_j + edge
            v, w = vector_norms(key_j), vector_norms(value_j)
        v, w = _scatter_max(v, index, len(u)), _scatter_max(w, index, len(u))
        score = _dot(query_i, key_j) / self._quadratic_divisor(u, v, w).index_select(0, index)
        self._alpha = self._softmax(score, index, size_i).to(value_j.dtype)
        return value_j * self._dropout(self._alpha).unsqueeze(-1)


MIXINS: Final[Mapping[str, type]] = {"GATConv": LipschitzGAT, "GATv2Conv": _GATv2, "TransformerConv": _Transformer}


def vector_norms(x: Tensor) -> Tensor:
    """||x|| over the last axis, in float32 or wider; finite even if its square overflows."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=_wide_dtype(x))
    return norm.nan_to_num(nan=math.nan, posinf=torch.finfo(norm.dtype).max / 8)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x.to(_wide_dtype(x)) * y.to(_wide_dtype(y))).sum(-1)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scatter_max(norm: Tensor, index: Tensor, size: int | None) -> Tensor:
    """(N, H): maximum over the edges (E, H) of each target, 0 without edges."""
    zeros = norm.new_zeros(_num_targets(index, size), norm.shape[1])
    return zeros.scatter_reduce(0, index.unsqueeze(-1).expand_as(norm), norm, "amax")


def _num_targets(index: Tensor, size: int | None) -> int:
    return int(index.max()) + 1 if size is None else size


def _edge_features(layer: Any, edge_attr: Tensor) -> Tensor:
    """(E, H, C)."""
    features = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
    edge: Tensor = layer.lin_edge(features).view(-1, layer.heads, layer.out_channels)
    return edge
