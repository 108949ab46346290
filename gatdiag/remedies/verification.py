"""A rescaling put to the test: what moves the outputs of a copy of the model is left alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gatdiag.errors import ModelError
from gatdiag.laws import Laws
from gatdiag.remedies.orbit import Orbit, Tensors
from gatdiag.remedies.output_difference import OutputDifference, output_difference
from gatdiag.remedies.rescaling import Rescaling, balancing

# Largest relative change of an output in float64: rounding; and where laws that hold up to an epsilon are used.
_ROUNDING, _EPSILON = 1e-9, 1e-3


@dataclass(frozen=True)
class Verified:
    """A rescaling that leaves the outputs where they are.

    Attributes:
        rescaling: The rescaling.
        double: How far the outputs move in float64; None where the model does not run in it.
        own: The same in the model's own precision.
    """

    rescaling: Rescaling
    double: OutputDifference | None
    own: OutputDifference


def verified_balancing(
    model: nn.Module,
    laws: Laws,
    gradients: Tensors | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    include_approximate: bool = False,
) -> Verified:
    """The rescaling of `balancing`, less the layers whose share in it moves the outputs.

    A law is a statement about a point; a threshold in the model (the deviations that `StdAggregation` takes for zero, a
    choice of the largest) may be crossed on the way to another one. Where the outputs move by more than rounding, each
    layer's share is tried by itself, those that move them are left alone, and the others are balanced again.

    Args:
        model: The model, which is not changed.
        laws: Of the model.
        gradients: As in `balancing`.
        args: Positional inputs of the forward pass, which is run in evaluation mode.
        kwargs: Keyword inputs.
        include_approximate: As in `balancing`; outputs may then move by 1e-3 of their size, else by 1e-9, in float64.

    Raises:
        ModelError: Outputs are not finite in float64, or they move and no layer by itself moves them, or they move by
            more than the square root of machine epsilon in the model's own precision.
    """
    limit = _EPSILON if include_approximate else _ROUNDING
    refused: dict[int, str] = {}
    while True:
        rescaling = balancing(
            laws, laws.parameters, gradients, include_approximate=include_approximate, refused=refused
        )
        double = _in_double(model, rescaling.factors, args, kwargs)
        own = output_difference(model, rescaling.factors, args, kwargs)
        exact, allowed = (own, own.epsilon**0.5) if double is None else (double, limit)
        if exact.relative <= allowed:
            break
        dtype = None if double is None else torch.float64
        refused |= _movers(model, laws, rescaling, args, kwargs, dtype, exact, allowed)
    if own.relative > max(limit, own.epsilon**0.5):  # NaN where outputs overflowed before: that says nothing
        raise _moved(own, "the model's own precision")
    return Verified(rescaling, double, own)


def _in_double(
    model: nn.Module, factors: Tensors, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> OutputDifference | None:
    try:
        return output_difference(model, factors, args, kwargs, torch.float64)
    except ModelError:  # it does not run in float64; the model's own precision, in which laws are found then, must do
        return None


def _movers(
    model: nn.Module,
    laws: Laws,
    rescaling: Rescaling,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dtype: torch.dtype | None,
    together: OutputDifference,
    limit: float,
) -> dict[int, str]:
    """Laws of the layers that move the outputs by themselves, and by how much."""
    found: dict[int, str] = {}
    balanced = set(rescaling.balanced)
    for numbers in laws.by_layer().values():
        chosen = [number for number in numbers if number in balanced]
        factors = Orbit([laws[number] for number in chosen]).factors(rescaling.coordinates[chosen])
        alone = output_difference(model, factors, args, kwargs, dtype)
        if alone.relative > limit:
            reason = f"the outputs move by {alone.relative:.0e} of their size as its layer is rescaled"
            found |= dict.fromkeys(chosen, reason)
    if not found or math.isnan(together.relative):
        raise _moved(together, "float64" if dtype else "the model's own precision")
    return found


def _moved(difference: OutputDifference, precision: str) -> ModelError:
    return ModelError(
        f"Expected outputs that stay as they are, but in {precision} and evaluation mode they would move by "
        f"{difference.relative:.1e} of their size, so nothing was changed. Laws are found in the mode the model is in: "
        "call this in evaluation mode, or on inputs for which all outputs are finite."
    )
