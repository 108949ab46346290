"""Unknowns of a parameter's entries that take no memory until a rule needs them one by one.

Most weights enter a matrix product, which binds all of their entries at once to (unknown of the row) - (exponent of the
column). Their ids are then never written down: a tensor without data (on torch's meta device) stands for them. Its
shape, strides and offset, which views of it change, say which entry is where.
"""

import math

import torch
from torch import Tensor

from gatdiag.laws.label import Label


class Reserved:
    """The unknowns of one parameter's entries, in the order of the entries.

    Args:
        start: The first of them.
        shape: Shape of the parameter.

    Attributes:
        start: The first of them.
        last: The last of them.
        ids: A tensor of that shape, without data, that stands for them in a label.
        label: What they are bound to, or the unknowns themselves; None as long as neither is needed.
    """

    def __init__(self, start: int, shape: torch.Size) -> None:
        self.start, self._shape = start, shape
        self.last = start + shape.numel() - 1
        self.ids = torch.empty(shape, dtype=torch.int64, device="meta")
        self.label: Label | None = None

    @staticmethod
    def key_of(ids: Tensor) -> int:
        """What the tensor without data and all of its views have in common."""
        return int(ids.untyped_storage()._cdata)

    @property
    def entries(self) -> Tensor | None:
        """The unknowns, if they were written down one by one; None if they are bound as a whole, or to nothing."""
        if self.label is None or len(self.label.terms) != 1:
            return None
        ids = self.label.terms[0][1]
        is_own = ids.shape == self._shape and ids.numel() > 0 and int(ids.flatten()[0]) == self.start
        return ids if is_own else None

    def label_of(self, ids: Tensor) -> Label:
        """The label of a view; if the unknowns are bound to nothing, they are written down."""
        if self.label is None:
            written = torch.arange(self.start, self.last + 1).reshape(self._shape)
            self.label = Label.from_entries(written, torch.zeros((), dtype=torch.bool))
        axes = self._find_axes(ids)
        if axes is None:  # an axis of the view runs along several of the parameter
            layout = ids.size(), ids.stride(), ids.storage_offset()
            return self.label.map(lambda array: array.expand(self._shape).contiguous().as_strided(*layout))
        return self.label.map(lambda array: self._view(array, ids, axes))

    def can_bind(self, ids: Tensor) -> bool:
        """Whether `bind` can be called: the view has every entry once, and nothing is known of them."""
        return self.label is None and ids.numel() == self._shape.numel() and self._find_axes(ids) is not None

    def bind(self, ids: Tensor, label: Label) -> None:
        """Bind the entries to the label of a view of them."""
        axes = self._find_axes(ids)
        assert axes is not None
        strides = ids.stride()
        order = sorted(range(ids.ndim), key=lambda axis: (axes[axis], -strides[axis]))

        def to_parameter(array: Tensor) -> Tensor:
            changing = {axes[axis] for axis in range(ids.ndim) if array.shape[axis] > 1}
            lengths = [ids.shape[axis] if axes[axis] in changing else 1 for axis in range(ids.ndim)]
            shape = [length if axis in changing else 1 for axis, length in enumerate(self._shape)]
            return array.expand(lengths).permute(order).reshape(shape)

        self.label = label.map(to_parameter)

    def _strides(self) -> list[int]:
        return [math.prod(self._shape[axis + 1 :]) for axis in range(len(self._shape))]

    def _find_axes(self, ids: Tensor) -> list[int] | None:
        """For each axis of a view that of the parameter it runs along, -1 for none; None if one has several."""
        offset, last, axes = int(ids.storage_offset()), [0] * len(self._shape), []
        strides = self._strides()
        for axis, stride in enumerate(strides):
            last[axis], offset = divmod(offset, stride)
        for length, stride in zip(ids.shape, ids.stride(), strict=True):
            if length == 1 or stride == 0:
                axes.append(-1)
                continue
            along = [axis for axis, own in enumerate(strides) if own <= stride and self._shape[axis] > 1]
            if not along or stride % strides[along[0]]:
                return None
            axes.append(along[0])
            last[along[0]] += (length - 1) * stride // strides[along[0]]
        return axes if all(at < length for at, length in zip(last, self._shape, strict=True)) else None

    def _view(self, array: Tensor, ids: Tensor, axes: list[int]) -> Tensor:
        """The part of an array, which broadcasts against the parameter, that belongs to a view."""
        expanded, strides = array.expand(self._shape), self._strides()
        offset, start = int(ids.storage_offset()), int(expanded.storage_offset())
        for axis, stride in enumerate(strides):
            index, offset = divmod(offset, stride)
            start += index * expanded.stride(axis)
        steps = [
            0 if axis < 0 else expanded.stride(axis) * (stride // strides[axis])
            for axis, stride in zip(axes, ids.stride(), strict=True)
        ]
        return expanded.as_strided(ids.size(), steps, start)
