"""Samples: copies of a model at one step, with little arithmetic, to be measured later together with other steps.

A quantity that needs more of a step than its weights, gradients and layer outputs gets a field of `Sample`, is taken in
`Sampler.take` (before the weights move) or `Sampler.take_moved` (after), and is measured in `backlog.Backlog.measure`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws.prediction import Update, held_by
from gatdiag.recorder.layers import ForwardPass
from gatdiag.recorder.neurons import NeuronRecorder
from gatdiag.recorder.weights import Flat, FlatParameters

_LEAST, _LARGEST = 1e-24, 1e30  # sums of squares between which none of float32 over- or underflows


def square(flats: Flat) -> float:
    """Roughly the sum of squares of real ones, not finite where an entry is not; NaN if the host would have to wait."""
    total = 0.0
    for flat in flats:
        if not flat.is_cpu:
            return math.nan
        if not flat.is_complex():
            array = flat.numpy()
            total += float(np.vdot(array, array))  # which warns of no overflow, as `dot` does
    return total


@dataclass(eq=False)
class Sample:
    """Copies of one step."""

    step: int
    record: int | None  # its number; None: the sample was taken for what it says of the next step's c
    due: frozenset[str]  # groups that are measured at this record
    weights: Flat  # before the step
    gradients: Flat  # as the optimizer used them, not scaled
    has_gradient: NDArray[np.bool_]  # which parameters have one
    square: float  # of the gradients, as in `square`
    moved: Flat | None = None  # the weights after the step, where these are wanted
    moves: dict[str, Update] | None = None  # how parameters of laws will be moved, where that is wanted and known
    layers: ForwardPass | None = None
    unscale: Any = None  # what gradients of outputs are multiplied by to undo the scaling of the loss; None: nothing
    raw: Flat | None = None  # gradients as the backward pass left them; `gradients` itself where nothing clipped them
    unscale_raw: Any = None  # what these are multiplied by
    left: Any = None  # norm of the gradients when the backward pass began, where that was looked at
    repeats: bool = False  # whether its overshoot is wanted, and its batch is that of the step before
    is_finite: bool = False  # whether all entries of weights and gradients are known to be

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
        of_weights = sum(flat.nbytes for flat in self.weights)
        rests = (move.rest for move in (self.moves or {}).values())
        of_moves = sum(rest.nbytes for rest in rests if rest is not None)
        copies = 3 if self.raw is None or self.raw is self.gradients else 4
        return copies * of_weights + of_moves


class Sampler:
    """Takes samples of the recorded parameters of a model, then of the others, which laws and slopes need, too."""

    def __init__(
        self, tensors: Sequence[Tensor], neurons: NeuronRecorder | None, others: Iterable[Tensor] = ()
    ) -> None:
        known = {id(tensor): tensor for tensor in tensors}
        known |= {} if neurons is None else {id(tensor): tensor for tensor in neurons.parameters.values()}
        known |= {id(tensor): tensor for tensor in others if tensor.requires_grad}
        self.flat = FlatParameters([*tensors, *list(known.values())[len({id(tensor) for tensor in tensors}) :]])
        self._neurons = neurons
        at = {id(tensor): position for position, tensor in enumerate(self.flat.tensors)}
        named = {} if neurons is None else neurons.parameters
        self.of_laws = {name: at[id(tensor)] for name, tensor in named.items()}

    def take(self, step: int, record: int | None, due: frozenset[str], unscale: Tensor | None) -> Sample:
        """A step is about to be made."""
        weights, given = self.flat.weights(), [tensor.grad for tensor in self.flat.tensors]
        gradients = _unscaled(self.flat.side_by_side(given), unscale)
        has_gradient = np.array([gradient is not None for gradient in given], dtype=bool)
        sample = Sample(step, record, due, weights, gradients, has_gradient, square(gradients))
        sample.is_finite = math.isfinite(square(weights)) and math.isfinite(sample.square)
        return sample

    def join(self, sample: Sample, optimizer: Optimizer, unscale: Tensor | None) -> None:
        """The gradients of an optimizer that joins the step, which may be others than when it began."""
        held = held_by(optimizer)
        here = [
            position
            for position, tensor in enumerate(self.flat.tensors)
            if id(tensor) in held and tensor.grad is not None
        ]
        before, sample.gradients = sample.gradients, [flat.clone() for flat in sample.gradients]
        old, new = self.flat.pieces(sample.gradients), self.flat.pieces(_unscaled(self.flat.gradients(), unscale))
        for position in here:
            old[position].copy_(new[position])
        sample.has_gradient[here] = True
        earlier, sample.square = sample.square, square(sample.gradients)
        if sample.raw is before and sample.square == earlier:
            sample.raw = sample.gradients
        sample.is_finite &= math.isfinite(sample.square)

    def foresee(self, sample: Sample, optimizer: Optimizer) -> None:
        """How an optimizer of this step is about to move the weights, if that is wanted and known."""
        if sample.moves is None or self._neurons is None:
            return
        pieces = self.flat.pieces(sample.gradients)
        gradients = {
            name: pieces[position].view(self.flat.shapes[position])
            for name, position in self.of_laws.items()
            if sample.has_gradient[position]
        }
        try:
            self._neurons.laws.foresee(optimizer, gradients, sample.moves)
        except OptimizerError as error:
            sample.moves = None
            self._neurons.unpredictable = self._neurons.unpredictable or str(error)

    def take_moved(self, sample: Sample) -> None:
        """The weights have moved; nothing new if that was taken."""
        if sample.moved is None:
            sample.moved = self.flat.weights()


def _unscaled(flats: Flat, unscale: Tensor | None) -> Flat:
    return flats if unscale is None else [flat * unscale.to(flat) for flat in flats]


def dot(one: Flat, other: Flat) -> float:
    """The inner product of real ones; it waits for the device."""
    return sum(float(torch.dot(a, b)) for a, b in zip(one, other, strict=True) if not a.is_complex())


def are_suspect(gradients: Iterable[Tensor | None]) -> bool:
    """True if any of these may hold a NaN or an infinity, found out quickly; on a device, always."""
    for gradient in gradients:
        if gradient is None:
            continue
        if gradient.dtype != torch.float32 or gradient.device.type != "cpu" or gradient.layout != torch.strided:
            return True
        values = gradient.detach().numpy().reshape(-1)
        if not math.isfinite(np.vdot(values, values)):
            return True
    return False


class BackwardPass:
    """The gradients at the end of each backward pass, which is before anything can clip them.

    They are copied even where nothing clips them, for that cannot be known: what goes through `.data` leaves no trace.
    """

    def __init__(self) -> None:
        self._gradients: Flat | None = None
        self._square = math.nan
        self._number = -1
        self._earlier: list[tuple[int, int]] = []

    @property
    def is_another(self) -> bool:
        """True in a backward pass that has not begun yet."""
        return torch._C._current_graph_task_id() != self._number

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Remember the gradients as they are before a backward pass."""
        self._number = torch._C._current_graph_task_id()
        self._earlier = versions(parameter.grad for parameter in parameters)

    def on_end(self, flat: FlatParameters) -> None:
        """The gradients are as the backward pass left them."""
        gradients = [tensor.grad for tensor in flat.tensors]
        if versions(gradients) != self._earlier:  # else nothing was accumulated: gradients were asked for elsewhere
            self._gradients = flat.side_by_side(gradients)
            self._square = square(self._gradients)

    def give(self, sample: Sample, unscale: Any) -> None:
        """Tell the sample of a step that begins; nothing where no backward pass was seen since the last one."""
        raw, self._gradients = self._gradients, None
        is_same = _LEAST < self._square < _LARGEST and sample.square == self._square
        sample.raw = sample.gradients if raw is not None and unscale is None and is_same else raw
        sample.unscale_raw = unscale


def versions(gradients: Iterable[Tensor | None]) -> list[tuple[int, int]]:
    """Identity and version of each gradient: they change when it is replaced, or changed in place, as by clipping."""
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]
