"""Samples of recent steps, which are measured together and written.

For small tensors, calling torch or numpy takes longer than the arithmetic, so measuring sixty steps together costs
little more than measuring one; and on an accelerator the host waits for the device once instead of at each step.
Samples wait for at most two seconds and take at most 64 MiB: for a model with more than about five million parameters,
each is measured at the end of its own step. Altogether recording holds one copy of the parameters (the initial ones),
three more during a step (four if gradients are clipped), two of the last step, 64 MiB, and as much for the layers of a
step. On an accelerator, copies for layers take 64 MiB, twice that while they are measured, and for signals 64 MiB.

A process that is killed loses the samples that wait. The last step before them may have rows in all tables but `steps`,
because values can be logged to a step until the next one is made.

A quantity that needs more than the weights, gradients and layer outputs of a step gets a field of `Sample`, is taken in
`Backlog.take`, before the weights move, or in `Recorder._close_step`, and is measured in `Backlog.measure`.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.laws.prediction import Update, held_by
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.layers import ForwardPass, build_columns
from gatdiag.recorder.model import RecordingPlan
from gatdiag.recorder.non_finite import FirstNonFinite
from gatdiag.recorder.weights import Flat, Floats, WeightColumns, are_equal, are_finite, dot
from gatdiag.recorder.writer import Writer
from gatdiag.roles import FEATURE

_MAX_SECONDS: Final = 2.0
_MAX_SAMPLES: Final = 256
_MAX_BYTES: Final = 64 << 20
_TINY: Final = 1e-30


@dataclass(eq=False)
class Sample:
    """Copies of the tensors of one step."""

    step: int
    record: int | None  # None if the step is not recorded, and the sample only serves to predict c of the next one
    due_groups: frozenset[str]
    weights: Flat  # before the step
    gradients: Flat  # as the optimizer used them, unscaled
    has_gradient: NDArray[np.bool_]  # (parameters,)
    weights_after: Flat | None = None  # only if the step is recorded
    updates: dict[str, Update] | None = None  # the coming updates of the parameters in laws; None if unknown, unneeded
    forward_pass: ForwardPass | None = None
    unscale_outputs: Any = None  # factor that unscales gradients of layer outputs; None: they are not scaled
    raw_gradients: Flat | None = None  # before clipping; `gradients` itself if they were not clipped
    unscale_raw: Any = None  # factor that unscales them
    leftover: Tensor | None = None  # norm of the gradients that the backward passes began with
    is_reached: NDArray[np.bool_] | None = None  # (parameters,): the others do not count as leftover
    repeats_batches: bool | Tensor = False  # its batches are those of the step before

    def weight_change(self) -> Flat | None:
        """The weights after the step minus those before it, if they were taken."""
        if self.weights_after is None:
            return None
        return [after - before for after, before in zip(self.weights_after, self.weights, strict=True)]

    def unscaled_raw_gradients(self) -> Flat | None:
        """The gradients before clipping, unscaled; `gradients` itself if they were not clipped."""
        if self.raw_gradients is None or self.unscale_raw is None:
            return self.raw_gradients
        factor = float(self.unscale_raw)
        return [flat * factor for flat in self.raw_gradients]

    @property
    def nbytes(self) -> int:
        """Estimated memory."""
        has_raw = self.raw_gradients is not None and self.raw_gradients is not self.gradients
        copies = 3 + (self.updates is not None) + has_raw
        return copies * sum(flat.nbytes for flat in self.weights)


@dataclass(frozen=True)
class Status:
    """The state of a training, for a progress line.

    Attributes:
        step: The last step that was measured.
        scalars: The last logged values.
        layers: Names of the recorded layers.
        relative_gradient_norms: The largest among each layer's feature weights, or among all its parameters if it has
            none; NaN without gradients.
        first_non_finite: Where the first NaN or infinity was, if there was one.
    """

    step: int
    scalars: Mapping[str, float]
    layers: tuple[str, ...]
    relative_gradient_norms: tuple[float, ...]
    first_non_finite: FirstNonFinite | None


Observer: TypeAlias = Callable[[Status | None], None]  # None: the recording has ended


class Backlog:
    """Samples of one plan that wait to be measured."""

    def __init__(
        self,
        plan: RecordingPlan,
        columns: frozenset[str],
        guard: Guard,
        writer: Writer,
        seconds: float = _MAX_SECONDS,
    ) -> None:
        self._latest: tuple[int, Sequence[float]] | None = None  # step and relative gradient norms
        self.plan, self.writer, self._columns, self._guard = plan, writer, columns, guard
        self._seconds, self._since = seconds, time.monotonic()
        self._samples: list[Sample] = []
        self._last: _LastStep | None = None
        self._watched: list[tuple[int, Tensor]] = []  # steps that are not recorded, and their gradient norms
        self._bytes = 0
        self._is_urgent = False

    def __len__(self) -> int:
        """Number of samples that wait."""
        return len(self._samples)

    # --- taking -------------------------------------------------------------------------------------------------------

    def take(self, step: int, record: int | None, due_groups: frozenset[str], unscale: Tensor | None) -> Sample:
        """A sample of a step, before the weights move."""
        flat = self.plan.weights.flat
        weights, given = flat.weights(), [tensor.grad for tensor in flat.tensors]
        gradients = _unscale(flat.flatten(given), unscale)
        has_gradient = np.array([gradient is not None for gradient in given], dtype=bool)
        return Sample(step, record, due_groups, weights, gradients, has_gradient)

    def join(self, sample: Sample, optimizer: Optimizer, unscale: Tensor | None) -> None:
        """Update the gradients of an optimizer that joins the step: they may have changed since the step began."""
        flat, held = self.plan.weights.flat, held_by(optimizer)
        before, sample.gradients = sample.gradients, [flat.clone() for flat in sample.gradients]
        old, new = flat.split(sample.gradients), flat.split(_unscale(flat.gradients(), unscale))
        for position, tensor in enumerate(flat.tensors):
            if id(tensor) in held and tensor.grad is not None:
                old[position].copy_(new[position])
                sample.has_gradient[position] = True
        if sample.raw_gradients is before and are_equal(before, sample.gradients):
            sample.raw_gradients = sample.gradients

    # --- measuring ----------------------------------------------------------------------------------------------------

    def add(self, sample: Sample) -> None:
        """Keep a sample until it is measured."""
        self._samples.append(sample)
        self._bytes += sample.nbytes
        on_cpu = [flat for flat in sample.gradients if flat.is_cpu]  # reading the others would wait for the device
        is_suspect = not are_finite(on_cpu) or (sample.forward_pass is not None and sample.forward_pass.is_suspect)
        self._is_urgent |= is_suspect and self.writer.first_non_finite is None

    def watch_gradients(self, step: int, gradient_norms: Tensor) -> None:
        """Check the gradients of a step that is not recorded for NaN and infinities, with the next measurement."""
        self._watched.append((step, gradient_norms))
        self._is_urgent |= gradient_norms.is_cpu

    def status(self) -> Status | None:
        """The status at the last measured step; None if there is none."""
        if self._latest is None:
            return None
        (step, values), layers, norms = self._latest, self.plan.layers, []
        norm_of_next = iter(values)
        for layer in layers:
            of_layer = [(info.role == FEATURE, next(norm_of_next)) for info in layer.parameters]
            ranked = [(math.isfinite(norm), is_weight, norm) for is_weight, norm in of_layer if not math.isnan(norm)]
            norms.append(max(ranked, default=(False, False, math.nan))[-1])
        names = tuple(layer.name for layer in layers)
        return Status(step, self.writer.latest, names, tuple(norms), self.writer.first_non_finite)

    @property
    def is_due(self) -> bool:
        """True if the samples should be measured now."""
        is_full = len(self._samples) >= _MAX_SAMPLES or self._bytes >= _MAX_BYTES
        return is_full or self._is_urgent or time.monotonic() - self._since >= self._seconds

    def measure(self, before: int) -> None:
        """Measure and write all samples, and the rows of `steps` before this step."""
        samples, watched = (
            self._samples,
            self._watched,
        )  # cleared below: after an interrupt they are measured at the end
        recorded = [sample for sample in samples if sample.record is not None]
        tables = {
            "parameters": self._guard("norms of parameters", self._parameters, recorded) or {},
            "layers": self._guard("rows of layers", self._layers, recorded) or {},
            "neurons": self._guard("delta and c", self._neurons, samples) or {},
        }
        norms = np.array([norms.cpu().numpy() for _, norms in watched])
        seen = _rows([step for step, _ in watched], "parameter", len(self.plan.weights.names), {"gradient_norm": norms})
        self._samples, self._watched = [], []
        self._since, self._bytes, self._is_urgent = time.monotonic(), 0, False
        self.writer.write({name: rows for name, rows in tables.items() if len(rows.get("step", ()))}, seen, before)

    def _parameters(self, samples: Sequence[Sample]) -> dict[str, Any]:
        if not samples:
            return {}
        found = self.plan.weights.measure(samples, self._guard, self._columns)
        self._measure_steps(samples, found)
        steps = [sample.step for sample in samples]
        return _rows(steps, "parameter", len(self.plan.weights.names), found.columns)

    def _measure_steps(self, samples: Sequence[Sample], found: WeightColumns) -> None:
        """Write the total gradient norms and the comparisons of consecutive steps to the table `steps`."""
        self._latest = samples[-1].step, found.relative_gradient_norm[-1].tolist()
        raws = [sample.unscaled_raw_gradients() for sample in samples]
        clipped = [None if raw is sample.gradients else raw for raw, sample in zip(raws, samples, strict=True)]
        raw_norms = self.plan.weights.total_gradient_norms(clipped)
        for row, (sample, raw) in enumerate(zip(samples, raws, strict=True)):
            last = self._last
            norm = float(found.gradient_norm[row])
            if self.plan.is_distributed:
                continue
            columns = {"gradient_norm": norm}
            if raw is not None:
                columns["gradient_norm_before_clipping"] = norm if raw is sample.gradients else float(raw_norms[row])
            gradients = sample.gradients if raw is None else raw
            leftover = None if sample.leftover is None else float(sample.leftover)
            change = found.weight_changes[row]
            self._last = now = _LastStep(sample.step, gradients, found.gradient_norms[row], leftover, change)
            if last is not None and last.step == sample.step - 1:
                columns |= _compare(sample, now, last)
            self.writer.row(sample.step).update(columns)

    def _layers(self, samples: Sequence[Sample]) -> dict[str, Any]:
        with_rows = [
            (sample, sample.forward_pass)
            for sample in samples
            if sample.forward_pass is not None and sample.forward_pass.runs
        ]
        passes, unscales = [each for _, each in with_rows], [sample.unscale_outputs for sample, _ in with_rows]
        columns = build_columns(passes, unscales, self.plan.positions, self._columns)
        steps = np.array([sample.step for sample, _ in with_rows], dtype=np.int64)[columns.pop("pass")]
        return {"step": steps, **columns} if len(steps) else {}

    def _neurons(self, samples: Sequence[Sample]) -> dict[str, Any]:
        neurons = self.plan.neurons
        if neurons is None:
            return {}
        due, found = neurons.measure(samples)
        columns = {name: values for name, values in found.items() if name in self._columns}
        return _rows([sample.step for sample in due], "law", len(neurons.recorded), columns) if due else {}


def _rows(steps: Sequence[int], item: str, count: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a table, `count` for each step, from columns of shape (steps, count); `item` numbers them."""
    items = np.tile(np.arange(count, dtype=np.int32), len(steps))
    return {"step": np.repeat(steps, count), item: items} | {name: values.ravel() for name, values in columns.items()}


