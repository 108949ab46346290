"""Entries without effect: they take part in the computation but cancel out of the output, as a bias before batch norm.

Their gradient is nothing but rounding. So is that of a dead ReLU or a saturated softmax, near one point. Between its
nonsmooth operations a network is analytic, and what an analytic function does not depend on near one generic point it
does not depend on anywhere. So the graph is cut at these operations: their inputs count as outputs of the model, and
their results are perturbed into general position (a layer with only dead units would feed zeros to the next, whose
attention over equal rows would seem to have no effect). Saturation shows at weights of another size.

All of this is said of one graph: over few edges more cancels than over many. So such entries are reported, and stay in
laws.
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
from gatdiag.laws.point import Point, Tensors, flip_signs, random_loss_gradients, set_weights
from gatdiag.structure.inputs import perturb
from gatdiag.structure.replica import Replica

# Parameters with gradients this small compared with the largest of their layer are suspected.
_SUSPECT = 1e-6
# Relative perturbations of the loss that tell rounding from a gradient; two, as rounding may repeat by chance.
_PERTURBATIONS = (0.0, 1e-9, 1e-9)
# Sizes of the weights at which this is repeated: where attention or a gate is saturated, gradients are rounding.
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


def find_without_effect(
    replica: Replica, point: Point, layer_of: Mapping[str, str], generator: torch.Generator
) -> tuple[Tensors, str | None]:
    """Name -> mask of the entries without effect, and the reason why the search failed, if it did.

    An entry with a gradient at one of several points has an effect. Only entries with small gradients compared with
    the rest of their layer (`layer_of`: name of parameter -> layer) are suspected. The replica keeps the given point.
    """
    names = _find_suspects(point.gradients, layer_of)
    if names and point.weights[names[0]].real.dtype != torch.float64:
        return {}, "the model does not run in float64, without which rounding cannot be told from a gradient"
    shown = {name: torch.zeros_like(replica.parameters[name], dtype=torch.bool) for name in names}
    rounding = {name: torch.zeros_like(mask) for name, mask in shown.items()}
    own = point.weights.items()
    others = (((name, size * flip_signs(weight, generator)) for name, weight in own) for size in _SIZES)
    try:
        for weights in chain([own], others):
            suspects = [name for name in names if _is_relevant(~shown[name])]
            if not suspects:
                break
            set_weights(replica, weights)
            with CutAtNonsmooth(generator) as cut:
                first, *again = random_loss_gradients(replica, _PERTURBATIONS, cut.projections, names=suspects)
            for name in first:
                exists, is_rounding = _classify(first[name], torch.stack([found[name] for found in again]))
                shown[name] |= exists
                rounding[name] |= is_rounding
    except (ModelError, RuntimeError) as error:
        return {}, f"the search for them among {', '.join(names)} failed with {type(error).__name__}: {error}"
    finally:
        set_weights(replica, own)
    masks = {name: ~mask for name, mask in shown.items() if bool((~mask & rounding[name]).any())}
    return {name: mask for name, mask in masks.items() if _is_relevant(mask)}, None


def _find_suspects(gradients: Tensors, layer_of: Mapping[str, str]) -> list[str]:
    """Parameters with small gradients compared with those of their layer (of the model, if alone in their layer)."""
    sizes = {name: float(gradient.abs().max()) if gradient.numel() else 0.0 for name, gradient in gradients.items()}
    layers: dict[str, list[float]] = defaultdict(list)
    for name, size in sizes.items():
        layers[layer_of[name]].append(size)
    overall = max(sizes.values(), default=0.0)
    found = []
    for name, gradient in gradients.items():
        in_layer = layers[layer_of[name]]
        largest = max(in_layer) if len(in_layer) > 1 and max(in_layer) > 0 else overall
        if _is_relevant(gradient.abs() <= _SUSPECT * largest):
            found.append(name)
    return found


def _is_relevant(mask: Tensor) -> bool:
    """True for entries of a vector or a whole matrix; single entries of a matrix are inputs that are zero."""
    is_vector = sum(length > 1 for length in mask.shape) <= 1
    return bool(mask.any()) and (is_vector or bool(mask.all()))


def _classify(first: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the entries that are a gradient and of those that are rounding, from perturbations of the loss.

    If the loss changes in its ninth digit, a gradient changes in its ninth digit; the rounding that is left of a sum
    that cancels changes completely or not at all. This needs no threshold on the size of gradients, which would not fit
    all layers of a deep network. Exact zeros (an unused input, a closed gate) are neither.
    """
    changes = (first - again).abs()
    jumps = changes > 1e-2 * torch.maximum(first.abs(), again.abs())
    rounding = jumps | ((changes == 0) & (first != 0))
    return ((changes > 0) & ~jumps).all(0), rounding.any(0)


class CutAtNonsmooth(TorchFunctionMode):
    """Projects the inputs of nonsmooth operations to numbers, and detaches and perturbs their results.

    Without gradients (the first pass through a checkpointed segment) all of their results are perturbed, as it is
    unknown which depend on a parameter.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self.projections: list[Tensor] = []  # a random linear function of each input with a gradient

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; cut the graph if it is nonsmooth."""
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
        # a seed that depends on the inputs alone: what is computed twice, or recomputed, stays equal
        seed = hash(sum(float(value.detach().nan_to_num(posinf=0.0, neginf=0.0).sum()) for value in floating))
        with torch.no_grad():
            out = func(*args, **kwargs)
        if isinstance(out, Tensor) and any(out is value for value in values):
            return out.copy_(_detach_and_perturb(out, seed))
        return tree_map_only(Tensor, lambda tensor: _detach_and_perturb(tensor, seed), out)


def _detach_and_perturb(tensor: Tensor, seed: int) -> Tensor:
    """A perturbed copy, detached, that requires a gradient, so that the next cut projects it."""
    if not tensor.is_floating_point():
        return tensor
    moved = perturb(tensor.detach(), torch.Generator().manual_seed(seed))
    return moved.clone().requires_grad_().clone()
