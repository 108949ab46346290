"""Check on a copy that a rescaling does not change a model's outputs, and skip the layers that do."""

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
from gatdiag.names import join_names, quote
from gatdiag.remedies.least_norm import Orbit, Rescaling, Tensors, find_rescaling, multiply_
from gatdiag.structure import replicate
from gatdiag.structure.tensors import floating_tensors

_ROUNDING: Final = 1e-9  # largest relative change of an output in float64
_APPROXIMATE: Final = "it holds only up to an epsilon in the model"


@dataclass(frozen=True)
class OutputDifference:
    """The largest change of a model's outputs.

    Attributes:
        absolute: Largest |after - before| of any entry.
        relative: Largest |after - before| of a tensor relative to its largest |before|, over all tensors. NaN if an
            output was not finite before, infinite if one is not finite after.
        epsilon: Largest machine epsilon of the dtypes of outputs and parameters.
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
    """Compare the outputs of a copy of the model before and after multiplying its parameters.

    The copy is in evaluation mode, and converted to `dtype` if given.
    """
    replica = replicate(model, args, kwargs)
    if dtype is not None:
        replica.to(dtype)
    replica.model.eval()
    before = list(floating_tensors(replica.run_no_grad()))
    for name, factor in factors.items():
        multiply_(replica.parameters[name], factor)
    after = list(floating_tensors(replica.run_no_grad()))
    dtypes = {tensor.dtype for tensor in [*before, *floating_tensors(replica.parameters)]}
    epsilon = max((torch.finfo(each).eps for each in dtypes), default=0.0)
    changes = [_difference(old, new) for old, new in zip(before, after, strict=True) if old.numel()]
    absolute, relative = torch.tensor(changes or [[0.0, 0.0]], dtype=torch.float64).amax(0).tolist()
    return OutputDifference(absolute, relative, epsilon)


def _difference(before: Tensor, after: Tensor) -> tuple[float, float]:
    before, after = (
        tensor.to_dense().to(torch.promote_types(tensor.dtype, torch.float64)) for tensor in (before, after)
    )
    if not bool(before.isfinite().all()):
        return math.nan, math.nan
    if not bool(after.isfinite().all()):
        return math.inf, math.inf
    absolute, scale = float((after - before).abs().max()), float(before.abs().max())
    return absolute, absolute / scale if scale else math.inf if absolute else 0.0


def find_verified_rescaling(
    model: nn.Module,
    laws: Laws,
    gradients: Tensors | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Rescaling, OutputDifference | None, OutputDifference]:
    """Find a rescaling as `find_rescaling` does, without the layers whose rescaling changes the outputs.

    Laws hold near the current weights, but a rescaling may cross a threshold in the model (small deviations that
    `StdAggregation` treats as zero, an argmax). If the outputs change by more than rounding, each layer is rescaled
    alone, layers that change the outputs are skipped, and the others are balanced again. Outputs are compared in
    float64, if the model runs in it, and in its own precision.

    Returns:
        The rescaling; the change of the outputs in float64, None if the model does not run in it; and in its own
        precision.

    Raises:
        ModelError: Weights or outputs are not finite, or the outputs change but no layer changes them alone.
    """
    if broken := [name for name in laws.names if not bool(laws.parameters[name].isfinite().all())]:
        raise ModelError(f"Expected finite weights, got NaN or infinities in {join_names(map(quote, broken), 3)}")
    compare = partial(output_difference, model, args=args, kwargs=kwargs)
    excluded = {number: _APPROXIMATE for number, law in enumerate(laws) if not law.exact}
    while True:
        rescaling = find_rescaling(laws, laws.parameters, gradients, excluded=excluded)
        own = compare(rescaling.factors)
        double, dtype = None, torch.float64
        with suppress(ModelError):  # the model may not run in float64
            double = compare(rescaling.factors, dtype=dtype)
        difference, tolerance = (own, own.epsilon**0.5) if double is None else (double, _ROUNDING)
        if difference.relative <= tolerance:
            break
        compare_again = partial(compare, dtype=None if double is None else dtype)
        is_nan = math.isnan(difference.relative)
        changing = {} if is_nan else _find_changing_laws(laws, rescaling, compare_again, tolerance)
        if not changing:
            raise _output_error(difference, "the model's own precision" if double is None else "float64")
        excluded |= changing
    if own.relative > max(_ROUNDING, own.epsilon**0.5):  # False for NaN: outputs that overflowed before do not count
        raise _output_error(own, "the model's own precision")
    return rescaling, double, own


def _find_changing_laws(
    laws: Laws, rescaling: Rescaling, compare: Callable[[Tensors], OutputDifference], tolerance: float
) -> dict[int, str]:
    """Laws of the layers whose rescaling alone changes the outputs, with reasons."""
    found: dict[int, str] = {}
    balanced = set(rescaling.balanced)
    for numbers in laws.by_layer().values():
        chosen = [number for number in numbers if number in balanced]
        factors = Orbit([laws[number] for number in chosen]).factors(rescaling.coordinates[chosen].numpy())
        relative = compare(factors).relative
        if relative > tolerance:
            reason = f"rescaling its layer changes the outputs by {relative:.0e} of their size"
            found |= dict.fromkeys(chosen, reason)
    return found


def _output_error(difference: OutputDifference, precision: str) -> ModelError:
    return ModelError(
        f"Expected unchanged outputs, but in {precision} and evaluation mode they would change by "
        f"{difference.relative:.1e} of their size, so nothing was changed. Laws are found in the model's current mode: "
        "call this in evaluation mode, or on inputs for which all outputs are finite."
    )