@dataclass(frozen=True)
class _LastStep:
    """The last measured step."""

    step: int
    gradients: Flat  # before clipping, if that is known
    gradient_norms: Floats  # of each parameter, as the optimizer used them
    leftover: float | None
    weight_change: Flat | None


def _compare(sample: Sample, now: _LastStep, last: _LastStep) -> dict[str, float]:
    """The leftover gradient, and the overshoot of the step before: 1 - <g', d> / <g, d>.

    d is that step, and g and g' are the gradients before and after it on the same batches, before clipping: it is 0
    where the slope stays the same, 1 at the minimum along the step, above 2 where gradient descent diverges. It is
    unknown if g or g' is a sum with gradients that were not cleared.
    """
    found = {}
    if now.leftover is not None:
        used = float(np.linalg.norm(last.gradient_norms[sample.is_reached]))
        found["stale_gradient"] = now.leftover / max(used, _TINY)
    if sample.repeats_batches and last.weight_change is not None:
        slope = math.nan if now.leftover or last.leftover else dot(last.gradients, last.weight_change)
        found["overshoot"] = 1.0 - dot(now.gradients, last.weight_change) / slope if slope < 0 else math.nan
    return found


def _unscale(flats: Flat, unscale: Tensor | None) -> Flat:
    return flats if unscale is None else [flat * unscale.to(flat) for flat in flats]
