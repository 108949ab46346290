"""Rules of operations that send entries to places given by an index: message passing."""

import torch
from torch import Tensor

from gatdiag.laws.label import Label, shrink, written
from gatdiag.laws.rules import arrangement
from gatdiag.laws.rules.call import HUGE, Call


def scattered(call: Call) -> Label:
    """scatter, scatter_add, scatter_reduce, index_add, index_copy, index_reduce along one axis."""
    target = call["self"]
    if call.get("reduce") in ("prod", "multiply"):
        return call.vanish()
    name = "src" if "src" in call.arguments else "source"
    if not isinstance(call.get(name), Tensor):
        return call.exponents.equal(call.label("self"), call.label("value"))
    source = call.exponents.uniform(_used(call, name), [call["dim"] % target.ndim])
    replaces = call.name in ("scatter", "scatter_") and call.get("reduce") is None
    if not call.get("include_self", not replaces):
        return _over(call, source)
    base = call.exponents.uniform(call.label("self"), [call["dim"] % target.ndim])
    return call.exponents.equal(base, source)


def _used(call: Call, name: str) -> Label:
    """The part of the source that an index tensor covers; beside it, nothing arrives."""
    source, target, axis = call[name], call["self"], call["dim"] % call["self"].ndim
    label = call.label(name)
    if name == "source":
        return label
    covered = call["index"].shape
    wanted = torch.Size((*target.shape[:axis], covered[axis], *target.shape[axis + 1 :]))
    if covered == source.shape and (covered == wanted or not label.changes_along(range(target.ndim))):
        return label
    beside = [pad for have, want in zip(covered[::-1], wanted[::-1], strict=True) for pad in (0, want - have)]
    inside = tuple(map(slice, covered))
    ids, absent = (array[inside] for array in call.exponents.written_out(label, source.shape))
    pad = torch.ops.aten.constant_pad_nd
    return written(pad(ids, beside, 0), pad(absent, beside, True))


def _over(call: Call, source: Label) -> Label:
    """Label of a target that is replaced where something arrives."""
    target, untouched = call["self"], _untouched(call)
    if not bool(untouched.any()):
        return source
    base = call.label("self")
    is_infinite = bool((target.detach().cpu()[untouched].abs() >= HUGE).all())  # a number that stands for infinity
    kept = shrink(untouched)
    ids = torch.where(kept, call.exponents.collapse(base.present()), call.exponents.collapse(source.present()))
    return written(ids, torch.where(kept, base.mask | is_infinite, source.mask))


def _untouched(call: Call) -> Tensor:
    """Mask of the places where nothing arrives."""
    untouched = torch.ones(call["self"].shape, dtype=torch.bool)
    spread = untouched.scatter_ if "src" in call.arguments else untouched.index_fill_
    return spread(call["dim"], call["index"].cpu(), False)


def placed(call: Call) -> Label:
    """index_put: values written or added at places given by index tensors."""
    target, values, indices = call["self"], call["values"], list(call["indices"])
    used = [axis for axis, index in enumerate(indices) if index is not None]
    places = [indices[axis] for axis in used]
    width = 1 if places[0].dtype == torch.bool else max(index.ndim for index in places)
    ndim = target.ndim - sum(index.ndim if index.dtype == torch.bool else 1 for index in places) + width
    adjacent = used == list(range(used[0], used[-1] + 1))
    if not adjacent or values.ndim > ndim:
        return call.vanish("self", "values")
    base, source = call.label("self"), call.label("values").aligned(ndim)
    arriving = range(used[0], used[0] + width)
    if not call["accumulate"] and (base.changes_along(used) or source.changes_along(arriving)):
        return arrangement.overwritten(call)
    source = call.exponents.uniform(source, arriving)
    flat = (1,) * (target.ndim - ndim + width)
    source = source.map(lambda array: array.reshape(array.shape[: used[0]] + flat + array.shape[used[0] + width :]))
    return call.exponents.equal(call.exponents.uniform(base, range(used[0], used[0] + len(flat))), source)


def segmented(call: Call) -> Label:
    """segment_reduce: the first axis must scale alike."""
    if call.get("reduce") == "prod" or call.get("initial") not in (None, 0):
        return call.vanish()
    return call.exponents.uniform(call.label_of(call.first), [call.get("axis", 0)])


def sparse_from_values(call: Call) -> Label:
    """A sparse matrix made of labeled values: they must all scale alike."""
    label = call.lumped(call.label("values"), range(call["values"].ndim))
    return label.map(lambda array: array.reshape(()))
