"""Which axis of a tensor has the channels, so that the layer that made it decides how it becomes a matrix X.

Convolutions and most normalizations have a convention: (B, C, L), (B, C, H, W), ... For other modules, such as
activations, residual blocks and a normalization between two permutations, the graph of autograd is followed back to an
operation with a convention. Where neither tells (a frozen block of the user's own), channels are the last axis.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

_INSTANCE_NORMS: Final = {nn.InstanceNorm1d: -2, nn.InstanceNorm2d: -3, nn.InstanceNorm3d: -4}
_WITHOUT_BATCH: Final = (_ConvNd, nn.InstanceNorm1d)  # take (C, L), too
_SECOND: Final = re.compile("Convolution|BatchNorm|GroupNorm")  # in the name of an autograd node
_BEFORE_SPACE: Final = re.compile(r"(?:Pool|Upsample\w*?)([123])D")
_LAST: Final = re.compile(r"Mm|Addmm|Bmm|Baddbmm|Linear|\w*Rnn")
_VIEWS: Final = re.compile("View|UnsafeView|Reshape|Squeeze|Unsqueeze")
_MAX_NODES: Final = 100  # that are followed

# (node, where the axes of its result are in the tensor, shape before it, shape of its result) -> the same of its source
Trace: TypeAlias = Callable[[Any, list[int | None], Sequence[int], Sequence[int]], list[int | None]]


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
    if axes < 3 and not isinstance(module, _WITHOUT_BATCH):
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
    places: list[int | None] = [*range(-axes, 0)]  # axis of the result of a node -> where it is in the tensor
    shape = node._input_metadata[0].shape
    for _ in range(_MAX_NODES):
        own, trace = _convention(type(node).__name__)
        if own is not None:
            return places[own] or -1
        is_norm = hasattr(node, "_saved_normalized_shape") and len(node._saved_normalized_shape) == 1
        source = None if is_norm else _source(node, shape, is_view=trace in (_through_view, _through_selection))
        if source is None:
            break
        following, before = source
        places = trace(node, places, before, shape)
        node, shape = following, before
    return places[-1] or -1


@cache
def _convention(name: str) -> tuple[int | None, Trace]:
    """The axis of the channels of an operation's result, if it has one of its own, and how its axes were moved."""
    if _SECOND.search(name):
        return 1, _unmoved
    if found := _BEFORE_SPACE.search(name):
        return -1 - int(found[1]), _unmoved
    if _LAST.match(name):
        return -1, _unmoved
    if name.startswith("Permute"):
        return None, _through_permutation
    if name.startswith("Transpose"):
        return None, _through_transposition
    if name.startswith("Select"):
        return None, _through_selection
    return None, _through_view if _VIEWS.match(name) else _unmoved


def _source(node: Any, shape: Sequence[int], *, is_view: bool) -> tuple[Any, Sequence[int]] | None:
    """The node whose result this one was computed from, and its shape; None if none has as many axes."""
    found = [(each, each._input_metadata[number].shape) for each, number in node.next_functions if each is not None]
    found = [each for each in found if is_view or len(each[1]) == len(shape)]
    return next((each for each in found if each[1] == shape), found[0] if found else None)


def _unmoved(_: Any, places: list[int | None], *__: Any) -> list[int | None]:
    return places


def _through_permutation(node: Any, places: list[int | None], *_: Any) -> list[int | None]:
    dims = [_signed(dim) % len(places) for dim in node._saved_dims]
    return [places[dims.index(axis)] for axis in range(len(places))]


def _through_transposition(node: Any, places: list[int | None], *_: Any) -> list[int | None]:
    one, other = _signed(node._saved_dim0), _signed(node._saved_dim1)
    moved = [*places]
    moved[one], moved[other] = places[other], places[one]
    return moved


def _through_selection(node: Any, places: list[int | None], *_: Any) -> list[int | None]:
    dim = _signed(node._saved_dim) % (len(places) + 1)
    return [*places[:dim], None, *places[dim:]]


def _through_view(_: Any, places: list[int | None], before: Sequence[int], after: Sequence[int]) -> list[int | None]:
    """An axis is kept if it has the same length, and as many entries before it."""
    if len(before) == len(after):
        return places
    kept = {(prod(after[:axis]), length): places[axis] for axis, length in enumerate(after)}
    return [kept.get((prod(before[:axis]), length)) for axis, length in enumerate(before)]


def _signed(dim: int) -> int:
    return dim - 2**64 if dim >= 2**63 else dim  # torch stores dim=-2 without sign
