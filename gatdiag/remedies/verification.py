"""How far a model's outputs move when it is rescaled, found out on a copy; layers that move them are skipped."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.laws import Laws
from gatdiag.laws.outputs import floating_tensors, read_outputs
from gatdiag.names import join_names, quote
from gatdiag.remedies.least_norm import Rescaling, balancing
from gatdiag.remedies.orbit import Orbit, Tensors, multiply_
from gatdiag.structure import replicate

_ROUNDING: Final = 1e-9  # largest relative change of an output in float64
_APPROXIMATE: Final = "it holds only up to an epsilon in the model"


@dataclass(frozen=True)
class OutputDifference:
    """The largest change of an output.

    Attributes:
        absolute: Largest |after - before| of any entry.
        relative: The same relative to the largest |before| of its tensor, the largest of all tensors. NaN where an
            output was not finite before, infinite where one no longer is.
        epsilon: Machine epsilon of the coarsest floating dtype among outputs and parameters: what rounding alone makes.
    """

    absolute: float
    relative: float
    epsilon: float


def output_difference(
    model: nn.Module,
    factors: Tensors,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> OutputDifference:
    """Run a copy of the model, in evaluation mode and a precision, before and after its parameters are multiplied."""
    replica = replicate(model, args, kwargs)
    if dtype is not None:
        replica.to(dtype)
    replica.model.eval()
    before = replica.run_no_grad(read_outputs).tensors
    for name, factor in factors.items():
        multiply_(replica.parameters[name], factor)
    after = replica.run_no_grad(read_outputs).tensors
    dtypes = {tensor.dtype for tensor in [*before, *floating_tensors(replica.parameters)]}
    epsilon = max((torch.finfo(known).eps for known in dtypes), default=0.0)
    changes = [_change(old, new) for old, new in zip(before, after, strict=True) if old.numel()]
    absolute, relative = torch.tensor(changes or [[0.0, 0.0]], dtype=torch.float64).amax(0).tolist()
    return OutputDifference(absolute, relative, epsilon)


def _change(before: Tensor, after: Tensor) -> tuple[float, float]:
    before, after = (
        tensor.to_dense().to(torch.promote_types(tensor.dtype, torch.float64)) for tensor in (before, after)
    )
    if not bool(before.isfinite().all()):
        return math.nan, math.nan
    if not bool(after.isfinite().all()):
        return math.inf, math.inf
    absolute, size = float((after - before).abs().max()), float(before.abs().max())
    return absolute, absolute / size if size else math.inf if absolute else 0.0


def verified_balancing(
    model: nn.Module,
    laws: Laws,
    gradients: Tensors | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Rescaling, OutputDifference | None, OutputDifference]:
    """The rescaling of `balancing`, less the layers whose share in it moves the outputs; how far these move then.

    A law is a statement about a point; a threshold in the model (the deviations that `StdAggregation` takes for zero, a
    choice of the largest) may be crossed on the way to another one. Where the outputs move by more than rounding, each
    layer's share is tried by itself, those that move them are skipped, and the others are balanced again. The outputs
    are compared in float64, where the model runs in it, and in its own precision.

    Raises:
        ModelError: Weights or outputs are not finite, or these move and no layer by itself moves them.
    """
    if broken := [name for name in laws.names if not bool(laws.parameters[name].isfinite().all())]:
        raise ModelError(
            f"Expected weights that are finite, got NaN or infinities in {join_names(map(quote, broken), 3)}"
        )
    moved = partial(output_difference, model, args=args, kwargs=kwargs)
    refused = {number: _APPROXIMATE for number, law in enumerate(laws) if not law.exact}
    while True:
        rescaling = balancing(laws, laws.parameters, gradients, refused=refused)
        own = moved(rescaling.factors)
        double, dtype = None, torch.float64
        with suppress(ModelError):  # where it does not run in float64, its own precision has to do, as for its laws
            double = moved(rescaling.factors, dtype=dtype)
        exact, allowed = (own, own.epsilon**0.5) if double is None else (double, _ROUNDING)
        if exact.relative <= allowed:
            break
        tried = partial(moved, dtype=None if double is None else dtype)
        found = {} if math.isnan(exact.relative) else _movers(laws, rescaling, tried, allowed)
        if not found:
            raise _refused(exact, "the model's own precision" if double is None else "float64")
        refused |= found
    if own.relative > max(_ROUNDING, own.epsilon**0.5):  # NaN where outputs overflowed before: that says nothing
        raise _refused(own, "the model's own precision")
    return rescaling, double, own


def _movers(
    laws: Laws, rescaling: Rescaling, moved: Callable[[Tensors], OutputDifference], allowed: float
) -> dict[int, str]:
    """Laws of the layers that move the outputs by themselves, and by how much."""
    found: dict[int, str] = {}
    balanced = set(rescaling.balanced)
    for numbers in laws.by_layer().values():
        chosen = [number for number in numbers if number in balanced]
        factors = Orbit([laws[number] for number in chosen]).factors(rescaling.coordinates[chosen].numpy())
        alone = moved(factors).relative
        if alone > allowed:
            reason = f"the outputs move by {alone:.0e} of their size as its layer is rescaled"
            found |= dict.fromkeys(chosen, reason)
    return found


def _refused(difference: OutputDifference, precision: str) -> ModelError:
    return ModelError(
        f"Expected outputs that stay as they are, but in {precision} and evaluation mode they would move by "
        f"{difference.relative:.1e} of their size, so nothing was changed. Laws are found in the mode the model is in: "
        "call this in evaluation mode, or on inputs for which all outputs are finite."
    )
