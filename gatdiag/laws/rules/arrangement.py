"""Rules of operations that move, repeat, select or join entries: the label is rearranged as the tensor is."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gatdiag.laws.exponents import ConstantRow
from gatdiag.laws.label import ZEROS, Label, Rearrange, distinct_slices
from gatdiag.laws.rules.call import Call, Labels

_NOT_EMPTY = 2  # length, in the label, of an axis of length zero: the next batch may have entries there


def rearrange(call: Call) -> Labels:
    """Run the same operation on the label."""
    label, axis = call.label_of(call.first), call.get("dim")
    pieces = isinstance(call.out, list | tuple)
    if isinstance(axis, int) and call.results[0].ndim == label.ndim and not label.changes_along([axis]):
        return [label] * len(call.out) if pieces else label
    names = [argument.name for argument in call.function._schema.arguments]
    rest: dict[str, Any] = tree_map_only(Tensor, torch.Tensor.cpu, {name: call[name] for name in names[1:]})
    rest |= {name: not_empty(rest[name]) for name in ("size", "split_sizes") if isinstance(rest.get(name), list)}
    shape = not_empty(call.shape)
    if pieces:
        return [
            label.rearrange(shape, lambda array, piece=piece: call.function(array, **rest)[piece])  # type: ignore[misc]
            for piece in range(len(call.out))
        ]
    return label.rearrange(shape, lambda array: call.function(array, **rest))


def not_empty(shape: Sequence[int]) -> torch.Size:
    """A shape in which axes of length zero are longer."""
    return torch.Size([length or _NOT_EMPTY for length in shape])


def reshape(call: Call) -> Label:
    """view and reshape; always reshape for the label, which may not be contiguous."""
    shape = not_empty(call.out.shape)
    return call.label_of(call.first).rearrange(not_empty(call.shape), lambda array: array.reshape(shape))


def as_strided(call: Call) -> Label:
    """as_strided of a contiguous tensor; other layouts are not supported and fix the scale."""
    tensor, size, stride = call["self"], call["size"], call["stride"]
    offset = (call.get("storage_offset") or tensor.storage_offset()) - tensor.storage_offset()
    if not tensor.is_contiguous():
        return call.fix_scale()
    return call.label("self").rearrange(tensor.shape, lambda array: array.contiguous().as_strided(size, stride, offset))


def index_select(call: Call) -> Labels:
    """index_select along an axis."""
    axis = call["dim"] % max(1, call["self"].ndim)
    if not _is_choice(call, [axis], call["index"]):
        return rearrange(call)
    return _choose(call, call.label("self"), axis, call["index"].shape)


def gather(call: Call) -> Labels:
    """gather: as index_select where the index is the same along the other axes."""
    tensor, index = call["self"], call["index"]
    axis = call["dim"] % max(1, tensor.ndim)
    if not _is_choice(call, [axis], index):
        return rearrange(call)
    others = [other for other in range(tensor.ndim) if other != axis]
    label = call.label("self")
    if any(index.stride(other) and index.shape[other] > 1 for other in others):
        label = call.coarsen(label, [axis])
    for other in others:
        label = label.map(partial(_cut, axis=other, length=index.shape[other]))
    return _choose(call, label, axis, index.shape[axis : axis + 1])


def _cut(array: Tensor, axis: int, length: int) -> Tensor:
    return array.narrow(axis, 0, length) if array.shape[axis] > 1 else array


def index(call: Call) -> Labels:
    """index: x[i, ...] with index tensors or masks."""
    label, indices = call.label("self"), list(call["indices"])
    given = [index for index in indices if index is not None]
    axes = indexed_axes(indices)
    if not _is_choice(call, axes, *given):
        return rearrange(call)
    shape = torch.broadcast_shapes(*(index.nonzero().shape[:1] if _is_mask(index) else index.shape for index in given))
    if len(axes) == 1:
        return _choose(call, label, axes[0], shape)
    kept = [axis for axis in range(call["self"].ndim) if axis not in axes]
    front = sum(axis < axes[0] for axis in kept) if axes == list(range(axes[0], axes[-1] + 1)) else 0
    label = call.coarsen(label, axes).map(partial(torch.squeeze, dim=axes))
    return label.map(lambda array: array.reshape(array.shape[:front] + (1,) * len(shape) + array.shape[front:]))


def indexed_axes(indices: Sequence[Tensor | None]) -> list[int]:
    """The axes that the indices of `x[indices]` refer to; a mask refers to as many as it has."""
    axes: list[int] = []
    axis = 0
    for index in indices:
        width = index.ndim if index is not None and _is_mask(index) else 1
        axes += [] if index is None else range(axis, axis + width)
        axis += width
    return axes


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _is_choice(call: Call, axes: Iterable[int], *indices: Tensor) -> bool:
    """True if indices that are data choose rows of the first tensor, or if they choose none, which says nothing."""
    if not call.first.ndim or all(map(call.is_constant, indices)):
        return False
    label = call.exponents.resolve(call.label_of(call.first))
    if not call.out.numel() or any(_has_rows(label, axis) for axis in axes):
        return True
    return label.changes_along(axes) and not any(map(call.is_shifted, indices))


def _has_rows(label: Label, axis: int) -> bool:
    """True if entries along an axis scale each on its own, as rows of a table do, and not as their kind does.

    Nodes of several kinds, one after the other in one tensor, are chosen within their kind by a shifted index.
    """
    arrays = [ids for _, ids in label.terms if ids.shape[axis] > 1]
    if not arrays:
        return False
    kinds = distinct_slices(arrays, axis)
    return kinds is None or int(kinds[1].bincount().min()) == 1


def _choose(call: Call, label: Label, axis: int, shape: Sequence[int]) -> Label:
    """The label of entries that data choose along an axis, which is replaced by axes of this shape."""
    label = call.exponents.resolve(label)
    if label.zeros is not None and label.zeros.shape[axis] > 1:
        label = label.drop_zero_mask()
    varying = [term for term in label.terms if term[1].shape[axis] > 1]
    if any(ids.numel() > ids.shape[axis] for _, ids in varying) or not _has_rows(label, axis):
        label, varying = call.coarsen(label, [axis]), []
    chosen = call.exponents.choose(Label(tuple(varying)), axis, math.prod(shape)) if varying else Label()
    fixed = Label(tuple(term for term in label.terms if term[1].shape[axis] == 1), label.zeros)

    def reshape_axis(array: Tensor) -> Tensor:
        inserted = (1,) * len(shape) if array.shape[axis] == 1 else tuple(shape)
        return array.reshape(array.shape[:axis] + inserted + array.shape[axis + 1 :])

    return fixed.map(reshape_axis) + chosen.map(reshape_axis)


def index_copy(call: Call) -> Label:
    """index_copy: the label is replaced entry by entry if it changes along the axis."""
    axis, index, labels = call["dim"], call["index"].cpu(), (call.label("self"), call.label("source"))
    if not call.is_constant(call["index"]):
        labels = call.coarsen(labels[0], [axis]), call.coarsen(labels[1], [axis])
    if not any(label.changes_along([axis]) for label in labels):
        return call.exponents.require_equal(*labels)
    return _entry_by_entry(call, lambda old, new: old.index_copy(axis, index, new), "self", "source")


def _entry_by_entry(call: Call, function: Callable[..., Tensor], *names: str) -> Label:
    """Apply a function to the unknowns of every entry of the named tensors, and to their masks of zeros."""
    parts = [call.exponents.to_entries(call.label(name), call[name].shape) for name in names]
    ids, zeros = zip(*parts, strict=True)
    return Label.from_entries(function(*ids), function(*zeros))


def view_as_complex(call: Call) -> Label:
    """view_as_complex: real and imaginary part (the last axis) must scale alike."""
    return call.coarsen(call.label("self"), [call["self"].ndim - 1]).map(lambda array: array.squeeze(-1))


def complex_from_parts(call: Call) -> Label:
    """complex: real and imaginary part must scale alike."""
    parts = [call.label(name).map(lambda array: array.unsqueeze(-1)) for name in ("real", "imag")]
    whole = concatenate(call, [(part, torch.Size((*call.out.shape, 1))) for part in parts], call.out.ndim)
    return call.coarsen(whole, [call.out.ndim]).map(lambda array: array.squeeze(-1))


def view_as_real(call: Call) -> Label:
    """view_as_real: real and imaginary part scale alike."""
    return call.label("self").map(lambda array: array.unsqueeze(-1))


def cat(call: Call) -> Label:
    """cat: each piece keeps its own exponents along the axis."""
    axis = call.get("dim", 0) % call.out.ndim
    tensors = [tensor for tensor in call["tensors"] if tensor.ndim == call.out.ndim]
    return concatenate(call, [(call.label_of(tensor), tensor.shape) for tensor in tensors], axis)


def stack(call: Call) -> Label:
    """stack: as cat, along a new axis."""
    axis = call.get("dim", 0) % call.out.ndim
    pieces = []
    for tensor in call["tensors"]:
        label = call.label_of(tensor).map(lambda array: array.unsqueeze(axis))
        pieces.append((label, tensor.unsqueeze(axis).shape))
    return concatenate(call, pieces, axis)


def concatenate(call: Call, pieces: list[tuple[Label, torch.Size]], axis: int) -> Label:
    """The label of tensors, given by label and shape, that are joined along an axis.

    One without entries may have some in the next batch, which must scale as the others do.
    """
    present = [piece for piece in pieces if piece[1][axis]]
    if present and len(present) < len(pieces):
        others = [call.coarsen(label, [axis]) for label, shape in pieces if not shape[axis] and label.terms]
        if others:
            whole = call.coarsen(concatenate(call, present, axis), [axis])
            for other in others:
                whole = call.exponents.require_equal(whole, other)
            return whole
        pieces = present
    known = [torch.broadcast_shapes(label.shape, (1,) * len(shape)) for label, shape in pieces]
    common = torch.broadcast_shapes(*((*shape[:axis], 1, *shape[axis + 1 :]) for shape in known))
    parts = [
        call.exponents.to_entries(label, torch.Size((*common[:axis], shape[axis], *common[axis + 1 :])))
        for label, shape in pieces
    ]
    ids, zeros = (torch.cat(arrays, axis) for arrays in zip(*parts, strict=True))
    return Label.from_entries(ids, zeros)


def constant_pad(call: Call) -> Label:
    """constant_pad_nd: padding with zeros fits every exponent, another constant fixes the scale."""
    if not call.label("value").is_all_zeros:
        return call.fix_scale()

    def pad(array: Tensor) -> Tensor:
        padded: Tensor = torch.ops.aten.constant_pad_nd(array, call["pad"], 0)
        return padded

    return _fill_with_zeros(call, pad, call.first.ndim - len(call["pad"]) // 2)


def embed_in_zeros(call: Call) -> Label:
    """diag_embed and the backward pass of slices: entries of the tensor with zeros around them."""
    rest = [argument.name for argument in call.function._schema.arguments[1:]]
    return _fill_with_zeros(call, lambda array: call.function(array, **{name: call[name] for name in rest}))


def _fill_with_zeros(call: Call, function: Rearrange, leading: int = 0) -> Label:
    """The label after a function that puts the entries of the first tensor among zeros.

    Args:
        call: The operation.
        function: What it does to an array.
        leading: How many of the first axes it leaves alone.
    """
    label, tensor = call.label_of(call.first), call.first
    known = torch.broadcast_shapes(label.shape, (1,) * tensor.ndim)
    ids, zeros = call.exponents.to_entries(label, torch.Size((*known[:leading], *tensor.shape[leading:])))
    return Label.from_entries(function(ids), ~function(~zeros))


def resample(call: Call) -> Label:
    """Padding with entries of the tensor itself, and interpolation by the nearest one: spatial axes are rearranged."""
    tensor, axes = call.first, call.spatial_axes()
    label = call.label_of(tensor)
    if not label.changes_along(axes):
        return label
    shape = torch.Size((*label.shape[: axes[0]], *tensor.shape[axes[0] :]))
    return label.rearrange(shape, _for_integers(call))


def im2col(call: Call) -> Label:
    """im2col: sliding windows, with zeros around the image."""
    return _fill_with_zeros(call, _for_integers(call), call.first.ndim - 3)


def _for_integers(call: Call) -> Rearrange:
    """The operation for unknowns and masks, which its kernel does not support."""
    rest = {argument.name: call[argument.name] for argument in call.function._schema.arguments[1:]}

    def function(array: Tensor) -> Tensor:
        moved: Tensor = call.function(array.double(), **rest)
        return moved.to(array.dtype)

    return function


def masked_scatter(call: Call) -> Label:
    """masked_scatter: entries of the source, in order, replace those that a mask selects."""
    mask, tensor, source = call["mask"], call["self"], call["source"]
    if call.is_constant(mask):
        mask = mask.cpu()
        return _entry_by_entry(call, lambda old, new: old.masked_scatter(mask, new), "self", "source")
    strides, kept = mask.expand(tensor.shape).stride(), 0  # the last axes, if the mask selects whole rows
    while kept < source.ndim and strides[-1 - kept : -kept or None] == (0,):
        if source.shape[-1 - kept] != tensor.shape[-1 - kept]:
            break
        kept += 1
    rows = range(source.ndim - kept)
    written = call.coarsen(call.label("source"), rows).map(lambda array: array.squeeze(list(rows)))
    return call.exponents.require_equal(call.label("self"), written)


def block_diag(call: Call) -> Label:
    """block_diag: matrices along the diagonal, with zeros around them."""
    parts = [call.exponents.to_entries(call.label_of(tensor), tensor.shape) for tensor in call["tensors"]]
    ids, zeros = zip(*parts, strict=True)
    return Label.from_entries(torch.block_diag(*ids), ~torch.block_diag(*(~mask for mask in zeros)))


def masked_select(call: Call) -> Label:
    """masked_select: tensor and mask broadcast against each other."""
    mask, tensor = call["mask"], call["self"]
    if _is_choice(call, range(tensor.ndim), mask):
        return call.coarsen(call.label("self"), range(tensor.ndim)).map(lambda array: array.reshape(1))
    return call.label("self").rearrange(tensor.shape, lambda array: array.masked_select(mask.cpu()))


def slice_scatter(call: Call) -> Label:
    """slice_scatter, select_scatter and diagonal_scatter: part of a tensor is replaced by another."""
    rest = {name: value for name, value in call.arguments.items() if name not in ("self", "src")}
    return _entry_by_entry(call, lambda old, new: call.function(old, new, **rest), "self", "src")


def index_put(call: Call) -> Label:
    """index_put that replaces entries."""
    indices = tree_map_only(Tensor, torch.Tensor.cpu, call["indices"])
    return _entry_by_entry(call, lambda old, new: torch.ops.aten.index_put(old, indices, new), "self", "values")


def embedding(call: Call) -> Labels:
    """embedding: the table is (unknown of the channel) - (unknown of the row), and rows of it are selected."""
    weight, indices, padding = call["weight"], call["indices"], call["padding_idx"]
    if call["scale_grad_by_freq"]:  # the gradient is not that of the function
        return call.fix_scale("weight")
    is_constant, label = call.is_constant(indices), call.label("weight")
    if not is_constant or len(indices.unique()) == len(weight):  # else other inputs may read more rows
        label = call.exponents.bind_table(label)
    if is_constant:
        label = label.rearrange(weight.shape, lambda array: torch.nn.functional.embedding(indices.cpu(), array))
    else:
        label = _choose(call, label, 0, indices.shape)
    if padding >= 0:
        call.exponents.constant_rows.append(ConstantRow(weight, padding, label, call.exponents.cause))
    return label


def embedding_bag(call: Call) -> Label:
    """_embedding_bag: rows of a table are selected and summed, averaged or their maximum is taken."""
    if call["scale_grad_by_freq"]:
        return call.fix_scale()
    label = call.coarsen(call.label("weight"), [0])
    if call.get("per_sample_weights") is not None:
        label = label + call.coarsen(call.label("per_sample_weights"), [0]).map(lambda array: array.unsqueeze(-1))
    return label


def new_zeros(call: Call) -> Label:
    """zeros, empty and the like."""
    return ZEROS


def lift(call: Call) -> Label:
    """lift: torch.tensor(0.0) in the forward pass fits every exponent."""
    return ZEROS if call.out.numel() == 1 and not bool(call.out) else call.label_of(call.first)


def full(call: Call) -> Label:
    """full and scalar_tensor: zeros and infinities fit every exponent, other constants have exponent zero."""
    name = "fill_value" if "fill_value" in call.arguments else "s"
    return call.label(name)
