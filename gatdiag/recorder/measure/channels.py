"""Which axis of a tensor has the channels, so that the layer that made it decides how it becomes a matrix X.

Convolutions and most normalizations have a convention: (B, C, L), (B, C, H, W), ... For other modules, such as
activations, residual blocks, attention over places and a normalization between two permutations, the graph of autograd
is followed back to an operation with a convention, along all that it was computed from. A product with a weight, as in
a linear layer, has its channels where the weight has its own; if that is not the last axis, such as for weights that
mix tokens or nodes, it counts only if nothing else tells. Any other matrix product (with an adjacency matrix, or of
attention) leaves its axes where they were. Where nothing tells (a frozen block of the user's own), channels are the
last axis.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from math import gcd, prod
from typing import Any, Final, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

_INSTANCE_NORMS: Final = {nn.InstanceNorm1d: -2, nn.InstanceNorm2d: -3, nn.InstanceNorm3d: -4}
_WITHOUT_BATCH: Final = (_ConvNd, nn.InstanceNorm1d)  # take (C, L), too
_SECOND: Final = re.compile("Convolution|BatchNorm|GroupNorm|Im2Col")  # in the name of an autograd node
_BEFORE_SPACE: Final = re.compile(r"(?:Pool|Upsample\w*?)([123])D")
_LAST: Final = re.compile(r"Embedding|Linear|\w*Rnn")
_PRODUCT: Final = re.compile("Mm|Bmm|Addmm|Baddbmm")
_VIEWS: Final = re.compile("View|UnsafeView|Reshape|Squeeze|Unsqueeze")
_ALIGNED_AT_END: Final = re.compile("Expand|Repeat")
_ARRANGED: Final = re.compile("TBackward|Transpose|Permute|View|Reshape|Expand|Clone|ToCopy|Unsqueeze")
_MAX_NODES: Final = 100  # that are followed

# Of an axis of a node's result: lengths of the factors of its length, outer ones first, and where each is in the tensor
# that is asked about (counted from the end; None: it was summed over or selected from). Only views make it several.
Axis: TypeAlias = list[tuple[int, int | None]]


class _Result(NamedTuple):
    """The result of an autograd node."""

    node: Any
    shape: Sequence[int]
    axes: list[Axis]


def channel_axis(module: nn.Module | None, x: Tensor) -> int:
    """The axis of the channels of an output, or of an input, of a module; negative, counted from the end.

    Args:
        module: If None, or of a class without a convention, the operation that made x decides.
        x: Attached to its autograd graph, if it has one.

    Example:
        >>> import torch
        >>> conv, image = nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 5, 5)
        >>> channel_axis(conv, conv(image)), channel_axis(nn.ReLU(), conv(image).relu())
        (-3, -3)
        >>> channel_axis(nn.LayerNorm(8), nn.LayerNorm(8)(conv(image).movedim(1, -1)))
        -1
    """
    axes = x.dim()
    if axes < 2:
        return -1
    axis = None if module is None else _of_class(module, axes)
    if axis is None:
        return -1 if x.grad_fn is None else _of_graph(x.grad_fn, axes)
    return max(axis, -axes)


def _of_class(module: nn.Module, axes: int) -> int | None:
    if isinstance(module, _ConvNd):
        return -1 - len(module.kernel_size)
    if isinstance(module, _BatchNorm | nn.GroupNorm) or (isinstance(module, nn.PReLU) and module.num_parameters > 1):
        return 1 - axes
    if isinstance(module, nn.Linear) or hasattr(type(module), "propagate"):  # or a convolution of PyG
        return -1
    return next((axis for each, axis in _INSTANCE_NORMS.items() if isinstance(module, each)), None)


def _of_graph(node: Any, axes: int) -> int:
    shape = node._input_metadata[0].shape
    waiting = [_Result(node, shape, [[(length, axis - axes)] for axis, length in enumerate(shape)])]
    seen, unsure = {node}, -1
    while waiting and len(seen) < _MAX_NODES:
        result = waiting.pop()
        own, is_sure = _convention(type(result.node).__name__)
        own = _of_product(result.node) if own is None and not is_sure else own
        own = -1 if _is_layer_norm(result.node) else own
        place = None if own is None or not result.axes[own] else result.axes[own][-1][1]
        if place == -1 or (place is not None and is_sure):
            return place
        unsure = place if unsure == -1 and place is not None and axes > 2 else unsure
        if own is None or not is_sure:
            sources = [each for each in _sources(result) if each.node not in seen]
            seen |= {each.node for each in sources}
            waiting += reversed(sources)
    return unsure


@cache
def _convention(name: str) -> tuple[int | None, bool]:
    """The axis of the channels of an operation's result, if it has one of its own, and False for a matrix product."""
    if _SECOND.search(name):
        return 1, True
    if found := _BEFORE_SPACE.search(name):
        return -1 - int(found[1]), True
    return (-1 if _LAST.match(name) else None), _PRODUCT.match(name) is None


