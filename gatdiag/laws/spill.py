"""Backward passes through very deep networks without holding every activation in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import torch
from torch import Tensor

# What autograd saves is kept in memory up to this many bytes; what comes after goes to a temporary file.
_IN_MEMORY = 2**28
_WORTH_WRITING = 2**16

_Packed = Tensor | tuple[int, torch.Size, torch.dtype]


@contextmanager
def spilled() -> Iterator[None]:
    """While active, large CPU tensors that autograd saves go to a temporary file, all but the first quarter gibibyte.

    A 512-layer network on a citation graph saves gibibytes in float64, in pieces that fragment the heap to twice that;
    reading them back from the file costs less than the operations they belong to.
    """
    with tempfile.TemporaryFile() as file:
        kept = 0

        def pack(tensor: Tensor) -> _Packed:
            nonlocal kept
            size = tensor.numel() * tensor.element_size()
            plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous()
            if (tensor.requires_grad and tensor.is_leaf) or not plain or size < _WORTH_WRITING:
                return tensor
            kept += size
            if kept <= _IN_MEMORY or tensor.dtype == torch.bfloat16:
                return tensor
            return _write(file, tensor.detach())

        def unpack(packed: _Packed) -> Tensor:
            return packed if isinstance(packed, Tensor) else _read(file, *packed)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield


def _write(file: BinaryIO, tensor: Tensor) -> tuple[int, torch.Size, torch.dtype]:
    start = file.seek(0, 2)
    file.write(tensor.numpy().tobytes())
    return start, tensor.shape, tensor.dtype


def _read(file: BinaryIO, start: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    file.seek(start)
    return torch.frombuffer(bytearray(file.read(shape.numel() * dtype.itemsize)), dtype=dtype).reshape(shape)
