"""The classes that LipschitzNorm puts in front of PyG's attention layers: they divide scores by their divisors.

The formulas are in `gatdiag.remedies.lipschitz_norm`. Lengths of nodes are taken once per node, not once per edge.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Mode: TypeAlias = Literal["paper", "code"]
_LARGEST_EXPONENT: Final = 40.0  # whose exponentials are far from overflow
_LEAST_NORM: Final = 1e-12


class Normalized:
    """A layer whose scores are divided."""

    lipschitz_alpha: float
    lipschitz_mode: Mode

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG writes methods for a class when a layer is made or copied; those of the layer's own class are there."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer's own; lengths are kept no longer than it runs."""
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
            radius = torch.hypot(radius, _largest(lengths(edge), index, size))
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
        return lengths(a).clamp_min(_LEAST_NORM) / self.lipschitz_alpha

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


class _GAT(Normalized):
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # PyG hands only a^T x on to what computes the scores: the lengths of x are taken where x is made.
        made: list[Tensor] = []

        def measure(_: nn.Module, __: Any, x: Tensor) -> None:
            made.append(lengths(x.view(-1, self.heads, self.out_channels)))

        maps = [linear for linear in (self.lin, self.lin_src, self.lin_dst) if linear is not None]
        handles = [linear.register_forward_hook(measure) for linear in maps]
        self.__dict__["_made"] = made
        try:
            return super().forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
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


class _GATv2(Normalized):
    def edge_updater(self: Any, edge_index: Any, x: Any, edge_attr: Any = None, size: Any = None) -> Any:
        source = lengths(x[0])
        self._measure(edge_index, source if x[1] is x[0] else lengths(x[1]), source)
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


class _Transformer(Normalized):
    def propagate(self: Any, edge_index: Any, query: Tensor, key: Tensor, value: Tensor, edge_attr: Any) -> Any:
        self._measure(edge_index, lengths(query), lengths(key), lengths(value))
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
            v, w = lengths(key_j), lengths(value_j)
        v, w = _largest(v, index, len(u)), _largest(w, index, len(u))
        if self.lipschitz_mode == "code":  # of the whole graph, each query as often as it has neighbors
            u = torch.linalg.vector_norm(u.index_select(0, index), dim=0)
        score = _dot(query_i, key_j) / self._quadratic(u, v, w).index_select(0, index)
        self._alpha = self._softmax(score, index, size_i).to(value_j.dtype)
        return value_j * self._dropped(self._alpha).unsqueeze(-1)


CLASSES: Final[Mapping[str, type]] = {"GATConv": _GAT, "GATv2Conv": _GATv2, "TransformerConv": _Transformer}


def lengths(x: Tensor) -> Tensor:
    """||x|| over the last axis, in single precision at least; a huge number where its square overflows."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=_wide(x))
    return length.nan_to_num(nan=math.nan, posinf=torch.finfo(length.dtype).max / 8)


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
