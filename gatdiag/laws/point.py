"""A point: weights, and the gradients of a random loss there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws.outputs import read_outputs
from gatdiag.laws.spill import spilled
from gatdiag.structure.replica import Replica

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Point:
    """Weights and the gradients of a random loss there, of every trainable parameter that reaches the output.

    Attributes:
        weights: The weights.
        gradients: The gradients.
        seed: Of the random numbers (masks) that they were seen under.
    """

    weights: Tensors
    gradients: Tensors
    seed: int


def place(replica: Replica, weights: Tensors) -> None:
    """Move a replica to other weights."""
    with torch.no_grad():
        for name, weight in weights.items():
            replica.parameters[name].copy_(weight)


def flipped(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The weight with random signs."""
    return weight * (2 * torch.randint(2, weight.shape, generator=generator).to(weight) - 1)


def gradients(replica: Replica, parameters: Tensors, nudges: Sequence[float], also: list[Tensor]) -> list[Tensors]:
    """Gradients of a random linear function of all outputs, once for each nudge of its coefficients.

    Args:
        replica: What is run, once.
        parameters: The parameters wanted; those that do not reach the output are left out of the results.
        nudges: Largest relative changes of the coefficients, which are the same at every call.
        also: Further tensors for the function to depend on, filled while the replica runs.
    """
    try:
        with spilled():
            return _differentiated(replica, parameters, nudges, also)
    except ModelError as error:
        if "saved tensor hooks" not in str(error):  # torch.func inside the forward pass does not bear them
            raise
    return _differentiated(replica, parameters, nudges, also)


def _differentiated(
    replica: Replica, parameters: Tensors, nudges: Sequence[float], also: list[Tensor], *, chosen: bool = True
) -> list[Tensors]:
    also.clear()
    with torch.enable_grad():
        outputs = [output for output in replica.run(read_outputs).tensors if output.requires_grad]
        if not any(output.numel() for output in (*outputs, *also)):
            raise ModelError(
                "Expected a forward pass whose output has entries that depend on a trainable parameter; got none. "
                "Check that the inputs are not empty, that parameters have requires_grad=True and that the output is "
                "not detached."
            )
        last = len(nudges) - 1
        ends = [*outputs, *also]  # settled now: what is checkpointed runs again in the backward pass, and fills `also`
        try:
            return [
                _pulled_back(ends, parameters, nudge, turn, retain=turn < last, chosen=chosen)
                for turn, nudge in enumerate(nudges)
            ]
        except RuntimeError as error:
            if not chosen or "use_reentrant" not in str(error):
                raise
    # Activations checkpointed in the old way bear no choice of inputs; it only saves what nobody asked for. The graph
    # is gone by now, up to where they are.
    return _differentiated(replica, parameters, nudges, also, chosen=False)


def _pulled_back(
    outputs: Sequence[Tensor], parameters: Tensors, nudge: float, turn: int, *, retain: bool, chosen: bool
) -> Tensors:
    fixed, moving = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + turn)
    cotangents = []
    for output in outputs:
        cotangent = torch.randn(output.shape, generator=fixed, dtype=output.dtype)
        change = torch.rand(output.shape, generator=moving, dtype=cotangent.real.dtype)
        cotangents.append((cotangent * (1 + nudge * change)).to(output.device))
    return _accumulated(outputs, cotangents, parameters, retain=retain, chosen=chosen)


def _accumulated(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], parameters: Tensors, *, retain: bool, chosen: bool
) -> Tensors:
    """Vector-Jacobian products, added into memory that is laid out beforehand.

    Small results allocated one by one between large temporaries would pin those and fragment the heap.
    """
    reached: set[str] = set()
    found = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in parameters.items()}
    handles = [
        tensor.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))
        for name, tensor in parameters.items()
    ]
    try:
        for name, tensor in parameters.items():
            tensor.grad = found[name]
        wanted = list(parameters.values()) if chosen else None
        torch.autograd.backward(outputs, cotangents, retain_graph=retain, inputs=wanted)
    finally:
        for handle in handles:
            handle.remove()
        for tensor in parameters.values():
            tensor.grad = None
    return {name: gradient for name, gradient in found.items() if name in reached}
