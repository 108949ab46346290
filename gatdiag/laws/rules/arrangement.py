"""Rules of operations that move, repeat, select or join entries: what happens to the tensor happens to its label."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gatdiag.laws.label import ZEROS, Arrange, Label, written
from gatdiag.laws.rules.call import Call, Labels


def arranged(call: Call) -> Labels:
    """Run the same operation on the label."""
    label = call.label_of(call.first)
    names = [argument.name for argument in call.function._schema.arguments]
    rest: dict[str, Any] = tree_map_only(Tensor, torch.Tensor.cpu, {name: call[name] for name in names[1:]})
    if isinstance(call.out, list | tuple):
        return [
            label.arranged(call.shape, lambda array, piece=piece: call.function(array, **rest)[piece])  # type: ignore[misc]
            for piece in range(len(call.out))
        ]
    return label.arranged(call.shape, lambda array: call.function(array, **rest))


def reshaped(call: Call) -> Label:
    """view and reshape, where the label's own memory may need a copy that the tensor's does not."""
    return call.label_of(call.first).arranged(call.shape, lambda array: array.reshape(call.out.shape))


def strided(call: Call) -> Label:
    """as_strided on a contiguous tensor; what it shows of any other layout is not followed."""
    tensor, size, stride = call["self"], call["size"], call["stride"]
    offset = (call.get("storage_offset") or tensor.storage_offset()) - tensor.storage_offset()
    if not tensor.is_contiguous():
        return call.vanish()
    return call.label("self").arranged(tensor.shape, lambda array: array.contiguous().as_strided(size, stride, offset))


def selected(call: Call) -> Labels:
    """index_select: nothing changes where the label does not change along the axis."""
    label, axis = call.label("self"), call["dim"]
    if all(array.ndim and array.shape[axis] == 1 for array in label.arrays) and call.out.ndim == label.ndim:
        return label
    return arranged(call)


def gathered(call: Call) -> Labels:
    """gather: as index_select where the index keeps the other axes."""
    axis, before, after = call["dim"], list(call["self"].shape), list(call.out.shape)
    if before and before[:axis] + before[axis:][1:] == after[:axis] + after[axis:][1:]:
        return selected(call)
    return arranged(call)


def indexed(call: Call) -> Labels:
    """x[i, ...] with index tensors or masks."""
    label, indices = call.label("self"), list(call["indices"])
    used = [axis for axis, index in enumerate(indices) if index is not None]
    if len(used) == 1 and indices[used[0]].ndim == 1 and not label.changes_along(used):
        return label
    return arranged(call)


def replaced(call: Call) -> Label:
    """index_copy: entries along an axis replaced by those of another tensor, in the label too if it changes there."""
    axis, index, labels = call["dim"], call["index"].cpu(), (call.label("self"), call.label("source"))
    if not any(label.changes_along([axis]) for label in labels):
        return call.exponents.equal(*labels)
    return _entry_by_entry(call, lambda old, new: old.index_copy(axis, index, new), "self", "source")


def _entry_by_entry(call: Call, change: Callable[..., Tensor], *names: str) -> Label:
    """The label after the same change to the unknowns of every entry of these tensors and to where they are zeros."""
    parts = [call.exponents.written_out(call.label(name), call[name].shape) for name in names]
    ids, zeros = zip(*parts, strict=True)
    return written(change(*ids), change(*zeros))


def paired(call: Call) -> Label:
    """view_as_complex: real and imaginary part, side by side on the last axis, must scale alike."""
    return call.lumped(call.label("self"), [call["self"].ndim - 1]).map(lambda array: array.squeeze(-1))


def composed(call: Call) -> Label:
    """complex: real and imaginary part must scale alike."""
    parts = [call.label(name).map(lambda array: array.unsqueeze(-1)) for name in ("real", "imag")]
    whole = side_by_side(call, [(part, torch.Size((*call.out.shape, 1))) for part in parts], call.out.ndim)
    return call.lumped(whole, [call.out.ndim]).map(lambda array: array.squeeze(-1))


def parted(call: Call) -> Label:
    """view_as_real: real and imaginary part of a number scale alike."""
    return call.label("self").map(lambda array: array.unsqueeze(-1))


def joined(call: Call) -> Label:
    """cat along an axis: each piece keeps its own exponents there."""
    axis = call.get("dim", 0) % call.out.ndim
    tensors = [tensor for tensor in call["tensors"] if tensor.ndim == call.out.ndim]
    return side_by_side(call, [(call.label_of(tensor), tensor.shape) for tensor in tensors], axis)


def stacked(call: Call) -> Label:
    """stack along a new axis."""
    axis = call.get("dim", 0) % call.out.ndim
    pieces = []
    for tensor in call["tensors"]:
        label = call.label_of(tensor).map(lambda array: array.unsqueeze(axis))
        pieces.append((label, tensor.unsqueeze(axis).shape))
    return side_by_side(call, pieces, axis)


def side_by_side(call: Call, pieces: list[tuple[Label, torch.Size]], axis: int) -> Label:
    """The label of pieces joined along an axis."""
    known = [torch.broadcast_shapes(label.shape, (1,) * len(shape)) for label, shape in pieces]
    common = torch.broadcast_shapes(*((*shape[:axis], 1, *shape[axis + 1 :]) for shape in known))
    parts = [
        call.exponents.written_out(label, torch.Size((*common[:axis], shape[axis], *common[axis + 1 :])))
        for label, shape in pieces
    ]
    ids, zeros = (torch.cat(arrays, axis) for arrays in zip(*parts, strict=True))
    return written(ids, zeros)


def padded(call: Call) -> Label:
    """constant_pad_nd: zeros around the tensor fit every exponent, another constant does not."""
    if not call.label("value").is_zero:
        return call.vanish()
    return _among_zeros(call, lambda array: torch.ops.aten.constant_pad_nd(array, call["pad"], 0))


def embedded(call: Call) -> Label:
    """diag_embed, and what the backward pass makes of slices: the entries, and exact zeros everywhere else."""
    rest = [argument.name for argument in call.function._schema.arguments[1:]]
    return _among_zeros(call, lambda array: call.function(array, **{name: call[name] for name in rest}))


def _among_zeros(call: Call, arrange: Arrange) -> Label:
    """The label after the first tensor's entries were placed among zeros."""
    ids, zeros = call.exponents.written_out(call.label_of(call.first), call.first.shape)
    return written(arrange(ids), ~arrange(~zeros))


