"""Tensors on an accelerator that wait to be measured together.

There, the host takes longer to launch a kernel than the device takes to run it, so the outputs of many layers and steps
are copied, stacked, and measured with as many kernels as one of them; the host waits for the device when it reads the
numbers. On the CPU, copying takes longer than it saves.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gatdiag.recorder.guard import Guard

_MAX_BYTES: Final = 64 << 20  # of copies that wait; as much again while they are stacked

# tensors with an axis for B items in front -> a NamedTuple of (B,), float64
Measure: TypeAlias = Callable[..., tuple[Tensor, ...]]


class Batch:
    """Tensors of the same shapes, measured by one function."""

    def __init__(self, measure: Measure, owner: "Deferred") -> None:
        self._measure, self._owner = measure, owner
        self._waiting: list[tuple[Tensor, ...]] = []
        self._found: Any = None
        self._rows: list[Any] | None = None

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

    def read(self) -> list[Any] | None:
        """What the function would return of each item, in numbers; None if measuring failed. Waits for the device."""
        if self._rows is None:
            self._owner.measure()
            self.measure()  # if the owner was cleared
            if self._found is not None:
                self._rows = [*map(type(self._found)._make, torch.stack([*self._found], 1).tolist())]
            self._found = None
        return self._rows


class Row(NamedTuple):
    """What was measured of one item of a batch."""

    batch: Batch
    number: int

    def read(self) -> Any:
        """What the function would return of it, in numbers, or None if measuring failed; waits for the device."""
        rows = self.batch.read()
        return None if rows is None else rows[self.number]


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
