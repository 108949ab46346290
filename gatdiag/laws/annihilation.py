"""Entries that take part in the computation but cancel out of the output, such as a bias before batch norm.

They are told by gradients that are nothing but rounding. So are the gradients of dead and of saturated units; those
show themselves once what leaves a kink is in general position (see `gatdiag.laws.kinks`), and at weights of another
size.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws.kinks import Kinks
from gatdiag.laws.point import Point, Tensors, flipped, gradients, place
from gatdiag.structure.replica import Replica

# Only parameters with entries whose gradient is this small beside the largest of their layer are looked at closely.
_SUSPECT = 1e-6
# By how much the loss is moved to tell rounding from a gradient, and how often: rounding repeats itself now and then.
_NUDGE = 1e-9
_NUDGES = 2
# At which sizes of the weights that is done again: where attention or a gate is saturated, rounding is all there is.
_SIZES = (1.0, 2**-5, 2**-10)


def annihilated(
    replica: Replica, point: Point, layer_of: Mapping[str, str], generator: torch.Generator
) -> tuple[Tensors, str | None]:
    """Masks of the entries that cancel out of whatever comes between two kinks, or why they cannot be told.

    An entry that shows a gradient at one of several points does not cancel. The replica is left at the given point.

    Args:
        replica: What is run, a few times.
        point: Near the model's own weights, in float64.
        layer_of: Name of a parameter -> its layer. Only what is small beside the rest of its layer is suspected.
        generator: Of the random draws.
    """
    names = _suspects(point.gradients, layer_of)
    if names and point.weights[names[0]].real.dtype != torch.float64:
        return {}, "the model does not run in float64, and rounding is not told from a gradient otherwise"
    suspects: Tensors = {name: replica.parameters[name] for name in names}
    shown = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in suspects.items()}
    rounding = {name: torch.zeros_like(mask) for name, mask in shown.items()}
    elsewhere = ({name: size * flipped(w, generator) for name, w in point.weights.items()} for size in _SIZES)
    try:
        for weights in chain([point.weights], elsewhere):
            suspects = {name: tensor for name, tensor in suspects.items() if _counts(~shown[name])}
            if not suspects:
                break
            place(replica, weights)
            with Kinks(generator) as kinks:
                first, *again = gradients(replica, suspects, [0.0] + _NUDGES * [_NUDGE], kinks.projections)
            for name in first:
                exists, is_rounding = _told_apart(first[name], torch.stack([found[name] for found in again]))
                shown[name] |= exists
                rounding[name] |= is_rounding
    except (ModelError, RuntimeError) as error:
        return {}, f"they could not be looked for among {', '.join(names)} ({type(error).__name__}: {error})"
    finally:
        place(replica, point.weights)
    masks = {name: ~mask for name, mask in shown.items()}
    return {name: mask for name, mask in masks.items() if _counts(mask) and bool((mask & rounding[name]).any())}, None


def _suspects(gradients: Tensors, layer_of: Mapping[str, str]) -> list[str]:
    """Parameters with entries small enough, beside the others of their layer, to be nothing but rounding.

    A parameter alone in its layer is compared with the whole model.
    """
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
    """Whether a mask is of interest. In a matrix single entries are not: they are unused inputs, a matter of data."""
    is_vector = sum(length > 1 for length in mask.shape) <= 1
    return bool(mask.any()) and (is_vector or bool(mask.all()))


def _told_apart(first: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries are a gradient, and which are rounding, although the loss moved only in the ninth digit.

    A gradient that exists changes, in its ninth digit; a sum that cancels is left with rounding, which changes
    altogether or not at all. This needs no scale, which a deep network would not have. Exact zeros (an input that is
    not used, a gate that is shut) are neither.

    Args:
        first: The gradient before the loss moved.
        again: Those after it moved, along a first axis.
    """
    changes = (first - again).abs()
    jumps = changes > 1e-2 * torch.maximum(first.abs(), again.abs())
    rounding = jumps | ((changes == 0) & (first != 0))
    return ((changes > 0) & ~jumps).all(0), rounding.any(0)