def _is_layer_norm(node: Any) -> bool:
    return len(getattr(node, "_saved_normalized_shape", ())) == 1


def _of_product(node: Any) -> int | None:
    """The axis of a matrix product that a weight mixes; None if none of the factors is a weight, or both are."""
    first, second = (_is_weight(each) for each, _ in [*node.next_functions[-2:]])
    return None if first is second else -1 if second else -2


def _is_weight(node: Any) -> bool:
    """True for a parameter, also transposed, reshaped or in another precision."""
    while node is not None and _ARRANGED.match(type(node).__name__):
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"


def _sources(result: _Result) -> list[_Result]:
    """What a result was computed from, without what has other axes; what has its shape comes first."""
    found = []
    for node, number in result.node.next_functions:
        if node is not None and node.next_functions and not node._input_metadata[number].is_nested_tensor:
            before = node._input_metadata[number].shape
            axes = _axes_before(result, before)
            found += [] if axes is None else [_Result(node, before, axes)]
    return sorted(found, key=lambda source: source.shape != result.shape)


def _axes_before(result: _Result, before: Sequence[int]) -> list[Axis] | None:
    """Of a source of this shape; None if the axes do not correspond."""
    node, shape, axes = result
    name, more = type(node).__name__, len(before) - len(shape)
    if name.startswith("Permute"):
        dims = [_signed(dim) % len(axes) for dim in node._saved_dims]
        return [axes[dims.index(axis)] for axis in range(len(axes))]
    if name.startswith("Transpose"):
        one, other = _signed(node._saved_dim0), _signed(node._saved_dim1)
        moved = [*axes]
        moved[one], moved[other] = axes[other], axes[one]
        return moved
    if name.startswith("TBackward"):
        return axes[::-1]
    if _VIEWS.match(name):
        return _before_view(axes, shape, before)
    found = axes if not more else _with_other_number(result, name, before)
    return found and [_with_length(axis, length) for axis, length in zip(found, before, strict=True)]


def _with_other_number(result: _Result, name: str, before: Sequence[int]) -> list[Axis] | None:
    """The axes of a source that has more axes or fewer."""
    node, shape, axes = result
    dims, more = _as_tuple(getattr(node, "_saved_dim", None)), len(before) - len(shape)
    if more == len(dims) > 0:  # summed over, or selected from
        kept, gone = iter(axes), {_signed(dim) % len(before) for dim in dims}
        return [[(length, None)] if axis in gone else next(kept) for axis, length in enumerate(before)]
    if name.startswith("Stack"):
        return [axis for number, axis in enumerate(axes) if number != _signed(dims[0]) % len(axes)]
    return axes[-more:] if more < 0 and _ALIGNED_AT_END.match(name) else None


def _before_view(axes: Sequence[Axis], after: Sequence[int], before: Sequence[int]) -> list[Axis]:
    """The factors in their order, distributed over the axes of the source; none where they do not fit."""
    alone = {prod(after[:axis]): axes[axis] for axis, length in enumerate(after) if length == 1}
    factors = [factor for axis in axes for factor in axis if factor[0] != 1]
    return [
        [*_take(factors, length)] if length != 1 else alone.get(prod(before[:axis]), [(1, None)])
        for axis, length in enumerate(before)
    ]


def _take(factors: Axis, length: int) -> Iterator[tuple[int, int | None]]:
    while length > 1 and factors:
        size, place = factors.pop(0)
        share = gcd(size, length)
        if share == 1:
            factors.clear()
            return
        factors[:0] = [(size // share, place)] if size > share else []
        length //= share
        yield share, place


def _with_length(axis: Axis, length: int) -> Axis:
    """The axis of the source of an operation that changes its length."""
    return axis if prod(size for size, _ in axis) == length else [(length, axis[-1][1] if axis else None)]


def _as_tuple(dims: Any) -> tuple[int, ...]:
    return () if dims is None else dims if isinstance(dims, tuple) else (dims,)


def _signed(dim: int) -> int:
    return dim - 2**64 if dim >= 2**63 else dim  # torch stores dim=-2 without sign
