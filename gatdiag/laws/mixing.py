"""Operations of a forward pass that mix rows: sums over neighbors written by hand, and attention.

Layers of PyG are known by their class. Products with an adjacency matrix and softmaxes of scores are not: they are
recognized as they run, from their arguments.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_PRODUCTS: Final = ("mm", "bmm", "addmm", "_sparse_mm", "_sparse_addmm")
_SUMS: Final = ("index_add", "scatter_add", "scatter_reduce", "index_reduce", "segment_reduce")
_SOFTMAXES: Final = ("_softmax", "_safe_softmax")
# what may stand between a softmax and the product with the values: views of the same rows, and dropout
_CARRYING: Final = ("view", "_unsafe_view", "expand", "clone", "native_dropout", "mul", "div", "alias", "unsqueeze",
                    "squeeze", "_to_copy", "permute")  # fmt: skip
_PEAK: Final = 0.99  # as in `gatdiag.metrics.attention`
_MASKED: Final = 1e4  # a score this far below the largest is one of a mask
_FUSED: Final = "_scaled_dot_product_"  # start of the names of attention as one operation
_DROPPED: Final[Mapping[str, Callable[[Mapping[str, Any]], float]]] = {
    "bernoulli_": lambda given: 1 - given["p"] if isinstance(given["p"], float) else 0.0,  # or of a tensor
    "native_dropout": lambda given: given["p"],
}


class Mixing:
    """What was seen of one training's forward passes.

    Attributes:
        propagations: How many operations sum what the model computed over given edges, or multiply it by a given square
            matrix.
        peaks: Path of a module -> share of the rows of its attention with a coefficient above 0.99, 0-d; NaN if all
            but one score is masked in each row.
        hops: How many operations sum the data, of which nothing was computed yet, over given edges, or multiply them by
            a given square matrix.
        data: The data before the first of them and behind the last; None without any.
        dropped: Path of a module -> largest share of entries that dropout set to zero in it.
        along_rows: Path of a module -> shape of what it took a softmax of over the first axis.
        ahead: Path of a module -> length of the sequences in which the last row but one of its attention reads
            what comes later, 0-d; 0 if it does not.
    """

    def __init__(self) -> None:
        self.propagations = 0
        self.peaks: dict[str, Tensor] = {}
        self.hops = 0
        self.data: tuple[Tensor, Tensor] | None = None
        self.dropped: dict[str, float] = {}
        self.along_rows: dict[str, tuple[int, ...]] = {}
        self.ahead: dict[str, Tensor] = {}
        self._shares = WeakTensorKeyDictionary()  # coefficients -> share of their rows that are peaked

    def observe(self, name: str, arguments: Mapping[str, Any], out: Any, module: str) -> None:
        """Called after each operation, with its arguments by name, its results, and the path of the running module."""
        first = next((each for each in arguments.values() if isinstance(each, Tensor)), None)
        if first is None:
            return
        if name in _SOFTMAXES:
            self._observe_softmax(first, arguments["dim"] % max(1, out.ndim), out, module)
        elif name in _DROPPED or name.startswith(_FUSED):
            self._observe_whole(name, arguments, module)
        elif name in _CARRYING and first in self._shares:
            self._carry(first, out[0] if isinstance(out, tuple) else out)
        elif name in _PRODUCTS:
            self._observe_product(arguments, module, out)
        elif name.removesuffix("_") in _SUMS:
            self._observe_sum(arguments.get("source", arguments.get("src", first)), out)

    def _observe_softmax(self, scores: Tensor, axis: int, out: Tensor, module: str) -> None:
        if axis == 0 and out.ndim > 1 and len(out) > 1:
            self.along_rows[module] = tuple(out.shape)
        if axis != out.ndim - 1 or out.shape[-1] < 2:
            return
        self._shares[out] = _peaked_share(scores, out)
        if out.ndim > 2 and out.shape[-1] == out.shape[-2]:
            self._look_ahead(module, out[..., -2, -1].any() * out.shape[-1])  # of no row that is padding

    def _observe_sum(self, source: Tensor, out: Tensor) -> None:
        self.propagations += _is_computed(source)
        if source.ndim > 1 and not source.requires_grad and source.is_floating_point():
            self._take_hop(source, out)

    def _observe_whole(self, name: str, arguments: Mapping[str, Any], module: str) -> None:
        """Dropout, and attention without a mask, or with a causal one; what another mask hides is not looked at."""
        if name in _DROPPED:
            rate = float(_DROPPED[name](arguments))
            self.dropped[module] = max(self.dropped.get(module, 0.0), rate)
            return
        query, key = arguments.get("query"), arguments.get("key")
        if not isinstance(query, Tensor) or not isinstance(key, Tensor) or not query.shape[-2] == key.shape[-2] > 1:
            return
        mask = arguments.get("attn_mask", arguments.get("attn_bias"))
        if arguments.get("is_causal") or (isinstance(mask, Tensor) and _is_causal(mask)):
            self._look_ahead(module, torch.tensor(0))
        elif mask is None:
            self._look_ahead(module, torch.tensor(key.shape[-2]))

    def _look_ahead(self, module: str, length: Tensor) -> None:
        self.ahead[module] = torch.maximum(length, self.ahead.get(module, torch.zeros_like(length)))

    def _carry(self, coefficients: Tensor, result: Tensor) -> None:
        if result.ndim and result.shape[-1] == coefficients.shape[-1]:
            self._shares[result] = self._shares[coefficients]

    def _observe_product(self, arguments: Mapping[str, Any], module: str, out: Tensor) -> None:
        left = arguments.get("mat1", arguments.get("sparse", arguments.get("self")))
        right = arguments.get("mat2", arguments.get("dense"))
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return
        if not (left.requires_grad or right.requires_grad) and left.shape[-1] == left.shape[-2] and right.ndim == 2:
            self._take_hop(right, out)
        if not _is_computed(right):
            return
        if left in self._shares:
            self.peaks.setdefault(module, self._shares[left])
        elif not left.requires_grad and left.shape[-1] == left.shape[-2]:
            self.propagations += 1

    def _take_hop(self, before: Tensor, after: Tensor) -> None:
        if before.shape != (len(before), len(before)):  # a power of the matrix
            self.hops, self.data = self.hops + 1, (before if self.data is None else self.data[0], after)


def _is_causal(mask: Tensor) -> bool:
    """Whether the last row but one of a mask hides the last time, and the last row does not."""
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    hidden, shown = mask[..., -2, -1], mask[..., -1, -1]
    hides = [~each if mask.dtype is torch.bool else each < -_MASKED for each in (hidden, shown)]
    return bool(hides[0].all()) and not bool(hides[1].any())


def _is_computed(tensor: Tensor) -> bool:
    """Whether it was computed by the model, and is no parameter, nor a view of one."""
    return tensor.requires_grad and not (tensor if tensor._base is None else tensor._base).is_leaf


def _peaked_share(scores: Tensor, coefficients: Tensor) -> Tensor:
    """Share of the rows with two or more scores that are not masked in which one coefficient is nearly one, 0-d."""
    has_choice = (scores > scores.amax(-1, keepdim=True) - _MASKED).sum(-1) > 1
    is_peaked = (coefficients.amax(-1) > _PEAK) & has_choice
    return torch.as_tensor(is_peaked.sum() / has_choice.sum())
