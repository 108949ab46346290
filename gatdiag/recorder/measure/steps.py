"""Steps -> the measured columns of the table `steps`: norms of all gradients, and comparisons of consecutive steps."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from torch import Tensor

from gatdiag.recorder.measure.parameters import Floats, ParameterMeasurer, dot
from gatdiag.recorder.samples import Flat, Sample

_TINY: Final = 1e-30
_MAX_SPREAD: Final = 1e-3  # of the factors by which clipping by norm scales gradients: rounding


@dataclass(frozen=True)
class _Step:
    """The last measured step.

    Attributes:
        step: Its number.
        gradient_norms: Of each parameter, as the optimizer used them.
        leftover: Norm of the gradients that its backward passes began with.
        change: Of the weights; None if it is not known.
        slope: Of the loss along the change: <g, change>; 0 if it is not known.
    """

    step: int
    gradient_norms: Floats
    leftover: float | None
    change: Flat | None
    slope: float


class StepMeasurer:
    """Measures steps one after the other, each in two parts: before and after the weights move.

    Args:
        parameters: Measures the parameters of the same steps.
    """

    def __init__(self, parameters: ParameterMeasurer) -> None:
        self._parameters = parameters
        self._last: _Step | None = None

    def before(self, sample: Sample, gradient_norms: Floats) -> dict[str, float]:
        """The columns of a step, whose gradients have these norms.

        The overshoot of the step before is 1 - <g', d> / <g, d>. d is that step, and g and g' are the gradients before
        and after it on the same batches, before clipping: it is 0 where the slope stays the same, 1 at the minimum
        along the step, above 2 where gradient descent diverges. It is unknown if g or g' is a sum with gradients that
        were not cleared.
        """
        columns = {"gradient_norm": self._total(gradient_norms)}
        if (raw_norms := self._raw_norms(sample, gradient_norms)) is not None:
            columns["gradient_norm_before_clipping"] = self._total(raw_norms)
        last, leftover = self._last, None if sample.leftover is None else float(sample.leftover)
        if last is None or last.step != sample.step - 1:
            return columns
        if leftover is not None:
            used = float(np.linalg.norm(last.gradient_norms[sample.is_reached]))
            columns["stale_gradient"] = leftover / max(used, _TINY)
        if sample.repeats_batches and last.change is not None:
            is_known = last.slope < 0 and not leftover
            slope = self._slope(sample, gradient_norms, last.change) if is_known else math.nan
            columns["overshoot"] = 1.0 - slope / last.slope if is_known else math.nan
        return columns

    def forget_change(self) -> None:
        """Free the memory of the last change of the weights, which has been compared."""
        if self._last is not None:
            self._last = replace(self._last, change=None)

    def after(self, sample: Sample, gradient_norms: Floats, change: Flat | None) -> None:
        """Keep what the next step is compared with."""
        leftover = None if sample.leftover is None else float(sample.leftover)
        is_known = change is not None and not leftover
        slope = self._slope(sample, gradient_norms, change) if change is not None and is_known else 0.0
        self._last = _Step(sample.step, gradient_norms, leftover, change, slope)

    def _raw_norms(self, sample: Sample, gradient_norms: Floats) -> Floats | None:
        """Norms of the gradients before clipping, if there was a backward pass."""
        if sample.raw_gradients is sample.gradients:
            return gradient_norms
        factor = 1.0 if sample.unscale_raw is None else float(sample.unscale_raw)
        if sample.raw_norms is not None:
            return sample.raw_norms * factor
        return None if sample.raw_gradients is None else self._parameters.norms(sample.raw_gradients) * factor

    def _slope(self, sample: Sample, gradient_norms: Floats, change: Flat) -> float:
        """<g, change> with the gradients before clipping; NaN if they are not known."""
        if sample.raw_norms is None:
            raw = sample.gradients if sample.raw_gradients is None else sample.raw_gradients
            is_scaled = raw is not sample.gradients and sample.unscale_raw is not None
            return dot(raw, change) * (float(sample.unscale_raw) if is_scaled else 1.0)
        is_live = gradient_norms > 0
        factors = sample.raw_norms[is_live] / gradient_norms[is_live]
        factors *= 1.0 if sample.unscale_raw is None else float(sample.unscale_raw)
        is_scaled = len(factors) > 0 and np.ptp(factors) <= _MAX_SPREAD * factors.max()
        return float(factors.mean()) * dot(sample.gradients, change) if is_scaled else math.nan

    def _total(self, norms: Floats) -> float:
        return float(self._parameters.total(norms[np.newaxis])[0])


def loss_columns(sample: Sample) -> dict[str, Tensor]:
    """The sum of what `backward()` was called on, unscaled; nothing if a part of it is unknown."""
    known = [loss for loss in sample.loss if loss is not None]
    if not known or len(known) < len(sample.loss):
        return {}
    total = sum(known[1:], start=known[0])
    return {"loss": total if sample.unscale_outputs is None else total * sample.unscale_outputs}
