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

_MAX_BYTES: Final = 64 << 20

Measure: TypeAlias = Callable[..., Tensor]  # tensors with an axis for B items in front -> (B, columns), float64


class Batch:
    """Tensors of the same shapes, measured by one function."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._waiting: list[tuple[Tensor, ...]] = []
        self._found: Tensor | None = None
        self._read: NDArray[np.float64] | None = None

    @property
    def is_measured(self) -> bool:
        """True if nothing can be added any more."""
        return self._found is not None

    @property
    def nbytes(self) -> int:
        """Memory of the tensors that wait."""
        return len(self._waiting) * sum(tensor.nbytes for tensor in self._waiting[0]) if self._waiting else 0

    def add(self, tensors: tuple[Tensor, ...]) -> "Row":
        """Copy tensors, and return the row of their numbers."""
        self._waiting.append((*(tensor.clone() for tensor in tensors),))
        return Row(self, len(self._waiting) - 1)

    @torch.no_grad()
    def measure(self) -> Tensor:
        """The numbers, (B, columns), without waiting for the device."""
        if self._found is None:
            self._found = self._measure(*map(torch.stack, zip(*self._waiting, strict=True)))
            self._waiting = []
        return self._found

    def read(self) -> NDArray[np.float64]:
        """The numbers, (B, columns); waits for the device."""
        if self._read is None:
            self._read = self.measure().cpu().numpy()
        return self._read


class Row(NamedTuple):
    """The numbers of one item of a batch."""

    batch: Batch
    number: int

    def read(self) -> NDArray[np.float64]:
        """The numbers, (columns,); waits for the device."""
        found: NDArray[np.float64] = self.batch.read()[self.number]
        return found


class Deferred:
    """The batches that are open: one for each function and kind of tensors, altogether at most 64 MiB."""

    def __init__(self) -> None:
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._bytes = 0  # of tensors that wait

    def add(self, measure: Measure, *tensors: Tensor) -> Row:
        """Copy tensors, which are measured later."""
        key = (measure, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
        batch = self._batches.get(key)
        if batch is None or batch.is_measured:
            batch = self._batches[key] = Batch(measure)
            self._bytes = sum(each.nbytes for each in self._batches.values())
        row = batch.add(tensors)
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        if self._bytes >= _MAX_BYTES:
            batches, self._batches, self._bytes = self._batches, {}, 0
            for each in batches.values():
                each.measure()
        return row
