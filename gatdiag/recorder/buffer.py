"""Samples of recent steps, which are measured together and written.

For small tensors, calling torch or numpy takes longer than the arithmetic, so measuring sixty steps together costs
little more than measuring one; and on an accelerator the host waits for the device once instead of at each step.
Samples wait for at most two seconds and take at most 64 MiB. Those of a large model do not wait: they are measured at
once, piece by piece, without copies of gradients. So recording holds one copy of a large model's weights, from before a
step until the gradients after it have been compared.

A process that is killed loses the samples that wait. The last step before them may have rows in all tables but `steps`,
because values can be logged to a step until the next one is made; when the run is resumed, these rows are dropped.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from gatdiag.recorder.guard import Guard
from gatdiag.recorder.measure.laws import LawMeasurer
from gatdiag.recorder.measure.layers import build_columns
from gatdiag.recorder.measure.parameters import Floats, ParameterColumns, are_finite
from gatdiag.recorder.measure.steps import StepMeasurer
from gatdiag.recorder.non_finite import FirstNonFinite
from gatdiag.recorder.plan import RecordingPlan
from gatdiag.recorder.samples import Flat, FlatParameters, Sample
from gatdiag.recorder.writer import Writer
from gatdiag.roles import FEATURE

_MAX_SECONDS: Final = 2.0
_MAX_SAMPLES: Final = 256
_MAX_BYTES: Final = 64 << 20
_OBSERVER_SECONDS: Final = 0.1  # samples are measured this often if an observer waits for them


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


@dataclass(frozen=True)
class _Measured:
    """What was measured of several steps before the weights moved.

    Attributes:
        parameters: Of the recorded steps; None if that failed or none is recorded.
        laws: Rows of the table `neurons`.
    """

    parameters: ParameterColumns | None
    laws: dict[str, Any]


class SampleBuffer:
    """Samples of one plan that wait to be measured."""

    def __init__(
        self,
        plan: RecordingPlan,
        columns: frozenset[str],
        guard: Guard,
        writer: Writer,
        observer: Observer | None = None,
    ) -> None:
        self.plan, self.writer, self._columns, self._guard, self._observer = plan, writer, columns, guard, observer
        self._seconds, self._since = _MAX_SECONDS if observer is None else _OBSERVER_SECONDS, time.monotonic()
        self._samples: list[Sample] = []
        self._measured: list[tuple[list[Sample], _Measured]] = []  # before the weights moved, or it would be too late
        self._steps = StepMeasurer(plan.parameters)
        self._latest: tuple[int, Sequence[float]] | None = None  # step and relative gradient norms
        self._copy: Flat | None = None  # of a large model's weights, used again and again
        self._bytes = 0
        self._is_urgent = False

    def __len__(self) -> int:
        """Number of samples that wait."""
        return len(self._samples)

    def take_weights(self, sample: Sample) -> None:
        """Copy the weights before they move; measure the sample of a large model."""
        flat = self.plan.parameters.flat
        if flat.is_large:
            sample.weights = flat.live_weights()
            measured = self._measure_before([sample])
            if sample.record is not None and measured.parameters is not None:
                self._compare(sample, measured.parameters.gradient_norms[0])
            self._steps.forget_change()
            sample.weights = self._copy_weights(flat) if sample.record is not None else ()
        else:
            sample.weights = flat.weights()

    def _copy_weights(self, flat: FlatParameters) -> Flat:
        if self._copy is None:
            self._copy = flat.weights()
        else:
            flat.copy_weights(self._copy)
        return self._copy

    def take_weights_after(self, sample: Sample) -> None:
        """Copy the weights after they have moved."""
        flat = self.plan.parameters.flat
        sample.weights_after = flat.live_weights() if flat.is_large else flat.weights()

    def add(self, sample: Sample) -> None:
        """Keep a sample until it is measured."""
        self._samples.append(sample)
        self._bytes += sample.nbytes
        if self.plan.parameters.flat.is_large:
            self._is_urgent = True
            return
        on_cpu = [flat for flat in sample.gradients if flat.is_cpu]  # reading the others would wait for the device
        is_suspect = not are_finite(on_cpu) or (sample.forward_pass is not None and sample.forward_pass.is_suspect)
        self._is_urgent |= is_suspect and self.writer.first_non_finite is None

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
        done = {id(sample) for samples, _ in self._measured for sample in samples}
        if waiting := [sample for sample in self._samples if id(sample) not in done]:
            self._measure_before(waiting)
        rows = [self._rows_of(samples, measured) for samples, measured in self._measured]
        # cleared only now: after an interrupt they are measured at the end
        self._samples, self._measured = [], []
        self._since, self._bytes, self._is_urgent = time.monotonic(), 0, False
        for tables in rows or [{}]:
            self.writer.write({name: rows for name, rows in tables.items() if rows and len(rows["step"])}, before)
        if self._observer is not None and (status := self.status()) is not None:
            self._guard("the progress line", self._observer, status)

    def _measure_before(self, samples: list[Sample]) -> _Measured:
        recorded, found = [sample for sample in samples if sample.record is not None], None
        if recorded:
            measure = self.plan.parameters.before
            found = self._guard("norms of parameters", measure, recorded, self._guard, self._columns)
        measured = _Measured(found, self._guard("delta and c", self._laws, samples) or {})
        self._measured.append((samples, measured))
        return measured

    def _rows_of(self, samples: Sequence[Sample], measured: _Measured) -> dict[str, Any]:
        """The rows of all tables but `steps`, whose rows are filled in."""
        recorded, found = [sample for sample in samples if sample.record is not None], measured.parameters
        of_parameters = None
        if found is not None:
            of_parameters = self._guard("changes of parameters", self._parameters, recorded, found)
        of_layers = self._guard("rows of layers", self._layers, recorded)
        return {"parameters": of_parameters, "layers": of_layers, "neurons": measured.laws}

    def _parameters(self, samples: Sequence[Sample], found: ParameterColumns) -> dict[str, Any]:
        changes = []
        for sample, gradient_norms in zip(samples, found.gradient_norms, strict=True):
            if not self.plan.parameters.flat.is_large:
                self._compare(sample, gradient_norms)
            changes.append(sample.take_change())
            self._steps.after(sample, gradient_norms, changes[-1])
        columns = found.columns | self.plan.parameters.after(found, samples, changes, self._guard, self._columns)
        self._latest = samples[-1].step, found.relative_gradient_norms[-1].tolist()
        return _table([sample.step for sample in samples], "parameter", len(self.plan.parameters.names), columns)

    def _compare(self, sample: Sample, gradient_norms: Floats) -> None:
        """Fill in the row of the table `steps`."""
        columns = self._steps.before(sample, gradient_norms)
        if not self.plan.is_distributed:  # otherwise they are of a part of the model
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

    def _laws(self, samples: Sequence[Sample]) -> dict[str, Any]:
        measurer = self.plan.law_measurer
        if measurer is None:
            return {}
        known = len(measurer.violated)
        due, found = measurer.measure(samples)
        if len(measurer.violated) > known:
            self._report_violations(measurer)
        columns = {name: values for name, values in found.items() if name in self._columns}
        return _table([sample.step for sample in due], "law", len(measurer.recorded), columns) if due else {}

    def _report_violations(self, measurer: LawMeasurer) -> None:
        violated = [{"law": law, "step": step} for law, (step, _) in sorted(measurer.violated.items())]
        self.writer.write_violations(violated)
        step, delta = min(measurer.violated.values())
        which = f"{len(violated)} of {len(measurer.recorded)} conservation laws"
        self._guard.warn(
            "violated laws",
            f"from step {step} on, {which} are violated (delta is {delta:.1g} of its terms): the model computes "
            "something else than in its first step, or its gradients are not those of its forward pass",
        )


def _table(steps: Sequence[int], item: str, count: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a table, `count` for each step, from columns of shape (steps, count); `item` numbers them."""
    items = np.tile(np.arange(count, dtype=np.int32), len(steps))
    return {"step": np.repeat(steps, count), item: items} | {name: values.ravel() for name, values in columns.items()}
