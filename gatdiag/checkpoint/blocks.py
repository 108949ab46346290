"""A tensor of any number type, block by block, as plain floating-point matrices of bounded size."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gatdiag.errors import InputError

_BLOCK = 1 << 16  # entries: what fits into a processor's cache, so that memory is read once


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows and columns of a matrix.

    Attributes:
        rows: Which rows.
        columns: Which columns.
        values: (rows, columns), float32, or float64 where the tensor is more precise than that or holds integers.
    """

    rows: slice
    columns: slice
    values: Tensor


def shape_of(tensor: Tensor) -> tuple[int, int]:
    """Rows and columns of the matrix that a tensor is read as: axis 0, and all others. A vector is one column."""
    rows = tensor.shape[0] if tensor.dim() else 1
    return rows, tensor.shape[1:].numel() if tensor.dim() else 1


def blocks(tensor: Tensor) -> Iterator[Block]:
    """Every entry of a tensor once; never more than a block of it is converted.

    Quantized values are read as what they stand for, complex ones by their magnitude, of sparse tensors the values that
    are stored: one column.

    Raises:
        InputError: The tensor has no values: it is on the meta device.

    Example:
        >>> [block.values.tolist() for block in blocks(torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16))]
        [[[1.0, 2.0], [3.0, 4.0]]]
    """
    if tensor.is_meta:
        raise InputError(f"Expected a tensor with values, got one of shape {list(tensor.shape)} on the meta device.")
    tensor = stored(tensor.detach())
    rows, columns = shape_of(tensor)
    source = tensor.int_repr() if tensor.is_quantized else tensor
    matrix = source.reshape(rows, columns)
    if 0 < matrix.numel() <= _BLOCK:
        place = slice(0, rows), slice(0, columns)
        yield Block(*place, _real(matrix, tensor, place))
        return
    wide = min(columns, _BLOCK) or 1
    high = max(1, _BLOCK // wide)
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            place = slice(top, min(top + high, rows)), slice(left, min(left + wide, columns))
            yield Block(*place, _real(matrix[place], tensor, place))


def stored(tensor: Tensor) -> Tensor:
    """The values that a sparse tensor stores; any other tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor if tensor.layout is torch.strided else tensor.values()


def _real(values: Tensor, tensor: Tensor, place: tuple[slice, slice]) -> Tensor:
    if tensor.is_quantized:
        return _dequantized(values, tensor, place)
    if values.is_complex():
        values = values.abs()
    exact = values.dtype == torch.float64 or not (values.is_floating_point() or values.dtype == torch.bool)
    return values.to(torch.float64 if exact else torch.float32)


def _dequantized(values: Tensor, tensor: Tensor, place: tuple[slice, slice]) -> Tensor:
    """(q - zero point) * scale. Tensors that are quantized by channel cannot be cut, so it is done here."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return (values.float() - tensor.q_zero_point()) * tensor.q_scale()
    axis = tensor.q_per_channel_axis()
    lengths = [length if at == axis else 1 for at, length in enumerate(tensor.shape)]
    zero, scale = (
        of_channel.float().reshape(lengths).expand(tensor.shape).reshape(shape_of(tensor))[place]
        for of_channel in (tensor.q_per_channel_zero_points(), tensor.q_per_channel_scales())
    )
    return (values.float() - zero) * scale
