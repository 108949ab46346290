"""The one place where anything waits: samples of recent steps, until all of them are measured together and written.

A call of torch or numpy takes longer than its arithmetic where tensors are small, so that measuring sixty steps costs
little more than measuring one; and on an accelerator the host waits for the device once, not at each step. Samples
wait for two seconds at most, and take 64 MiB at most: those of a model with more than about five million parameters are
measured at the end of their own step. So recording holds one copy of the parameters (the initial ones), three more
during a step (four where gradients are clipped), two of the last step, 64 MiB, and as much for the layers of a step.

A process that is killed loses the samples that wait. Of the last step before those, layers, parameters and laws may
have their rows while `steps` lacks its own: something may still be logged to a step until the next one is made.

A quantity that needs more of a step than its weights, gradients and layer outputs gets a field of `Sample`, is taken in
`Backlog.take` (before the weights move) or `Backlog.take_moved` (after), and is measured in `Backlog.measure`.
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
from gatdiag.recorder.layers import ForwardPass, measured
from gatdiag.recorder.model import RecordingPlan
from gatdiag.recorder.non_finite import FirstNonFinite
from gatdiag.recorder.weights import Flat, WeightColumns, are_equal, are_finite, dot
from gatdiag.recorder.writer import Writer
from gatdiag.roles import FEATURE

_SECONDS: Final = 2.0
_MOST: Final = 256  # samples
_MOST_BYTES: Final = 64 << 20
_TINY: Final = 1e-30


@dataclass(eq=False)
class Sample:
    """Copies of one step."""

    step: int
    record: int | None  # its number; None: the sample was taken for what it says of the next step's c
    due: frozenset[str]  # groups that are measured at this record
    weights: Flat  # before the step
    gradients: Flat  # as the optimizer used them, not scaled
    has_gradient: NDArray[np.bool_]  # which parameters have one
    moved: Flat | None = None  # the weights after the step, where these are wanted
    moves: dict[str, Update] | None = None  # how parameters of laws will be moved, where that is wanted and known
    layers: ForwardPass | None = None
    unscale: Any = None  # what gradients of outputs are multiplied by to undo the scaling of the loss; None: nothing
    raw: Flat | None = None  # gradients as the backward pass left them; `gradients` itself where nothing clipped them
    unscale_raw: Any = None  # what these are multiplied by
    left: Any = None  # norm of the gradients when the backward pass began, where that was looked at
    repeats: bool = False  # whether its overshoot is wanted, and its batch is that of the step before

    def change(self) -> Flat | None:
        """By how much the step moved the weights, if that was taken."""
        if self.moved is None:
            return None
        return [after - before for after, before in zip(self.moved, self.weights, strict=True)]

    def unscaled_raw(self) -> Flat | None:
        """The gradients before they were clipped, not scaled; `gradients` itself where nothing clipped them."""
        if self.raw is None or self.unscale_raw is None:
            return self.raw
        factor = float(self.unscale_raw)
        return [flat * factor for flat in self.raw]

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        copies = 3 + (self.moves is not None) + (self.raw is not None and self.raw is not self.gradients)
        return copies * sum(flat.nbytes for flat in self.weights)


@dataclass(frozen=True)
class Status:
    """A glance at a training, for whoever shows it.

    Attributes:
        step: The last step that was measured.
        scalars: What was logged last.
        layers: Names of the recorded layers.
        relative_gradient_norms: Largest among each layer's feature weights, or of all it has; NaN where there is none.
        first_non_finite: Where the first NaN or infinity was, if there was one.
    """

    step: int
    scalars: Mapping[str, float]
    layers: tuple[str, ...]
    relative_gradient_norms: tuple[float, ...]
    first_non_finite: FirstNonFinite | None


Observer: TypeAlias = Callable[[Status | None], None]  # None: the recording has ended


class Backlog:
    """Samples of one plan that are still to be measured."""

    def __init__(
        self,
        plan: RecordingPlan,
        columns: frozenset[str],
        guard: Guard,
        writer: Writer,
        seconds: float = _SECONDS,
    ) -> None:
        self._latest: tuple[int, Sequence[float]] | None = None  # step and relative gradient norms
        self.plan, self.writer, self._columns, self._guard = plan, writer, columns, guard
        self._seconds, self._since = seconds, time.monotonic()
        self._samples: list[Sample] = []
        self._last: _Last | None = None
        self._watched: list[tuple[int, Tensor]] = []  # steps that are not recorded, and gradient norms of these
        self._bytes = 0
        self._is_urgent = False

    def __len__(self) -> int:
        """How many samples wait."""
        return len(self._samples)

    # --- taking -------------------------------------------------------------------------------------------------------

    def take(self, step: int, record: int | None, due: frozenset[str], unscale: Tensor | None) -> Sample:
        """A step is about to be made."""
        flat = self.plan.weights.flat
        weights, given = flat.weights(), [tensor.grad for tensor in flat.tensors]
        gradients = _unscaled(flat.side_by_side(given), unscale)
        has_gradient = np.array([gradient is not None for gradient in given], dtype=bool)
        return Sample(step, record, due, weights, gradients, has_gradient)

    def join(self, sample: Sample, optimizer: Optimizer, unscale: Tensor | None) -> None:
        """The gradients of an optimizer that joins the step, which may be others than when it began."""
        flat, held = self.plan.weights.flat, held_by(optimizer)
        before, sample.gradients = sample.gradients, [flat.clone() for flat in sample.gradients]
        old, new = flat.pieces(sample.gradients), flat.pieces(_unscaled(flat.gradients(), unscale))
        for position, tensor in enumerate(flat.tensors):
            if id(tensor) in held and tensor.grad is not None:
                old[position].copy_(new[position])
                sample.has_gradient[position] = True
        if sample.raw is before and are_equal(before, sample.gradients):
            sample.raw = sample.gradients

    def take_moved(self, sample: Sample) -> None:
        """The weights have moved; nothing new if that was taken."""
        if sample.moved is None:
            sample.moved = self.plan.weights.flat.weights()

    # --- measuring ----------------------------------------------------------------------------------------------------

    def add(self, sample: Sample) -> None:
        """Keep a sample until it is measured."""
        self._samples.append(sample)
        self._bytes += sample.bytes
        here = [flat for flat in sample.gradients if flat.is_cpu]  # of others nothing is known without waiting for them
        is_suspect = not are_finite(here) or (sample.layers is not None and sample.layers.is_suspect)
        self._is_urgent |= is_suspect and self.writer.first_non_finite is None

    def watch(self, step: int, gradient_norms: Tensor) -> None:
        """Look, before long, whether the gradients of a step that is not recorded are finite."""
        self._watched.append((step, gradient_norms))
        self._is_urgent |= gradient_norms.is_cpu

    def status(self) -> Status | None:
        """A glance at the step that was measured last, if one was."""
        if self._latest is None:
            return None
        (step, values), layers, found = self._latest, self.plan.layers, []
        each = iter(values)
        for layer in layers:
            of = [(info.role == FEATURE, next(each)) for info in layer.parameters]
            known = [(math.isfinite(value), is_weight, value) for is_weight, value in of if not math.isnan(value)]
            found.append(max(known, default=(False, False, math.nan))[-1])
        names = tuple(layer.name for layer in layers)
        return Status(step, self.writer.latest, names, tuple(found), self.writer.first_non_finite)

    @property
    def is_due(self) -> bool:
        """True if the samples should be measured now."""
        is_full = len(self._samples) >= _MOST or self._bytes >= _MOST_BYTES
        return is_full or self._is_urgent or time.monotonic() - self._since >= self._seconds

    def measure(self, before: int) -> None:
        """Measure and write all samples."""
        samples, watched = self._samples, self._watched  # which an interrupt leaves here, to be measured at the end
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
        self.writer.write({name: rows for name, rows in tables.items() if rows}, seen, before)

    def _parameters(self, samples: Sequence[Sample]) -> dict[str, Any]:
        if not samples:
            return {}
        found = self.plan.weights.measure(samples, self._guard, self._columns)
        self._tell_steps(samples, found)
        steps = [sample.step for sample in samples]
        return _rows(steps, "parameter", len(self.plan.weights.names), found.columns)

    def _tell_steps(self, samples: Sequence[Sample], found: WeightColumns) -> None:
        """The columns of the table `steps`: norms of all gradients together, and what two steps in a row show."""
        self._latest = samples[-1].step, found.relative_gradient_norm[-1].tolist()
        raws = [sample.unscaled_raw() for sample in samples]
        clipped = [None if raw is sample.gradients else raw for raw, sample in zip(raws, samples, strict=True)]
        unclipped = self.plan.weights.total_norms(clipped)
        for row, (sample, raw) in enumerate(zip(samples, raws, strict=True)):
            last = self._last
            norm = float(found.gradient_norm[row])
            columns = {"gradient_norm": norm}
            if raw is not None:
                columns["gradient_norm_before_clipping"] = norm if raw is sample.gradients else float(unclipped[row])
            self._last = _Last(sample.step, norm, sample.gradients if raw is None else raw, found.changes[row])
            if last is not None and last.step == sample.step - 1:
                columns |= _compared(sample, self._last.gradients, last)
            self.writer.row(sample.step).update(columns)

    def _layers(self, samples: Sequence[Sample]) -> dict[str, Any]:
        seen = [(sample, sample.layers) for sample in samples if sample.layers is not None and sample.layers.runs]
        passes, unscales = [layers for _, layers in seen], [sample.unscale for sample, _ in seen]
        columns = measured(passes, unscales, self.plan.positions, self._columns)
        steps = np.array([sample.step for sample, _ in seen], dtype=np.int64)[columns.pop("pass")]
        return {"step": steps, **columns} if len(steps) else {}

    def _neurons(self, samples: Sequence[Sample]) -> dict[str, Any]:
        neurons = self.plan.neurons
        if neurons is None:
            return {}
        due, found = neurons.measure(samples)
        columns = {name: values for name, values in found.items() if name in self._columns}
        return _rows([sample.step for sample in due], "law", len(neurons.recorded), columns) if due else {}


def _rows(steps: Sequence[int], item: str, count: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a table: of each step one for each of so many items, whose values are (steps, items)."""
    items = np.tile(np.arange(count, dtype=np.int32), len(steps))
    return {"step": np.repeat(steps, count), item: items} | {name: values.ravel() for name, values in columns.items()}


@dataclass(frozen=True)
class _Last:
    """The recorded step that was measured last."""

    step: int
    gradient_norm: float
    gradients: Flat
    change: Flat | None


def _compared(sample: Sample, gradients: Flat, last: _Last) -> dict[str, float]:
    """Leftover gradients, and the overshoot of the step before: 1 - <g', d> / <g, d>."""
    found = {}
    if sample.left is not None:
        found["stale_gradient"] = float(sample.left) / max(last.gradient_norm, _TINY)
    if sample.repeats and last.change is not None:
        slope = dot(last.gradients, last.change)
        found["overshoot"] = 1.0 - dot(gradients, last.change) / slope if slope < 0 else math.nan
    return found


def _unscaled(flats: Flat, unscale: Tensor | None) -> Flat:
    return flats if unscale is None else [flat * unscale.to(flat) for flat in flats]
