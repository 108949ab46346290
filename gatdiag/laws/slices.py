"""Fewer rows that say the same: equal rows and slices of labels, and axes that have nothing to do with each other."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from gatdiag.laws.label import Label, distinct_slices


def distinct_rows(table: Tensor) -> Tensor:
    """Distinct rows of a table in ascending order: a faster `unique(dim=0)`."""
    keys = torch.zeros(len(table), dtype=torch.int64)
    for column in table.unbind(1):
        values, places = column.unique(return_inverse=True)
        _, keys = (keys * len(values) + places).unique(return_inverse=True)
    count = int(keys.max()) + 1 if len(table) else 0
    return torch.empty(count, table.shape[1], dtype=table.dtype).index_copy_(0, keys, table)


def deduplicate_slices(label: Label) -> tuple[Label, list[tuple[int, Tensor]]]:
    """Keep one of several equal slices along every axis; also return (axis, kind of each slice) to undo it."""
    kinds = []
    label = label.with_ndim(label.ndim)
    reserved = [ids for _, ids in label.terms if ids.is_meta]  # no two slices of it are equal
    for axis, length in enumerate(label.shape):
        if any(ids.shape[axis] > 1 for ids in reserved):
            continue
        if length > 1 and (found := distinct_slices(label.arrays, axis)) is not None:
            first, kind = found
            label = label.map(partial(_take, axis=axis, positions=first))
            kinds.append((axis, kind))
    return label, kinds


def _take(array: Tensor, axis: int, positions: Tensor) -> Tensor:
    return array if array.shape[axis] == 1 else array.index_select(axis, positions)


def first_slices(array: Tensor, axes: Iterable[int]) -> Tensor:
    """The first slice along each axis."""
    for axis in axes:
        array = array.narrow(axis, 0, 1)
    return array


def independent_axes(label: Label) -> list[set[int]]:
    """Groups of axes such that each term changes along axes of one group only; one group if entries are zeros."""
    groups: list[set[int]] = []
    for array in label.arrays:
        axes = {axis - array.ndim for axis, length in enumerate(array.shape) if length > 1}
        linked = [group for group in groups if group & axes]
        groups = [group for group in groups if not group & axes] + ([axes.union(*linked)] if axes else [])
    return groups if label.zeros is None else [set().union(*groups)]


def expand_slices(array: Tensor, kinds: Iterable[tuple[int, Tensor]]) -> Tensor:
    """Undo `_deduplicate_slices` for an array made from its label."""
    for axis, kind in kinds:
        array = _take(array, axis, kind)
    return array
