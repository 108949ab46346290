"""Tensors on an accelerator that wait to be measured together.

There, the host takes longer to launch a kernel than the device takes to run it, so the outputs of many layers and steps
are copied, stacked, and measured with as many kernels as one of them; the host waits for the device when it reads the
numbers. On the CPU, copying takes longer than it saves.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatdiag.recorder.guard import Guard

_MAX_BYTES: Final = 64 << 20  # of copies that wait; as much again while they are stacked

Measure: TypeAlias = Callable[..., Tensor]  # tensors with an axis for B items in front -> (B, columns), float64


class Batch:
    """Tensors of the same shapes, measured by one function."""

    def __init__(self, measure: Measure, owner: "Deferred") -> None:
        self._measure, self._owner = measure, owner
        self._waiting: list[tuple[Tensor, ...]] = []
        self._found: Tensor | None = None
        self._numbers: NDArray[np.float64] | None = None

    def add(self, tensors: tuple[Tensor, ...]) -> "Row":
        """Keep tensors, and return the row of their numbers."""
        self._waiting.append(tensors)
        return Row(self, len(self._waiting) - 1)

    def measure(self) -> None:
        """Measure all tensors, without waiting for the device; nothing can be added any more."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            columns = [*zip(*waiting, strict=True)]
            stacked = [column[0].unsqueeze(0) if len(waiting) == 1 else torch.stack(column) for column in columns]
            del waiting, columns  # the copies
            self._found = self._owner.guard("layers that are measured together", self._measure, *stacked)

    def read(self) -> NDArray[np.float64] | None:
        """The numbers, (B, columns), or None if measuring failed; waits for the device."""
        if self._numbers is None:
            self._owner.measure()
            self.measure()  # if the owner was cleared
            self._numbers = None if self._found is None else self._found.cpu().numpy()
            self._found = None
        return self._numbers


class Row(NamedTuple):
    """The numbers of one item of a batch."""

    batch: Batch
    number: int

    def read(self) -> NDArray[np.float64] | None:
        """The numbers, (columns,), or None if measuring failed; waits for the device."""
        numbers = self.batch.read()
        return None if numbers is None else numbers[self.number]


class Deferred:
    """The batches that can be added to: one for each function and kind of tensors."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._bytes = 0

    def add(self, measure: Measure, *tensors: Tensor) -> Row:
        """Copy tensors, which are measured later; large ones are measured at once, as few kernels do not help them."""
        size = sum(tensor.nbytes for tensor in tensors)
        if size >= _MAX_BYTES // 2:
            row = Batch(measure, self).add(tensors)
            row.batch.measure()
            return row
        key = (measure, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
        if (batch := self._batches.get(key)) is None:
            batch = self._batches[key] = Batch(measure, self)
        row = batch.add((*(tensor.clone() for tensor in tensors),))
        self._bytes += size
        if self._bytes >= _MAX_BYTES:
            self.measure()
        return row

    @torch.no_grad()
    def measure(self) -> None:
        """Measure all tensors, without waiting for the device."""
        batches = [*self._batches.values()]
        self.clear()
        for batch in batches:
            batch.measure()

    def clear(self) -> None:
        """Forget the batches; those with rows that are kept can still be read."""
        self._batches, self._bytes = {}, 0
