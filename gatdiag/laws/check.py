"""The numerical side of finding laws: gradients at a random point, and what the output does not depend on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws.kinks import Kinks
from gatdiag.laws.outputs import floating_tensors
from gatdiag.structure.replica import Replica

# Only parameters whose gradient is this small beside the largest are looked at more closely.
_SUSPECT = 1e-6


@dataclass(frozen=True)
class Evidence:
    """What one forward and backward pass at a random point shows.

    Attributes:
        weights: Name -> weight at that point, of every trainable parameter that reaches the output.
        gradients: Name -> gradient of a random loss there.
        unreached: Trainable parameters that never reach the output.
        annihilated: Name -> mask of entries that take part in the computation but cancel out of the output.
    """

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    unreached: tuple[str, ...]
    annihilated: dict[str, Tensor]


def gather(replica: Replica, seed: int = 0) -> Evidence:
    """Move a replica's weights and inputs to a random point, and look at the gradients there.

    The point is the model's own weights times random factors near one, with zeros made small numbers, so that nothing
    overflows or vanishes however deep the network is; it falls back to the model's own weights where even that does.

    Args:
        replica: A replica in the precision wanted; its weights and inputs are changed.
        seed: Of the random point and the random loss.

    Raises:
        ModelError: The forward pass fails, no output depends on a trainable parameter, or gradients are not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    trainable = {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}
    replica.perturb_inputs(generator)
    gradients, suspects = _nearby(replica, trainable, generator)
    annihilated: Tensors = {}
    if suspects:
        with Kinks() as kinks:
            _, annihilated = _gradients(replica, {name: trainable[name] for name in suspects}, generator, kinks.inputs)
        annihilated = {name: mask & suspects[name] for name, mask in annihilated.items()}
    return Evidence(
        {name: tensor.detach() for name, tensor in trainable.items() if name in gradients},
        gradients,
        tuple(name for name in trainable if name not in gradients),
        {name: mask for name, mask in annihilated.items() if bool(mask.any())},
    )


Tensors = dict[str, Tensor]


def _nearby(replica: Replica, trainable: Tensors, generator: torch.Generator) -> tuple[Tensors, Tensors]:
    own = {name: tensor.detach().clone() for name, tensor in trainable.items()}
    for move in (_near, lambda weight, _: weight):
        with torch.no_grad():
            for name, tensor in trainable.items():
                tensor.copy_(move(own[name], generator))
        gradients, noise = _gradients(replica, trainable, generator)
        if all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            return gradients, noise
    raise ModelError(
        "The gradients of the model are not finite, at its own weights and near them, so no law can be checked. "
        "Give weights and inputs for which the forward and backward pass are finite."
    )


def _near(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The weight times random factors in [0.7, 1.3]; small numbers in place of zeros."""
    if not weight.numel():
        return weight
    factor, noise = (torch.rand(weight.shape, generator=generator).to(weight) for _ in range(2))
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    small = 0.1 * size / max(1, weight.shape[-1] if weight.ndim else 1) ** 0.5
    return torch.where(weight == 0, small * (2 * noise - 1), weight * (0.7 + 0.6 * factor))


def _gradients(
    replica: Replica, trainable: Tensors, generator: torch.Generator, also: Sequence[Tensor] = ()
) -> tuple[Tensors, Tensors]:
    """Gradients of a random linear function of all outputs, and masks of the entries that are nothing but rounding.

    Parameters that never reach the output are left out of both. `also` are further tensors for the function to depend
    on, filled while the model runs.
    """
    with torch.enable_grad():
        returned = list(floating_tensors(replica.run()))
        outputs = [output for output in (*returned, *also) if output.requires_grad]
        if not outputs:
            raise ModelError(
                "Expected a forward pass whose output depends on a trainable parameter; got one that depends on none. "
                "Check that parameters have requires_grad=True and that the output is not detached."
            )
        cotangents = [torch.randn(output.shape, generator=generator).to(output) for output in outputs]
        found = _pulled_back(outputs, cotangents, trainable)
        suspects = found if also else _suspects(found)
        if not suspects:
            return found, {}
        nudged = [cotangent * (1 + 1e-13 * torch.rand_like(cotangent.real)) for cotangent in cotangents]
        again = _pulled_back(outputs, nudged, {name: trainable[name] for name in suspects})
    return found, _noise(found, again)


def _pulled_back(outputs: list[Tensor], cotangents: list[Tensor], trainable: Tensors) -> Tensors:
    found = torch.autograd.grad(outputs, list(trainable.values()), cotangents, retain_graph=True, allow_unused=True)
    return {name: gradient for name, gradient in zip(trainable, found, strict=True) if gradient is not None}


def _suspects(gradients: Tensors) -> list[str]:
    """Parameters with entries that are small enough to be rounding.

    In a matrix single entries do not count: those are unused inputs or embeddings, a property of the data.
    """
    largest = max((float(gradient.abs().max()) for gradient in gradients.values() if gradient.numel()), default=0.0)
    found = []
    for name, gradient in gradients.items():
        small = gradient.abs() <= _SUSPECT * largest
        is_vector = sum(length > 1 for length in gradient.shape) <= 1
        if bool(small.any()) and (is_vector or bool(small.all())):
            found.append(name)
    return found


def _noise(gradients: Tensors, again: Tensors) -> Tensors:
    """Masks of entries without a single digit in common although the loss moved in the thirteenth.

    A gradient that exists keeps its digits; a sum that cancels is left with rounding, which does not. This needs no
    scale, which a deep network would not have. A parameter whose zeros are all exact (dead units) is not among them.
    """
    masks = {}
    for name, second in again.items():
        first = gradients[name]
        change = (first - second).abs()
        mask = change >= 1e-2 * torch.maximum(first.abs(), second.abs())
        is_vector = sum(length > 1 for length in first.shape) <= 1
        if bool((change[mask] > 0).any()) and (is_vector or bool(mask.all())):
            masks[name] = mask
    return masks
