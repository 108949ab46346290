"""Backward passes through very deep networks without holding every activation in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from gatdiag.structure.deadline import check_time

# What autograd saves is kept in memory up to this many bytes; what comes after goes to a temporary file.
_IN_MEMORY = 2**27
_WORTH_WRITING = 2**14


@dataclass(frozen=True)
class _Spilled:
    """Where a tensor is in the file: its entries (broadcast axes cut to one), their shape and the full shape."""

    start: int
    dtype: torch.dtype
    compact: torch.Size
    shape: torch.Size


@contextmanager
def spilled() -> Iterator[None]:
    """While active, large CPU tensors that autograd saves go to a temporary file, all but the first of them.

    A 512-layer network on a citation graph saves gibibytes in float64, in pieces that fragment the heap to twice that;
    reading them back from the file costs less than the operations they belong to.
    """
    with tempfile.TemporaryFile() as file:
        kept = 0

        def pack(tensor: Tensor) -> Tensor | _Spilled:
            nonlocal kept
            check_time()
            is_parameter = tensor.is_leaf and tensor.requires_grad
            if is_parameter or tensor.device.type != "cpu" or tensor.layout != torch.strided:
                return tensor
            compact = _compact(tensor.detach())
            size = compact.numel() * compact.element_size()
            if size < _WORTH_WRITING or tensor.dtype == torch.bfloat16:
                return tensor
            kept += size
            return tensor if kept <= _IN_MEMORY else _write(file, compact, tensor.shape)

        def unpack(packed: Tensor | _Spilled) -> Tensor:
            check_time()
            return packed if isinstance(packed, Tensor) else _read(file, packed)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield


def _compact(tensor: Tensor) -> Tensor:
    """The tensor with broadcast axes cut to length one."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _write(file: BinaryIO, compact: Tensor, shape: torch.Size) -> _Spilled:
    start = file.seek(0, 2)
    file.write(compact.resolve_conj().resolve_neg().contiguous().numpy().tobytes())
    return _Spilled(start, compact.dtype, compact.shape, shape)


def _read(file: BinaryIO, packed: _Spilled) -> Tensor:
    file.seek(packed.start)
    data = bytearray(file.read(packed.compact.numel() * packed.dtype.itemsize))
    return torch.frombuffer(data, dtype=packed.dtype).reshape(packed.compact).expand(packed.shape)
