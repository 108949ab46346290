"""The rescaling that balances some tensors along laws, and what it leaves alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.remedies.least_norm import least_norm
from gatdiag.remedies.orbit import Orbit, Tensors

_APPROXIMATE = "it holds only up to an epsilon in the model (include_approximate=True uses it all the same)"


@dataclass(frozen=True)
class LawFactor:
    """What one law's weights are multiplied by.

    Attributes:
        name: Name of the law.
        layer: Module path of the layer it is counted under.
        neuron: Neuron or channel; None where the law runs over all of them.
        factor: s > 0: each of the law's terms is multiplied by s to the power of its exponent. Above 1, what leads into
            the neuron grows, and what leads out of it shrinks.
    """

    name: str
    layer: str
    neuron: int | None
    factor: float


@dataclass(frozen=True)
class Rescaling:
    """Factors that leave the function a model computes as it is.

    Attributes:
        factors: Name of parameter -> what to multiply it by, positive float64 on the CPU, broadcasting against it.
        coordinates: Logarithm of each law's factor, float64 of shape (laws,); zero where the law was left alone.
        by_law: One factor for each law that was balanced.
        balanced: Positions of those laws.
        left_alone: Laws that were not, and why.
    """

    factors: Mapping[str, Tensor]
    coordinates: Tensor
    by_law: tuple[LawFactor, ...]
    balanced: tuple[int, ...]
    left_alone: tuple[Exclusion, ...]


def balancing(
    laws: Laws,
    weights: Tensors,
    gradients: Tensors | None = None,
    *,
    include_approximate: bool = False,
    refused: Mapping[int, str] = MappingProxyType({}),
) -> Rescaling:
    """The rescaling that brings weights, or with gradients their relative gradients, into balance.

    Of weights it makes sum_k e_jk ||w_k||^2 = 0 for each law j: see `gatdiag.remedies.least_norm.least_norm`.

    Of relative gradients it makes sum_k e_jk ||g_k / w_k||^2 = 0, with g / w taken entry by entry: on both sides of a
    neuron the squared relative gradients add up to the same, so that no side's weights change faster, relative to their
    own size, than the other's. Where w is multiplied by s, g is divided by s and g / w by s^2, so this is the same
    problem: the coordinates that balance g / w as if it were a weight, times -1/2. Entries with w = 0, which no factor
    moves, are left out. One small weight can outweigh all others in such a sum; that is the criterion's nature.

    Args:
        laws: Of the model.
        weights: Name -> tensor, on any device and of any floating dtype; a saved checkpoint's just as well.
        gradients: Name -> gradient of the loss at these weights; what is missing counts as zero. None: balance weights.
        include_approximate: Use laws that hold only up to an epsilon in the model as well.
        refused: Positions of further laws to leave alone, and why.

    Raises:
        ModelError: The iteration did not converge.

    Source:
        c: equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023). Relative gradients:
        "Dynamic Rescaling for Training GNNs" (Mustafa, Burkholz, NeurIPS 2024), as its code has them, which takes ten
        sweeps of s = (sum (g/W^l)^2 / (sum (g/W^(l+1))^2 + (g/a)^2))^(1/8), each held in [1e-5, 2], towards the point
        that is found here at once.
    """
    reasons = {number: _APPROXIMATE for number, law in enumerate(laws) if not (law.exact or include_approximate)}
    reasons |= refused
    numbers = [number for number in range(len(laws)) if number not in reasons]
    chosen = [laws[number] for number in numbers]
    point = least_norm(chosen, weights if gradients is None else relative_gradients(weights, gradients))
    reasons |= {numbers[at]: reason for at, reason in point.left_alone.items()}
    coordinates = torch.zeros(len(laws), dtype=torch.float64)
    coordinates[numbers] = point.coordinates if gradients is None else -point.coordinates / 2
    balanced = tuple(number for number in numbers if number not in reasons)
    return Rescaling(
        Orbit(chosen).factors(coordinates[numbers]),
        coordinates,
        tuple(_law_factor(laws[number], float(coordinates[number].exp())) for number in balanced),
        balanced,
        tuple(Exclusion(laws[number].name, reason) for number, reason in sorted(reasons.items())),
    )


def relative_gradients(weights: Tensors, gradients: Tensors) -> dict[str, Tensor]:
    """g / w entry by entry in float64; zero where w is zero or there is no gradient."""
    found = {}
    for name, weight in weights.items():
        w = weight.detach().to(torch.float64)
        gradient = gradients.get(name)
        g = torch.zeros_like(w) if gradient is None else gradient.detach().to_dense().to(torch.float64)
        found[name] = torch.where(w == 0, 0.0, g / torch.where(w == 0, 1.0, w))
    return found


def _law_factor(law: Law, factor: float) -> LawFactor:
    return LawFactor(law.name, law.layer, law.neuron, factor)
