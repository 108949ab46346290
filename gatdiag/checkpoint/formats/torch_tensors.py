"""The tensors that a pickle of torch.save may make: each lies within what the file holds of its storage.

Every function stands for one of torch's that rebuild tensors, and takes the same arguments after the budget. None of
them makes a tensor.
"""

from math import prod
from typing import Any

import torch

from gatdiag.checkpoint.formats.budget import EXPANDED, Budget
from gatdiag.checkpoint.formats.machine import Global
from gatdiag.checkpoint.naming import shown
from gatdiag.errors import InputError

RANK = 64
DTYPES = {f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
SCHEMES = {
    *("torch.per_tensor_affine", "torch.per_tensor_symmetric", "torch.per_channel_affine"),
    *("torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams"),
}


class Stored:
    """Stands for a storage: how many bytes the file holds of it, and the size of an element."""

    def __init__(self, size: int, element: int) -> None:
        """Of `size` bytes, `element` of them for one number."""
        self.size, self.element = size, element


class Made:
    """Stands for an object: "dense", "sparse" and "meta" are tensors, "size" a shape; others have no data."""

    def __init__(self, kind: str, shape: tuple[int, ...] = ()) -> None:
        """Of a kind, with a shape where it has one."""
        self.kind, self.shape = kind, shape


def dense(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, *options: Any) -> Made:
    """A tensor; `options` are whether it needs gradients, hooks, and flags."""
    if type(storage) is not Stored:
        raise InputError("a tensor has no storage")
    _check_options(*options)
    return _strided(budget, storage, offset, size, stride, storage.element)


def of_dtype(
    budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *flags: Any
) -> Made:
    """A tensor of a storage without a type."""
    if type(storage) is not Stored or type(dtype) is not Global or dtype.name not in DTYPES:
        raise InputError("a tensor has no storage or no dtype")
    _check_options(grad, hooks, *flags)
    return _strided(budget, storage, offset, size, stride, DTYPES[dtype.name].itemsize)


def quantized(
    budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, quantizer: Any, grad: Any, hooks: Any
) -> Made:
    """A quantised tensor, with one scale or one a channel."""
    made = dense(budget, storage, offset, size, stride, grad, hooks)
    scheme, scale, zero, *axis = quantizer
    if type(scheme) is not Global or scheme.name not in SCHEMES or len(axis) > 1:
        raise InputError("a quantised tensor has no quantisation scheme")
    if axis:
        channels = made.shape[axis[0]] if is_size(axis[0]) and axis[0] < len(made.shape) else None
        if not _is_dense(scale) or not _is_dense(zero) or scale.shape != (channels,) or zero.shape != (channels,):
            raise InputError("a quantised tensor has another number of scales than of channels")
    elif type(scale) not in (int, float) or type(zero) is not int:
        raise InputError("a quantised tensor has no scale")
    return made


def sparse(budget: Budget, layout: Any, data: Any) -> Made:
    """A sparse tensor of dense ones; torch checks its indices when it is loaded."""
    *tensors, shape = data[:-1] if type(data[-1]) is bool else data  # the flag says whether it is coalesced
    if type(layout) is not Made or layout.kind != "layout" or not all(_is_dense(part) for part in tensors):
        raise InputError("a sparse tensor is not made of dense ones")
    return Made("sparse", shape_of(shape))


def meta(budget: Budget, dtype: Any, size: Any, stride: Any, grad: Any) -> Made:
    """A tensor without data."""
    shape = shape_of(size)
    if prod(shape) >= 2**60 or len(shape_of(stride)) != len(shape):
        raise InputError("a tensor without data has a shape that no tensor can have")
    return Made("meta", shape)


def parameter(budget: Budget, data: Any, grad: Any, hooks: Any) -> Made:
    """A parameter around a tensor."""
    if type(data) is not Made:
        raise InputError("a parameter has no tensor")
    _check_options(grad, hooks)
    return data


def is_size(value: Any) -> bool:
    """Whether a value can count bytes or elements."""
    return type(value) is int and 0 <= value < 2**62


def shape_of(value: Any) -> tuple[int, ...]:
    """A shape or strides; raises InputError where no tensor can have them."""
    size = value.shape if type(value) is Made and value.kind == "size" else value
    if type(size) is not tuple or len(size) > RANK or not all(map(is_size, size)):
        raise InputError("a tensor has a shape that no tensor can have")
    return size


def _strided(budget: Budget, storage: Stored, offset: Any, size: Any, stride: Any, element: int) -> Made:
    shape, strides = shape_of(size), shape_of(stride)
    if len(strides) != len(shape) or not is_size(offset):
        raise InputError("a tensor has another number of strides than of axes, or no offset")
    count = prod(shape)
    needed = (offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1) * element
    if count and needed > storage.size:
        raise InputError(f"a tensor of shape {_brief(shape)} needs {needed:,} bytes, its storage has {storage.size:,}")
    if count * element > max(storage.size, EXPANDED):
        raise InputError(f"a tensor of shape {_brief(shape)} repeats its storage up to {count * element:,} bytes")
    budget.view(count * element)
    return Made("dense", shape)


def _check_options(grad: Any = False, hooks: Any = None, flags: Any = None) -> None:
    if type(grad) is not bool or hooks or not isinstance(flags or {}, dict):
        raise InputError("a tensor has hooks, which are code, or is damaged")
    if any(name not in ("conj", "neg") or type(flag) is not bool for name, flag in (flags or {}).items()):
        raise InputError("a tensor has flags that torch does not know")


def _is_dense(value: Any) -> bool:
    return type(value) is Made and value.kind == "dense"


def _brief(shape: tuple[int, ...]) -> str:
    return shown(list(shape)).strip("'")
