"""Entries without effect: they take part in the computation but cancel out of the output, as a bias before batch norm.

Their gradient is nothing but rounding. So is that of a dead ReLU or a saturated softmax, near one point. Between its
nonsmooth operations a network is analytic, and what an analytic function does not depend on near one generic point it
does not depend on anywhere. So the graph is cut at these: what enters one counts as an output, and what leaves it is
moved into general position, for a layer all of whose units are dead feeds zeros to the next, whose attention then
weighs equal rows and seems to be without effect. Saturation shows itself at weights of another size.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from gatdiag.errors import ModelError
from gatdiag.laws.point import Point, Tensors, flipped, gradients, place
from gatdiag.structure.inputs import perturb
from gatdiag.structure.replica import Replica

# Only parameters with entries whose gradient is this small beside the largest of their layer are looked at closely.
_SUSPECT = 1e-6
# By how much the loss is moved to tell rounding from a gradient, and how often: rounding repeats itself now and then.
_NUDGES = (0.0, 1e-9, 1e-9)
# At which sizes of the weights that is done again: where attention or a gate is saturated, rounding is all there is.
_SIZES = (1.0, 2**-5, 2**-10)

_NAMES = """
relu relu6 leaky_relu prelu rrelu threshold hardtanh hardswish hardsigmoid hardshrink softshrink elu celu selu abs
absolute clamp clamp_min clamp_max clip max min amax amin maximum minimum fmax fmin cummax cummin aminmax where
masked_fill sort msort argsort topk median mode kthvalue scatter_reduce index_reduce segment_reduce max_pool1d
max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d
adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
fractional_max_pool2d fractional_max_pool2d_with_indices sign sgn round floor ceil fmod remainder nan_to_num
huber_loss smooth_l1_loss l1_loss cdist pdist
"""
_NONSMOOTH = frozenset(_NAMES.split())
_SMOOTH_REDUCTIONS = ("sum", "mean", "add")


def without_effect(
    replica: Replica, point: Point, layer_of: Mapping[str, str], generator: torch.Generator
) -> tuple[Tensors, str | None]:
    """Masks of the entries that cancel out of whatever comes between nonsmooth operations, or why nobody can tell.

    An entry that shows a gradient at one of several points has an effect. Only what is small beside the rest of its
    layer (name of parameter -> layer) is suspected. The replica is left at the given point.
    """
    names = _suspects(point.gradients, layer_of)
    if names and point.weights[names[0]].real.dtype != torch.float64:
        return {}, "the model does not run in float64, and rounding is not told from a gradient otherwise"
    shown = {name: torch.zeros_like(replica.parameters[name], dtype=torch.bool) for name in names}
    rounding = {name: torch.zeros_like(mask) for name, mask in shown.items()}
    elsewhere = ({name: size * flipped(w, generator) for name, w in point.weights.items()} for size in _SIZES)
    try:
        for weights in chain([point.weights], elsewhere):
            suspects = [name for name in names if _counts(~shown[name])]
            if not suspects:
                break
            place(replica, weights)
            with CutAtNonsmooth(generator) as cut:
                first, *again = gradients(replica, _NUDGES, cut.projections)
            for name in set(suspects) & first.keys():
                exists, is_rounding = _judged(first[name], torch.stack([found[name] for found in again]))
                shown[name] |= exists
                rounding[name] |= is_rounding
    except (ModelError, RuntimeError) as error:
        return {}, f"they could not be looked for among {', '.join(names)} ({type(error).__name__}: {error})"
    finally:
        place(replica, point.weights)
    masks = {name: ~mask for name, mask in shown.items()}
    return {name: mask for name, mask in masks.items() if _counts(mask) and bool((mask & rounding[name]).any())}, None


def _suspects(gradients: Tensors, layer_of: Mapping[str, str]) -> list[str]:
    """Parameters with entries small beside the others of their layer; one alone in it, beside the whole model."""
    sizes = {name: float(gradient.abs().max()) if gradient.numel() else 0.0 for name, gradient in gradients.items()}
    layers: dict[str, list[float]] = defaultdict(list)
    for name, size in sizes.items():
        layers[layer_of[name]].append(size)
    overall = max(sizes.values(), default=0.0)
    found = []
    for name, gradient in gradients.items():
        beside = layers[layer_of[name]]
        standard = max(beside) if len(beside) > 1 and max(beside) > 0 else overall
        if _counts(gradient.abs() <= _SUSPECT * standard):
            found.append(name)
    return found


def _counts(mask: Tensor) -> bool:
    """True if a mask is of interest. In a matrix single entries are not: they are unused inputs, a matter of data."""
    is_vector = sum(length > 1 for length in mask.shape) <= 1
    return bool(mask.any()) and (is_vector or bool(mask.all()))


def _judged(first: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries are a gradient, and which are rounding, although the loss moved only in the ninth digit.

    A gradient that exists changes, in its ninth digit; a sum that cancels is left with rounding, which changes
    altogether or not at all. This needs no scale, which a deep network would not have. Exact zeros (an input that is
    not used, a gate that is shut) are neither.
    """
    changes = (first - again).abs()
    jumps = changes > 1e-2 * torch.maximum(first.abs(), again.abs())
    rounding = jumps | ((changes == 0) & (first != 0))
    return ((changes > 0) & ~jumps).all(0), rounding.any(0)


class CutAtNonsmooth(TorchFunctionMode):
    """Projects what enters nonsmooth operations, cuts the graph behind them, and goes on in general position.

    Without gradients (a checkpointed segment, before it is computed again) nobody can tell what depends on a
    parameter, and all is moved.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self.projections: list[Tensor] = []  # a random linear function of each tensor with a history that entered one

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let what is smooth through."""
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        name = getattr(func, "__name__", "").strip("_")
        smooth = any(isinstance(value, str) and value in _SMOOTH_REDUCTIONS for value in values)
        floating = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
        entering = [value for value in floating if value.requires_grad]
        if name not in _NONSMOOTH or smooth or not (entering or (floating and not torch.is_grad_enabled())):
            return func(*args, **kwargs)
        if torch.is_grad_enabled():
            for value in entering:
                weights = torch.randn(value.shape, generator=self._generator, dtype=value.dtype).to(value.device)
                self.projections.append((value * weights).sum())
        # by a seed that depends on nothing but the inputs, what is computed twice, or recomputed, stays equal
        seed = hash(sum(float(value.detach().nan_to_num(posinf=0.0, neginf=0.0).sum()) for value in floating))
        with torch.no_grad():
            out = func(*args, **kwargs)
        if isinstance(out, Tensor) and any(out is value for value in values):
            return out.copy_(_restarted(out, seed))
        return tree_map_only(Tensor, lambda tensor: _restarted(tensor, seed), out)


def _restarted(tensor: Tensor, seed: int) -> Tensor:
    """The tensor near its values, without its history; it has one of its own, so that the next cut knows it."""
    if not tensor.is_floating_point():
        return tensor
    moved = perturb(tensor.detach(), torch.Generator().manual_seed(seed))
    return moved.clone().requires_grad_().clone()
