"""Points: weights, and the gradients of a random loss there, of networks however deep."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gatdiag.errors import GatdiagError, ModelError
from gatdiag.laws.outputs import read_outputs
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import Replica

Tensors = dict[str, Tensor]

_LARGE = 2.0**10


class Point(NamedTuple):
    """Weights and the gradients of a random loss there, of every trainable parameter that reaches the output."""

    weights: Tensors
    gradients: Tensors
    seed: int  # of the random numbers (masks) that they were seen under


def at(replica: Replica, weights: Tensors, seed: int = 0) -> Point | None:
    """The point at those weights, None if its gradients are not finite. The replica stays there."""
    place(replica, weights)
    found = seeded_gradients(replica, seed)
    if not all(bool(gradient.isfinite().all()) for gradient in found.values()):
        return None
    return Point({name: weights[name] for name in found}, found, seed)


def seeded_gradients(replica: Replica, seed: int) -> Tensors:
    """Gradients under the random numbers of a seed; of any but the first, of a loss so large that clipping shows."""
    with random_state(seed, {tensor.device for tensor in replica.parameters.values()}):
        return gradients(replica, size=_LARGE if seed else 1.0)[0]


def near(replica: Replica, weights: Tensors, generator: torch.Generator) -> Point | None:
    """A point near those weights."""
    return at(replica, {name: _moved(weight, generator) for name, weight in weights.items()})


def elsewhere(replica: Replica, start: Point, count: int) -> Iterator[Point]:
    """As many points far from that one, each sign random, under random numbers (masks) of their own.

    Those that are not finite are left out.
    """
    generator = torch.Generator().manual_seed(1)
    for seed in range(1, count + 1):
        moved = {name: _moved(weight, generator, start.gradients[name]) for name, weight in start.weights.items()}
        if point := at(replica, {name: flipped(weight, generator) for name, weight in moved.items()}, seed):
            yield point


def trainable(replica: Replica) -> Tensors:
    """Its parameters that ask for a gradient."""
    return {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}


def place(replica: Replica, weights: Tensors) -> None:
    """Move a replica to other weights."""
    with torch.no_grad():
        for name, weight in weights.items():
            replica.parameters[name].copy_(weight)


def flipped(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The weight with random signs."""
    return weight * (2 * torch.randint(2, weight.shape, generator=generator).to(weight) - 1)


def _moved(weight: Tensor, generator: torch.Generator, gradient: Tensor | None = None) -> Tensor:
    """The weight times random factors in [0.7, 1.3]; small numbers in place of zeros."""
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
        moved[empty] = 0  # the padding row of an embedding stays what it is, unless it is trained (by an output it is)
    return moved


def gradients(
    replica: Replica, nudges: Sequence[float] = (0.0,), also: list[Tensor] | None = None, size: float = 1.0
) -> list[Tensors]:
    """Gradients of a random linear function of all outputs, once for each (relative) nudge of its coefficients.

    These are the same at every call, times the size. Parameters that do not reach the output are left out. The function
    depends on further tensors, too, which are filled in `also` while the replica runs.
    """
    also = [] if also is None else also
    also.clear()
    with torch.enable_grad():
        outputs = [output for output in replica.run(read_outputs).tensors if output.requires_grad]
        ends = [*outputs, *also]  # settled now: what is checkpointed runs again in the backward pass, and fills `also`
        if not any(end.numel() for end in ends):
            raise ModelError(
                "Expected a forward pass whose output has entries that depend on a trainable parameter; got none. "
                "Check that the inputs are not empty, that parameters have requires_grad=True and that the output is "
                "not detached."
            )
        last = len(nudges) - 1
        return [
            _accumulated(ends, _cotangents(ends, nudge, turn, size), trainable(replica), retain=turn < last)
            for turn, nudge in enumerate(nudges)
        ]


def _cotangents(ends: Sequence[Tensor], nudge: float, turn: int, size: float) -> list[Tensor]:
    fixed, moving = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + turn)
    cotangents = []
    for end in ends:
        cotangent = torch.randn(end.shape, generator=fixed, dtype=end.dtype)
        change = torch.rand(end.shape, generator=moving, dtype=cotangent.real.dtype)
        cotangents.append((cotangent * (size * (1 + nudge * change))).to(end.device))
    return cotangents


def _accumulated(ends: Sequence[Tensor], cotangents: Sequence[Tensor], parameters: Tensors, *, retain: bool) -> Tensors:
    """Vector-Jacobian products, added into memory that is laid out beforehand.

    Small results allocated one by one between large temporaries would pin those and fragment the heap.
    """
    reached: set[str] = set()
    handles = [
        tensor.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))
        for name, tensor in parameters.items()
    ]
    try:
        for tensor in parameters.values():
            tensor.grad = torch.zeros_like(tensor, requires_grad=False)
        check_time()
        torch.autograd.backward(ends, cotangents, retain_graph=retain)
        return {name: tensor.grad for name, tensor in parameters.items() if name in reached and tensor.grad is not None}
    except GatdiagError:
        raise
    except Exception as error:
        raise ModelError(f"The backward pass failed with {type(error).__name__}: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
        for tensor in parameters.values():
            tensor.grad = None
