"""Rules of operations that write entries to positions given by an index: message passing."""

import torch
from torch import Tensor

from gatdiag.laws.label import Label, shrink
from gatdiag.laws.rules import arrangement
from gatdiag.laws.rules.call import HUGE, Call


def scatter(call: Call) -> Label:
    """scatter, scatter_add, scatter_reduce, index_add, index_fill, index_reduce along one axis."""
    target = call["self"]
    if call.get("reduce") in ("prod", "multiply"):
        return call.fix_scale()
    name = "src" if "src" in call.arguments else "source"
    if not isinstance(call.get(name), Tensor):
        return call.exponents.require_equal(call.label("self"), call.label("value"))
    source = call.exponents.require_uniform(_covered_source(call, name), [call["dim"] % target.ndim])
    is_replaced = call.name in ("scatter", "scatter_") and call.get("reduce") is None
    if is_replaced and source.terms and _overwrites_itself(call):  # the gradient is not that of the function
        return call.fix_scale()
    if not call.get("include_self", not is_replaced):
        return _overwrite(call, source)
    base = call.exponents.require_uniform(call.label("self"), [call["dim"] % target.ndim])
    return call.exponents.require_equal(base, source)


def _covered_source(call: Call, name: str) -> Label:
    """The label of the part of the source that the index covers, padded with zeros to the target's other axes."""
    source, target, axis = call[name], call["self"], call["dim"] % call["self"].ndim
    label = call.label(name)
    if name == "source":
        return label
    covered = call["index"].shape
    wanted = torch.Size((*target.shape[:axis], covered[axis], *target.shape[axis + 1 :]))
    if covered == source.shape and (covered == wanted or not label.changes_along(range(target.ndim))):
        return label
    padding = [pad for have, want in zip(covered[::-1], wanted[::-1], strict=True) for pad in (0, want - have)]
    inside = tuple(map(slice, covered))
    ids, zeros = (array[inside] for array in call.exponents.to_entries(label, source.shape))
    pad = torch.ops.aten.constant_pad_nd
    return Label.from_entries(pad(ids, padding, 0), pad(zeros, padding, True))


def _overwrite(call: Call, source: Label) -> Label:
    """The label of a target whose entries are replaced where the index writes."""
    target, untouched, base = call["self"], _untouched(call), call.label("self")
    is_covered = not bool(untouched.any())
    if not call.is_constant(call["index"]) and (base.terms or not is_covered):
        is_filler = base.is_all_zeros or bool((target.detach().abs() >= HUGE).all())
        return source if is_filler else call.exponents.require_equal(base, source)
    if is_covered:
        return source
    is_infinite = bool((target.detach().cpu()[untouched].abs() >= HUGE).all())  # a number that stands for infinity
    is_kept = shrink(untouched)
    before, after = (call.exponents.collapse(label.drop_zero_mask()) for label in (base, source))
    ids = torch.where(is_kept, before, after)
    return Label.from_entries(ids, torch.where(is_kept, base.zero_mask | is_infinite, source.zero_mask))


def _overwrites_itself(call: Call) -> bool:
    """Whether an index has an entry twice, so that one value replaces another."""
    axis = call["dim"] % call["self"].ndim
    written = call["index"].sort(axis).values
    return bool((written.diff(dim=axis) == 0).any())


def _untouched(call: Call) -> Tensor:
    """Mask of the entries of the target that the index does not write to."""
    untouched = torch.ones(call["self"].shape, dtype=torch.bool)
    write = untouched.scatter_ if "src" in call.arguments else untouched.index_fill_
    return write(call["dim"], call["index"].cpu(), False)


def index_put(call: Call) -> Label:
    """index_put: values written or added at positions given by index tensors."""
    target, values, indices = call["self"], call["values"], list(call["indices"])
    used = [axis for axis, index in enumerate(indices) if index is not None]
    given = [indices[axis] for axis in used]
    width = 1 if given[0].dtype == torch.bool else max(index.ndim for index in given)
    ndim = target.ndim - sum(index.ndim if index.dtype == torch.bool else 1 for index in given) + width
    are_adjacent = used == list(range(used[0], used[-1] + 1))
    if not are_adjacent or values.ndim > ndim:
        return call.fix_scale("self", "values")
    base, source = call.label("self"), call.label("values").with_ndim(ndim)
    index_axes = range(used[0], used[0] + width)
    replaces = not call["accumulate"] and (base.changes_along(used) or source.changes_along(index_axes))
    if replaces and all(map(call.is_constant, given)):
        return arrangement.index_put(call)
    source = call.exponents.require_uniform(source, index_axes)
    flat = (1,) * (target.ndim - ndim + width)
    source = source.map(lambda array: array.reshape(array.shape[: used[0]] + flat + array.shape[used[0] + width :]))
    base = call.exponents.require_uniform(base, range(used[0], used[0] + len(flat)))
    return call.exponents.require_equal(base, source)


def segment_reduce(call: Call) -> Label:
    """segment_reduce: the entries along the axis must scale alike."""
    if call.get("reduce") == "prod" or call.get("initial") not in (None, 0):
        return call.fix_scale()
    return call.exponents.require_uniform(call.label_of(call.first), [call.get("axis", 0)])


def sparse_from_values(call: Call) -> Label:
    """A sparse matrix made from labeled values, which must all scale alike."""
    label = call.coarsen(call.label("values"), range(call["values"].ndim))
    return label.map(lambda array: array.reshape(()))
