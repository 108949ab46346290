"""What is known of one step, and of the forward passes in it: data only.

A `Sample` is made at the start of a step and filled at four moments: while layers run forward and backward, before the
weights move, and after. Then it is frozen, waits in the `SampleBuffer`, is measured and written.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag.laws.prediction import Update
from gatdiag.metrics import AttentionSpread
from gatdiag.metrics.smoothing import OutputStatistics

Flat: TypeAlias = Sequence[Tensor]  # one tensor for each piece of the parameters

_MAX_ENTRIES: Final = 1 << 20  # of a piece, and of samples that are stacked at a time, to fit into the CPU cache
_MAX_ENTRIES_AWAY: Final = 1 << 22  # the same on an accelerator, where few kernels matter more
_LARGE: Final = 16 << 20  # bytes of parameters above which no copies of gradients are kept


class FlatParameters:
    """Parameters concatenated into flat pieces of one device and dtype, so that few kernels copy and measure them all.

    A piece has at most about a million entries (four million on an accelerator), or one parameter. Half precision
    becomes float32. Sparse parameters, and those that are neither real nor complex, are left out.

    Attributes:
        tensors: The parameters.
        shapes: Of each parameter.
        positions: For each piece, the positions of its parameters.
        sizes: For each piece, the numbers of entries of its parameters.
        included: Positions of all parameters that are in a piece.
        is_large: Whether copies of all gradients would take too much memory. Then `flatten` gives pieces that are
            concatenated when they are read, and have to be measured before the gradients change.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.shapes = [tensor.shape for tensor in self.tensors]
        self.positions = [*_group(self.tensors)]
        self.sizes = [[self.tensors[position].numel() for position in positions] for positions in self.positions]
        self.included = sorted(position for positions in self.positions for position in positions)
        self.is_large = sum(self.tensors[position].nbytes for position in self.included) > _LARGE
        self._lacks_some = len(self.included) < len(self.tensors)
        self._zeros = [tensor.detach().new_zeros(()).expand(tensor.shape) for tensor in self.tensors]

    def weights(self) -> list[Tensor]:
        """A copy of the weights."""
        return [_copy(self._pick(self.tensors, positions)) for positions in self.positions]

    def copy_weights(self, into: Flat) -> None:
        """Overwrite an older copy."""
        for positions, sizes, flat in zip(self.positions, self.sizes, into, strict=True):
            for position, place in zip(positions, flat.split(sizes), strict=True):
                place.copy_(self.tensors[position].detach().reshape(-1))

    def has_gradient(self) -> NDArray[np.bool_]:
        """Of each parameter."""
        return np.array([tensor.grad is not None for tensor in self.tensors], dtype=bool)

    def live_weights(self) -> Flat:
        """The weights as they are when a piece is read."""
        return _Live(self, self.tensors, None)

    def gradients(self, unscale: Tensor | None = None) -> Flat:
        """The gradients, times a factor; zeros where there is none. A copy unless the model is large."""
        gradients = [
            zero if (found := tensor.grad) is None else found if found.layout is torch.strided else found.to_dense()
            for tensor, zero in zip(self.tensors, self._zeros, strict=True)
        ]
        if self.is_large:
            return _Live(self, gradients, unscale)
        return [_scale(_copy(self._pick(gradients, positions)), unscale) for positions in self.positions]

    def join(self, sample: "Sample", held: set[int], unscale: Tensor | None) -> None:
        """Update the gradients of some parameters, given by id, in a sample that was taken before they changed."""
        before, now = sample.gradients, self.gradients(unscale)
        is_held = [id(tensor) in held and tensor.grad is not None for tensor in self.tensors]
        sample.has_gradient = sample.has_gradient | np.array(is_held, dtype=bool)
        if self.is_large:
            return
        sample.gradients = [flat.clone() for flat in before]
        old, new = self.split(sample.gradients), self.split(now)
        for position in np.flatnonzero(is_held).tolist():
            old[position].copy_(new[position])
        if sample.raw_gradients is before and all(map(torch.equal, before, sample.gradients)):
            sample.raw_gradients = sample.gradients

    def reorder(self, before: "FlatParameters", raw: Flat | None, norms: Any) -> tuple[Flat | None, Any]:
        """Gradients, or their norms, of the same parameters in another order, for this one."""
        positions = {id(tensor): position for position, tensor in enumerate(before.tensors)}
        chosen = [positions.get(id(tensor), -1) for tensor in self.tensors]
        if -1 in chosen or self.is_large is not before.is_large:
            return None, None
        if raw is None:
            return None, None if norms is None else norms[chosen]
        pieces = before.split(raw)
        return [_copy(self._pick([pieces[at] for at in chosen], positions)) for positions in self.positions], None

    def _pick(self, tensors: Sequence[Tensor], positions: Sequence[int]) -> Sequence[Tensor]:
        is_all = len(self.positions) == 1 and not self._lacks_some
        return tensors if is_all else [tensors[position] for position in positions]

    def concatenate(self, tensors: Sequence[Tensor], number: int) -> Tensor:
        """A piece, which may share the memory of the tensors."""
        return _concatenate(self._pick(tensors, self.positions[number]))

    def chunk(self, samples: Sequence["Sample"]) -> Iterator[Sequence["Sample"]]:
        """Chunks of samples that are quickly stacked."""
        entries = _MAX_ENTRIES if all(tensor.is_cpu for tensor in self.tensors) else _MAX_ENTRIES_AWAY
        count = max(1, entries // max(1, sum(map(sum, self.sizes))))
        return (samples[start : start + count] for start in range(0, len(samples), count))

    def split(self, flats: Flat) -> list[Tensor]:
        """The entries of each parameter, as views; flat tensors are split along their last axis."""
        if isinstance(flats, _Live):
            return flats.whole()
        found = [zero.new_zeros(0) for zero in self._zeros] if self._lacks_some else [*self._zeros]
        for positions, sizes, flat in zip(self.positions, self.sizes, flats, strict=True):
            for position, piece in zip(positions, flat.split(sizes, -1), strict=True):
                found[position] = piece
        return found


class _Live(Sequence[Tensor]):
    """Pieces that are concatenated when they are read."""

    def __init__(self, flat: FlatParameters, tensors: Sequence[Tensor], factor: Tensor | None) -> None:
        self._flat, self._tensors, self._factor = flat, tensors, factor

    def __len__(self) -> int:
        return len(self._flat.positions)

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self):
            raise IndexError(number)
        return _scale(self._flat.concatenate(self._tensors, number), self._factor)

    def whole(self) -> list[Tensor]:
        """The entries of each parameter."""
        return [_scale(tensor.detach().reshape(-1), self._factor) for tensor in self._tensors]


