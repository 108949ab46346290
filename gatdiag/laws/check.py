"""The numerical side of finding laws: gradients at a random point, and what the output does not depend on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws.no_effect import without_effect
from gatdiag.laws.point import Point, Tensors, flipped, gradients, place
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import Replica


@dataclass(frozen=True)
class Evidence:
    """What forward and backward passes at a random point show.

    Attributes:
        point: The point, near the model's own weights.
        unreached: Trainable parameters that never reach the output.
        no_effect: Name -> mask of entries that take part in the computation but cancel out of the output.
        unsearched: Why such entries could not be looked for, if they could not.
    """

    point: Point
    unreached: tuple[str, ...]
    no_effect: Tensors
    unsearched: str | None = None


def gather(replica: Replica, layer_of: Mapping[str, str]) -> Evidence:
    """Move a replica's weights and inputs to a random point, and look at the gradients there.

    The point is the model's own weights times random factors near one, with zeros made small numbers, so that nothing
    overflows or vanishes however deep the network is; it falls back to the model's own weights where even that does.

    Args:
        replica: A replica in the precision wanted; its weights and inputs are changed.
        layer_of: Name of a parameter -> its layer. Only what is small beside the rest of its layer is suspected to
            vanish.

    Raises:
        ModelError: The forward pass fails, no output depends on a trainable parameter, or gradients are not finite.
    """
    trainable = _trainable(replica)
    generator = torch.Generator().manual_seed(0)
    replica.perturb_inputs(generator)
    own = {name: tensor.detach().clone() for name, tensor in trainable.items()}
    point = _moved(replica, own, generator) or _point(replica, own)
    if point is None:
        raise ModelError(
            "The gradients of the model are not finite, at its own weights and near them, so no law can be checked. "
            "Give weights and inputs for which the forward and backward pass are finite."
        )
    masks, unsearched = without_effect(replica, point, layer_of, generator)
    unreached = tuple(name for name in trainable if name not in point.gradients)
    return Evidence(point, unreached, masks, unsearched)


def further_points(replica: Replica, evidence: Evidence, count: int, *, near: bool = False) -> Iterator[Point]:
    """Other points, far from the model's own weights: each sign is random. Those that are not finite are left out.

    Each is seen under random numbers (masks) of its own.

    Args:
        replica: What was used to gather the evidence.
        evidence: What was gathered.
        count: How many points to try.
        near: Begin with the point of the evidence.
    """
    generator = torch.Generator().manual_seed(1)
    if near and (point := _point(replica, evidence.point.weights)):
        yield point
    for seed in range(1, count + 1):
        if point := _moved(replica, evidence.point.weights, generator, seed):
            yield point


def _trainable(replica: Replica) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}


def _moved(replica: Replica, weights: Tensors, generator: torch.Generator, seed: int = 0) -> Point | None:
    moved = {name: _near(weight, generator) for name, weight in weights.items()}
    if seed:
        moved = {name: flipped(weight, generator) for name, weight in moved.items()}
    return _point(replica, moved, seed)


def _point(replica: Replica, weights: Tensors, seed: int = 0) -> Point | None:
    """The point at those weights, None if its gradients are not finite. The replica stays there."""
    place(replica, weights)
    with random_state(seed, {weight.device for weight in weights.values()}):
        (found,) = gradients(replica, _trainable(replica), [0.0], [])
    if not all(bool(gradient.isfinite().all()) for gradient in found.values()):
        return None
    return Point({name: weights[name] for name in found}, found, seed)


def _near(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The weight times random factors in [0.7, 1.3]; small numbers in place of zeros."""
    if not weight.numel():
        return weight.clone()
    factor, noise = (torch.rand(weight.shape, generator=generator).to(weight) for _ in range(2))
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    small = 0.1 * size / max(1, weight.shape[-1] if weight.ndim else 1) ** 0.5
    moved = torch.where(weight == 0, small * (2 * noise - 1), weight * (0.7 + 0.6 * factor))
    if weight.ndim > 1 and bool(weight.any()):
        empty = ~weight.flatten(1).any(dim=1)
        moved[empty] = 0  # the padding row of an embedding stays what it is
    return moved
