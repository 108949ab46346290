"""Random weights of a model, and the gradients of a random loss there."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.errors import GatdiagError, ModelError
from gatdiag.laws.outputs import floating_tensors
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import Replica

Tensors = dict[str, Tensor]

_LARGE = 2.0**10  # size of a loss at which clipping of gradients shows


class Point(NamedTuple):
    """Weights, and the gradients of a random loss there, of each trainable parameter that affects the output."""

    weights: Tensors
    gradients: Tensors
    seed: int  # of the random numbers (dropout masks) of the forward pass


def point_at(replica: Replica, weights: Tensors, seed: int = 0) -> Point | None:
    """The point at the given weights, which the replica keeps.

    None if its gradients are not finite, or if they reach other parameters: the model took another branch there.
    """
    set_weights(replica, weights)
    found = seeded_gradients(replica, seed)
    if not found.keys() <= weights.keys() or not all(bool(gradient.isfinite().all()) for gradient in found.values()):
        return None
    return Point({name: weights[name] for name in found}, found, seed)


def seeded_gradients(replica: Replica, seed: int) -> Tensors:
    """Gradients under the random numbers of a seed; other seeds than 0 use a large loss, at which clipping shows."""
    with random_state(seed, {tensor.device for tensor in replica.parameters.values()}):
        return random_loss_gradients(replica, size=_LARGE if seed else 1.0)[0]


def point_near(replica: Replica, weights: Tensors, generator: torch.Generator) -> Point | None:
    """A point near the given weights; None if its gradients are not finite."""
    return point_at(replica, {name: _perturb(weight, generator) for name, weight in weights.items()})


def distant_points(replica: Replica, start: Point, count: int) -> Iterator[Point]:
    """Points far from `start`, with random signs and other random numbers (masks).

    Those with non-finite gradients are left out, and those at which the model takes another branch, to another expert.
    """
    generator = torch.Generator().manual_seed(1)
    for seed in range(1, count + 1):
        moved = {name: _perturb(weight, generator, start.gradients[name]) for name, weight in start.weights.items()}
        point = point_at(replica, {name: flip_signs(weight, generator) for name, weight in moved.items()}, seed)
        if point and point.gradients.keys() == start.gradients.keys():
            yield point


def trainable_parameters(replica: Replica) -> Tensors:
    """Name -> parameter that requires a gradient."""
    return {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}


def set_weights(replica: Replica, weights: Tensors) -> None:
    """Copy weights into a replica."""
    with torch.no_grad():
        for name, weight in weights.items():
            replica.parameters[name].copy_(weight)


def flip_signs(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Multiply every entry by a random sign."""
    return weight * (2 * torch.randint(2, weight.shape, generator=generator).to(weight) - 1)


def _perturb(weight: Tensor, generator: torch.Generator, gradient: Tensor | None = None) -> Tensor:
    """Multiply every entry by a random factor in [0.7, 1.3]; replace zeros by small numbers."""
    if not weight.numel():
        return weight.clone()
    factor, noise = (torch.rand(weight.shape, generator=generator).to(weight) for _ in range(2))
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    small = 0.1 * size / max(1, weight.shape[-1] if weight.ndim else 1) ** 0.5
    moved = torch.where(weight == 0, small * (2 * noise - 1), weight * (0.7 + 0.6 * factor))
    if weight.ndim > 1 and bool(weight.any()):
        empty = ~weight.flatten(1).any(dim=1)
        if gradient is not None:
            empty &= ~gradient.flatten(1).any(dim=1)
        moved[empty] = 0  # the padding row of an embedding, unless it is trained (through a tied output layer)
    return moved


def random_loss_gradients(
    replica: Replica,
    perturbations: Sequence[float] = (0.0,),
    extra_outputs: list[Tensor] | None = None,
    size: float = 1.0,
) -> list[Tensors]:
    """Gradients of a random linear function of all outputs, without parameters that no output depends on.

    Args:
        replica: The model.
        perturbations: Relative changes of the function's coefficients; each gives one set of gradients. Apart from
            them the coefficients are the same in every call.
        extra_outputs: A list that is filled while the replica runs, with tensors that count as outputs.
        size: Factor of all coefficients.
    """
    extra_outputs = [] if extra_outputs is None else extra_outputs
    extra_outputs.clear()
    with torch.enable_grad():
        outputs = [output for output in floating_tensors(replica.run()) if output.requires_grad]
        # a copy, as checkpointed segments run again in the backward pass and add to extra_outputs
        ends = [*outputs, *extra_outputs]
        if not any(end.numel() for end in ends):
            raise ModelError(
                "Expected a forward pass whose output has entries that depend on a trainable parameter; got none. "
                "Check that the inputs are not empty, that parameters have requires_grad=True and that the output is "
                "not detached."
            )
        last, parameters = len(perturbations) - 1, trainable_parameters(replica)
        return [
            _backward(ends, _cotangents(ends, perturbation, turn, size), parameters, retain=turn < last)
            for turn, perturbation in enumerate(perturbations)
        ]


def _cotangents(ends: Sequence[Tensor], perturbation: float, turn: int, size: float) -> list[Tensor]:
    fixed, moving = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + turn)
    cotangents = []
    for end in ends:
        cotangent = torch.randn(end.shape, generator=fixed, dtype=end.dtype)
        change = torch.rand(end.shape, generator=moving, dtype=cotangent.real.dtype)
        cotangents.append((cotangent * (size * (1 + perturbation * change))).to(end.device))
    return cotangents


def _backward(ends: Sequence[Tensor], cotangents: Sequence[Tensor], parameters: Tensors, *, retain: bool) -> Tensors:
    """Vector-Jacobian products; not by `torch.autograd.grad`, which reentrant checkpoints do not support."""
    check_time()
    try:
        with torch.autograd.set_detect_anomaly(False):  # what is not finite is seen by the caller
            torch.autograd.backward(ends, cotangents, retain_graph=retain)
        return {name: tensor.grad.to_dense() for name, tensor in parameters.items() if tensor.grad is not None}
    except GatdiagError:
        raise
    except Exception as error:
        raise ModelError(f"The backward pass failed with {type(error).__name__}: {error}") from error
    finally:
        for tensor in parameters.values():
            tensor.grad = None
