"""Operations of a forward pass that mix rows: sums over neighbors written by hand, and attention.

Layers of PyG are known by their class. Products with an adjacency matrix and softmaxes of scores are not: they are
recognized as they run, from their arguments.
"""

from collections.abc import Mapping
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


class Mixing:
    """What was seen of one training's forward passes.

    Attributes:
        propagations: How many operations sum what the model computed over given edges, or multiply it by a given square
            matrix.
        peaks: Path of a module -> share of the rows of its attention with a coefficient above 0.99, 0-d; NaN if all
            but one score is masked in each row.
    """

    def __init__(self) -> None:
        self.propagations = 0
        self.peaks: dict[str, Tensor] = {}
        self._shares = WeakTensorKeyDictionary()  # coefficients -> share of their rows that are peaked

    def observe(self, name: str, arguments: Mapping[str, Any], out: Any, module: str) -> None:
        """Called after each operation, with its arguments by name, its results, and the path of the running module."""
        first = next((each for each in arguments.values() if isinstance(each, Tensor)), None)
        if first is None:
            return
        if name in _SOFTMAXES:
            if arguments["dim"] in (-1, out.ndim - 1) and out.shape[-1] > 1:
                self._shares[out] = _peaked_share(first, out)
        elif name in _CARRYING and first in self._shares:
            self._carry(first, out[0] if isinstance(out, tuple) else out)
        elif name in _PRODUCTS:
            self._observe_product(arguments, module)
        elif name.removesuffix("_") in _SUMS:
            source = arguments.get("source", arguments.get("src", first))
            self.propagations += _is_computed(source)

    def _carry(self, coefficients: Tensor, result: Tensor) -> None:
        if result.ndim and result.shape[-1] == coefficients.shape[-1]:
            self._shares[result] = self._shares[coefficients]

    def _observe_product(self, arguments: Mapping[str, Any], module: str) -> None:
        left = arguments.get("mat1", arguments.get("sparse", arguments.get("self")))
        right = arguments.get("mat2", arguments.get("dense"))
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or not _is_computed(right):
            return
        if left in self._shares:
            self.peaks.setdefault(module, self._shares[left])
        elif not left.requires_grad and left.shape[-1] == left.shape[-2]:
            self.propagations += 1


def _is_computed(tensor: Tensor) -> bool:
    """Whether it was computed by the model, and is no parameter, nor a view of one."""
    return tensor.requires_grad and not (tensor if tensor._base is None else tensor._base).is_leaf


def _peaked_share(scores: Tensor, coefficients: Tensor) -> Tensor:
    """Share of the rows with two or more scores that are not masked in which one coefficient is nearly one, 0-d."""
    has_choice = (scores > scores.amax(-1, keepdim=True) - _MASKED).sum(-1) > 1
    is_peaked = (coefficients.amax(-1) > _PEAK) & has_choice
    return torch.as_tensor(is_peaked.sum() / has_choice.sum())