def _group(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Positions of the tensors of each piece."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        if is_readable(tensor):
            alike[tensor.device, tensor.dtype].append(position)
    for positions in alike.values():
        most = _MAX_ENTRIES if tensors[positions[0]].is_cpu else _MAX_ENTRIES_AWAY
        piece: list[int] = []
        entries = 0
        for position in positions:
            size = tensors[position].numel()
            if piece and entries + size > most:
                yield piece
                piece, entries = [], 0
            piece.append(position)
            entries += size
        yield piece


def is_readable(tensor: Tensor) -> bool:
    """True if the values of a parameter can be measured."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    flat: Tensor = torch._C._nn.flatten_dense_tensors([*tensors]).detach()
    return flat.float() if flat.is_floating_point() and flat.dtype.itemsize < 4 else flat


def _copy(tensors: Sequence[Tensor]) -> Tensor:
    flat = _concatenate(tensors)
    return flat.clone() if len(tensors) == 1 and flat.dtype == tensors[0].dtype else flat


def _scale(flat: Tensor, factor: Tensor | None) -> Tensor:
    return flat if factor is None else flat * factor.to(flat)


@dataclass
class ForwardPass:
    """Measurements of one forward pass and of the backward pass after it.

    Attributes:
        step: Counted from the start of this recording.
        number: Among all passes.
        runs: Layer -> number of its last run.
        first_runs: Layer -> number of its first run.
        counts: Layer -> how often it has run.
        channels: Layer -> axis of its output.
        edges: Layer -> edges between the rows of X.
        outputs: Layer -> statistics of its output, which stay on an accelerator.
        norms: Layer -> the norm of its output in each run.
        gradients: Layer -> statistics of the gradient of its output.
        attention: Layer -> statistics of its attention coefficients.
        metrics: Layer -> column -> value.
        runs_with_gradient: Numbers of the runs whose output has got a gradient.
        has_returned: The model has: what runs next and has not run yet (a head that the loop calls) is of this pass.
        has_ended: What runs next is of another pass.
        is_taken: It is the row of a step, and does not change any more.
        is_suspect: Some entry is known not to be finite.
    """

    step: int = -1
    number: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    first_runs: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    channels: dict[str, int] = field(default_factory=dict)
    edges: dict[str, Tensor | None] = field(default_factory=dict)
    outputs: dict[str, OutputStatistics] = field(default_factory=dict)
    norms: dict[str, list[Any]] = field(default_factory=dict)
    gradients: dict[str, OutputStatistics] = field(default_factory=dict)
    attention: dict[str, AttentionSpread] = field(default_factory=dict)
    metrics: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    runs_with_gradient: set[int] = field(default_factory=set)
    has_returned: bool = False
    has_ended: bool = False
    is_taken: bool = False
    is_suspect: bool = False


@dataclass(eq=False)
class Sample:
    """One step.

    Attributes:
        step: Number of the step.
        record: Number of the record that it is; None if it only serves to predict c of the next step.
        due_groups: Groups of quantities that are measured.
        forward_pass: The pass whose row the step gets.
        loss: What `backward()` was called on, for each call since the gradients were cleared; None if it is unknown.
        raw_gradients: Gradients after the last backward pass, before clipping; `gradients` itself if they were not
            clipped; None if there was no backward pass.
        raw_norms: Instead, if copies would take too much memory, their norms: of each parameter.
        leftover: Norm of the gradients that the backward passes began with.
        is_reached: Of each parameter, whether the output depends on it: others do not count as leftover.
        repeats_batches: Its batches are those of the step before.
        unscale_outputs: Factor that unscales gradients of layer outputs and the loss; None if they are not scaled.
        unscale_raw: Factor that unscales `raw_gradients`.
        weights: Before the update.
        gradients: As the optimizer used them, unscaled.
        has_gradient: Of each parameter.
        updates: The coming updates of parameters in laws; None if unknown or not needed.
        weights_after: After the update; None if the step is not recorded.
        change: The difference of the two, once it was computed.
    """

    step: int
    record: int | None
    due_groups: frozenset[str]
    # forward and backward
    forward_pass: ForwardPass | None = None
    loss: list[Tensor | None] = field(default_factory=list)
    raw_gradients: Flat | None = None
    raw_norms: NDArray[np.float64] | None = None
    leftover: Tensor | None = None
    is_reached: NDArray[np.bool_] | None = None
    repeats_batches: bool | Tensor = False
    unscale_outputs: Any = None
    unscale_raw: Any = None
    # before the weights move
    weights: Flat = ()
    gradients: Flat = ()
    has_gradient: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    updates: dict[str, Update] | None = None
    # after
    weights_after: Flat | None = None
    change: Flat | None = None

    def take_change(self) -> Flat | None:
        """The weights after the step minus those before it, if they were taken; neither is kept."""
        if self.change is None and self.weights_after is not None:
            if isinstance(self.weights_after, _Live):  # in place, to save memory
                pairs = zip(self.weights, self.weights_after, strict=True)
                self.change = [before.neg_().add_(after) for before, after in pairs]
            else:
                self.change = [after - before for before, after in zip(self.weights, self.weights_after, strict=True)]
            self.weights = self.weights_after = ()
        return self.change

    @property
    def nbytes(self) -> int:
        """Estimated memory."""
        has_raw = self.raw_gradients is not None and self.raw_gradients is not self.gradients
        copies = 3 + (self.updates is not None) + has_raw
        return copies * sum(flat.nbytes for flat in self.weights)