def masked_select(call: Call) -> Label:
    """masked_select: entries in order, wherever the mask is true; tensor and mask broadcast against each other."""
    mask, tensor = call["mask"].cpu(), call["self"]
    return call.label("self").arranged(tensor.shape, lambda array: array.masked_select(mask))


def inserted(call: Call) -> Label:
    """slice_scatter and select_scatter: part of the tensor is replaced by another."""
    rest = {name: value for name, value in call.arguments.items() if name not in ("self", "src")}
    return _entry_by_entry(call, lambda old, new: call.function(old, new, **rest), "self", "src")


def overwritten(call: Call) -> Label:
    """index_put that replaces entries: the same replacement in the label."""
    indices = tree_map_only(Tensor, torch.Tensor.cpu, call["indices"])
    return _entry_by_entry(call, lambda old, new: torch.ops.aten.index_put(old, indices, new), "self", "values")


def looked_up(call: Call) -> Labels:
    """Embedding: the table is (unknown of the channel) - (unknown of the row), then rows are selected."""
    weight, indices = call["weight"], call["indices"].cpu()
    label = call.exponents.tabulated(call.label("weight"))
    return label.arranged(weight.shape, lambda array: torch.nn.functional.embedding(indices, array))


def made_of_zeros(call: Call) -> Label:
    """zeros, empty and their kin: exact zeros that no parameter has touched."""
    return ZEROS


def literal(call: Call) -> Label:
    """torch.tensor(0.0) written out in the forward pass: a zero fits every exponent."""
    return ZEROS if call.out.numel() == 1 and not bool(call.out) else call.label_of(call.first)


def constant(call: Call) -> Label:
    """full and scalar_tensor: zeros and infinities fit every exponent, other constants have exponent zero."""
    name = "fill_value" if "fill_value" in call.arguments else "s"
    return call.label(name)
