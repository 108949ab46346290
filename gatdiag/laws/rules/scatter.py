"""Rules of operations that send entries to places given by an index: message passing."""

import torch
from torch import Tensor

from gatdiag.laws.label import Label
from gatdiag.laws.rules import arrangement
from gatdiag.laws.rules.call import Call, Labels


def _sent(call: Call, source: Label, ndim: int, axis: int) -> Label:
    """The label of what arrives: entries along the axis end up together or side by side, so they must scale alike."""
    return call.exponents.uniform(source.aligned(ndim), [axis % ndim])


def scattered(call: Call) -> Label:
    """scatter, scatter_add, scatter_reduce, index_add, index_copy, index_reduce along one axis."""
    target = call["self"]
    if call.get("reduce") in ("prod", "multiply"):
        return call.vanish()
    name = "src" if "src" in call.arguments else "source"
    if name not in call.arguments or not isinstance(call[name], Tensor):
        return call.exponents.equal(call.label("self"), call.label("value"))
    source = _sent(call, call.label(name), target.ndim, call["dim"])
    base = call.exponents.uniform(call.label("self").aligned(target.ndim), [call["dim"] % target.ndim])
    return call.exponents.equal(base, source)


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
    base, source = call.label("self").aligned(target.ndim), call.label("values").aligned(ndim)
    arriving = range(used[0], used[0] + width)
    if not call["accumulate"] and (base.changes_along(used) or source.changes_along(arriving)):
        return arrangement.overwritten(call)
    source = call.exponents.uniform(source, arriving)
    flat = (1,) * (target.ndim - ndim + width)
    source = source.map(lambda array: array.reshape(array.shape[: used[0]] + flat + array.shape[used[0] + width :]))
    return call.exponents.equal(call.exponents.uniform(base, range(used[0], used[0] + len(flat))), source)


def masked_from(call: Call) -> Label:
    """masked_scatter: entries of the source in order, wherever the mask is true."""
    source = call.exponents.uniform(call.label("source").aligned(call["source"].ndim), range(call["source"].ndim))
    return call.exponents.equal(call.label("self"), source.map(lambda array: array.reshape(())))


def segmented(call: Call) -> Labels:
    """segment_reduce and library kernels that reduce runs of rows: the first axis must scale alike."""
    first = call.first
    if call.get("reduce") == "prod" or call.get("initial") not in (None, 0):
        return call.vanish()
    label = call.exponents.uniform(call.label_of(first).aligned(first.ndim), [call.get("axis", 0)])
    if isinstance(call.out, list | tuple):
        return [label] + [None] * (len(call.out) - 1)
    return label


def bagged(call: Call) -> Labels:
    """embedding_bag: sums of rows of the table."""
    weight = call["weight"]
    label = call.exponents.uniform(call.label("weight").aligned(weight.ndim), [0])
    return [label, None, None, None]


def sparse_from_values(call: Call) -> Label:
    """A sparse matrix made of labelled values: they must all scale alike."""
    values = call["values"]
    label = call.exponents.uniform(call.label("values").aligned(values.ndim), range(values.ndim))
    return label.map(lambda array: array.reshape(()))
