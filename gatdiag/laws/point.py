"""Random weights of a model, and the gradients of a random loss there."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.errors import GatdiagError, ModelError
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import Replica
from gatdiag.structure.tensors import floating_tensors

Tensors = dict[str, Tensor]

_LARGE = 2.0**10  # size of a loss at which clipping of gradients shows


class Point(NamedTuple):
    """Weights, and the gradients of a random loss there, of each trainable parameter that affects the output."""

    weights: Mapping[str, Tensor]
    gradients: Tensors
    seed: int  # of the random numbers (dropout masks) of the forward pass


def point_at(replica: Replica, weights: Mapping[str, Tensor], seed: int = 0) -> Point | None:
    """The point at the given weights, which the replica keeps.

    None if its gradients are not finite, or if they reach other parameters: the model took another branch there.
    """
    set_weights(replica, weights.items())
    found = _finite_gradients(replica, seed)
    if found is None or not found.keys() <= weights.keys():
        return None
    return Point({name: weights[name] for name in found}, found, seed)


def _finite_gradients(replica: Replica, seed: int) -> Tensors | None:
    found = seeded_gradients(replica, seed)
    return found if all(bool(gradient.isfinite().all()) for gradient in found.values()) else None


def seeded_gradients(replica: Replica, seed: int) -> Tensors:
    """Gradients under the random numbers of a seed; other seeds than 0 use a large loss, at which clipping shows."""
    with random_state(seed, {tensor.device for tensor in replica.parameters.values()}):
        return random_loss_gradients(replica, size=_LARGE if seed else 1.0)[0]


def point_near(replica: Replica, weights: Iterable[tuple[str, Tensor]], generator: torch.Generator) -> Point | None:
    """A point near the given weights, pairs of name and tensor; None if its gradients are not finite."""
    return point_at(replica, {name: _perturb(weight, generator) for name, weight in weights})


def distant_points(replica: Replica, start: Point, count: int) -> Iterator[Point]:
    """Points far from `start`, with random signs and other random numbers (masks).

    Those with non-finite gradients are left out, and those at which the model takes another branch, to another expert.
    """
    generator = torch.Generator().manual_seed(1)
    for seed in range(1, count + 1):
        weights = _DistantWeights(replica, start, generator)
        gradients = _finite_gradients(replica, seed)
        is_same_branch = gradients is not None and gradients.keys() == start.gradients.keys()
        points = [Point(weights, gradients, seed)] if gradients is not None and is_same_branch else []
        del gradients
        while points:
            yield points.pop()  # it is not kept while the next is computed


class _DistantWeights(Mapping[str, Tensor]):
    """Random weights, which a replica gets now, and which are drawn once more where they are read, to save memory."""

    def __init__(self, replica: Replica, start: Point, generator: torch.Generator) -> None:
        self._start = start
        # of the generator, before each weight is perturbed and flipped; many small tensors would lie between large ones
        self._states = generator.get_state().repeat(2, len(start.weights), 1)
        for state, (name, weight) in zip(self._states[0], start.weights.items(), strict=True):
            state.copy_(generator.get_state())
            set_weights(replica, [(name, _perturb(weight, generator, start.gradients[name]))])
        for state, name in zip(self._states[1], start.weights, strict=True):
            state.copy_(generator.get_state())
            set_weights(replica, [(name, flip_signs(replica.parameters[name].detach(), generator))])

    def __getitem__(self, name: str) -> Tensor:
        perturbing, flipping = self._states[:, list(self._start.weights).index(name)]
        generator = torch.Generator().set_state(perturbing.clone())
        moved = _perturb(self._start.weights[name], generator, self._start.gradients[name])
        return flip_signs(moved, generator.set_state(flipping.clone()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._start.weights)

    def __len__(self) -> int:
        return len(self._start.weights)


def trainable_parameters(replica: Replica) -> Tensors:
    """Name -> parameter that requires a gradient."""
    return {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}


def set_weights(replica: Replica, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy weights, as pairs of name and tensor, into a replica."""
    with torch.no_grad():
        for name, weight in weights:
            replica.parameters[name].copy_(weight)


def flip_signs(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Multiply every entry by a random sign."""
    signs = torch.randint(2, weight.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
    return weight * signs.to(weight.device)


def _perturb(weight: Tensor, generator: torch.Generator, gradient: Tensor | None = None) -> Tensor:
    """Multiply every entry by a random factor in [0.7, 1.3]; replace zeros by small numbers."""
    if not weight.numel():
        return weight.clone()
    moved = torch.rand(weight.shape, generator=generator).to(weight).mul_(0.6).add_(0.7).mul_(weight)
    noise, zeros = torch.rand(weight.shape, generator=generator), weight == 0
    if bool(zeros.any()):
        size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
        small = 0.1 * size / max(1, weight.shape[-1] if weight.ndim else 1) ** 0.5
        moved = torch.where(zeros, small * (2 * noise.to(weight) - 1), moved)
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
    names: Collection[str] | None = None,
) -> list[Tensors]:
    """Gradients of a random linear function of all outputs, without parameters that no output depends on.

    Args:
        replica: The model.
        perturbations: Relative changes of the function's coefficients; each gives one set of gradients. Apart from
            them the coefficients are the same in every call.
        extra_outputs: A list that is filled while the replica runs, with tensors that count as outputs.
        size: Factor of all coefficients.
        names: The parameters whose gradients are wanted; by default all.
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
            _backward(ends, _cotangents(ends, perturbation, turn, size), parameters, names, retain=turn < last)
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


def _backward(
    ends: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    parameters: Tensors,
    names: Collection[str] | None,
    *,
    retain: bool,
) -> Tensors:
    """Vector-Jacobian products; not by `torch.autograd.grad`, which reentrant checkpoints do not support."""
    check_time()
    wanted = parameters if names is None else {name: parameters[name] for name in names}
    inputs = None if names is None or _has_reentrant_checkpoint(ends) else list(wanted.values())
    try:
        with torch.autograd.set_detect_anomaly(False):  # what is not finite is seen by the caller
            torch.autograd.backward(ends, cotangents, retain_graph=retain, inputs=inputs)
        return {name: tensor.grad.to_dense() for name, tensor in wanted.items() if tensor.grad is not None}
    except GatdiagError:
        raise
    except Exception as error:
        raise ModelError(f"The backward pass failed with {type(error).__name__}: {error}") from error
    finally:
        for tensor in parameters.values():
            tensor.grad = None


def _has_reentrant_checkpoint(ends: Sequence[Tensor]) -> bool:
    """Whether the graph contains a checkpoint that refuses to compute the gradients of some parameters only."""
    waiting, seen = [end.grad_fn for end in ends], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [source for source, _ in node.next_functions]
            if "CheckpointFunction" in node.name():
                return True
    return False
