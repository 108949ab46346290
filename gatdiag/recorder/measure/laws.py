"""The laws of a model at recorded steps -> the columns of the table `neurons`: delta, c and predicted c."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws import Law, Laws
from gatdiag.laws.laws import Observation
from gatdiag.recorder.measure.parameters import ParameterMeasurer
from gatdiag.recorder.samples import Flat, Sample

_MAX_DELTA: Final = 1e-2  # relative to what cancels in it, above which a law is violated
_MAX_DELTA_LOW_PRECISION: Final = 0.3
_MIN_SHARE: Final = 1e-3  # of the largest terms of any law, and of this one at any step: smaller may be rounding
_MOST_CHECKS: Final = 20
_MAX_LAWS: Final = 4096  # measured at each record; if there are more, they are measured at a fraction of the records


class LawMeasurer:
    """Measures the laws, and predicts c.

    predicted_c at step t was predicted at step t - 1 from the c measured there. If delta is zero and the optimizers are
    modeled correctly, c - predicted_c is a rounding error. It needs only the step before, so any steps can be recorded
    for which this is known one step ahead. Each optimizer is read just before it updates the weights.

    Args:
        laws: All laws of the model.
        wanted: Positions of the laws that are recorded.
        parameters: Takes samples of the parameters of the laws, too.
        every: They are measured at every so many records.
        predicts: Whether c is predicted.
        is_low_precision: Whether gradients may have been computed in less than single precision.

    Attributes:
        recorded: The laws that are recorded.
        prediction_error: Why c could not be predicted; "" if it could.
        violated: Position of a recorded law -> the first step whose gradients violate it, and its relative delta there.
    """

    def __init__(
        self,
        laws: Laws,
        wanted: Sequence[int],
        parameters: ParameterMeasurer,
        every: int,
        *,
        predicts: bool,
        is_low_precision: bool,
    ) -> None:
        self.laws, self._wanted, self._parameters = laws, np.array(wanted, dtype=np.int64), parameters
        parameters.add_parameters(laws.parameters[name] for name in laws.names)
        positions = {id(tensor): position for position, tensor in enumerate(parameters.flat.tensors)}
        self._positions = {name: positions[id(laws.parameters[name])] for name in laws.names}
        self.recorded: list[Law] = [laws[number] for number in wanted]
        self.prediction_error = ""
        self.violated: dict[int, tuple[int, float]] = {}
        self._checks = 0  # that have found nothing, one after the other
        self._largest = np.zeros(len(wanted))  # terms of each law so far
        self._is_exact = np.array([law.exact for law in self.recorded], dtype=bool)
        self._max_delta = _MAX_DELTA_LOW_PRECISION if is_low_precision else _MAX_DELTA
        self._every, self._predicts = every * max(1, math.ceil(len(wanted) / _MAX_LAWS)), predicts
        self._predicted: tuple[int, NDArray[np.float64]] | None = None  # the step it is for, and c

    def is_due(self, record: int | None) -> bool:
        """True if laws are measured at this record."""
        return record is not None and record % self._every == 0

    def needs_prediction(self, next_record: int | None) -> bool:
        """True if c after a step is to be predicted, given the number of the record that the next step will be."""
        return self._predicts and self.is_due(next_record)

    def predict(self, sample: Sample, optimizer: Optimizer) -> None:
        """Add the coming updates of an optimizer to a sample, or drop all if they cannot be predicted."""
        if sample.updates is None:
            return
        pieces, has_gradient = self._parameters.flat.split(sample.gradients), sample.has_gradient.tolist()
        gradients = {name: pieces[position] for name, position in self._positions.items() if has_gradient[position]}
        try:
            self.laws.add_updates(optimizer, gradients, sample.updates)
        except OptimizerError as error:
            sample.updates = None
            self.prediction_error = self.prediction_error or str(error)

    def measure(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, Any]]:
        """The samples that have rows, and their columns, (samples, laws)."""
        used = [sample for sample in samples if self.is_due(sample.record) or sample.updates is not None]
        if not used:
            return [], {}
        chunks = [self._observe(chunk) for chunk in self._parameters.flat.chunk(used)]
        delta, c, c_after, relative = (
            torch.cat(values).cpu().numpy()[:, self._wanted] for values in zip(*chunks, strict=True)
        )
        self._find_violations(used, delta, relative)
        # predictions made at the last sample of the previous call and at each sample of this one, with their steps
        step, before = self._predicted or (None, c_after[0])
        steps = [step, *(None if sample.updates is None else sample.step + 1 for sample in used)]
        self._predicted = None if steps[-1] is None else (steps[-1], c_after[-1])
        is_unknown = np.array([step != sample.step for step, sample in zip(steps, used, strict=False)])
        predicted = np.ma.masked_array(np.vstack([before, c_after[:-1]]), mask=np.zeros_like(c_after, dtype=bool))
        predicted[is_unknown] = np.ma.masked
        columns = {"delta": delta, "c": c, "predicted_c": predicted}
        due = [at for at, sample in enumerate(used) if self.is_due(sample.record)]
        return [used[at] for at in due], {name: values[due] for name, values in columns.items()}

    def _find_violations(self, samples: Sequence[Sample], delta: Any, relative: Any) -> None:
        """Note the laws that the gradients of a step violate, if these are those of one backward pass, not clipped.

        A delta that is large relative to its terms may be rounding where entries cancel, so it is compared with what
        cancels, too. That takes longer, and is given up if it keeps finding nothing.
        """
        for sample, of_step, values in zip(samples, delta, relative, strict=True):
            is_usual = sample.record is not None and sample.raw_gradients is sample.gradients and not sample.leftover
            with np.errstate(invalid="ignore", divide="ignore"):
                sizes = np.nan_to_num(np.abs(of_step) / values, nan=0.0, posinf=0.0)
                least = _MIN_SHARE * np.maximum(self._largest, sizes.max(initial=0.0))
                is_violated = self._is_exact & (values > self._max_delta) & (sizes >= least)
            self._largest = np.maximum(self._largest, sizes)
            is_violated[[*self.violated]] = False
            if not (is_usual and is_violated.any() and self._checks < _MOST_CHECKS):
                continue
            self._checks += 1
            weights, gradients = (
                {k: x[0] for k, x in self._stack([f]).items()} for f in (sample.weights, sample.gradients)
            )
            residuals = self.laws.residual(gradients, weights).cpu().numpy()[self._wanted]
            for law in np.flatnonzero(is_violated & (residuals > self._max_delta)).tolist():
                self.violated[law] = sample.step, float(residuals[law])
                self._checks = 0

    def _observe(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """delta, c, predicted c after the step (c itself without prediction), and relative delta, (samples, laws)."""
        weights = self._stack([sample.weights for sample in samples])
        gradients = self._stack([sample.gradients for sample in samples])
        predicts = any(sample.updates is not None for sample in samples)
        updates = [sample.updates or {} for sample in samples] if predicts else None
        observation = Observation(self.laws, weights, gradients, updates)
        after = observation.predict() if predicts else observation.c
        return observation.delta, observation.c, after, observation.relative_delta

    def _stack(self, of_samples: Sequence[Flat]) -> dict[str, Tensor]:
        """Name -> (samples, *shape)."""
        flat = self._parameters.flat
        one = len(of_samples) == 1
        pieces = flat.split(of_samples[0] if one else [torch.stack(flats) for flats in zip(*of_samples, strict=True)])
        return {name: pieces[at].view(len(of_samples), *flat.shapes[at]) for name, at in self._positions.items()}
