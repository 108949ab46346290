"""Rules of reductions: the entries that are combined must scale alike."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, Labels, Rule


def reduce(call: Call) -> Label:
    """Maximum, median ... along axes."""
    return _squeeze(call, call.exponents.require_uniform(call.label_of(call.first), call.axes()))


def sum_or_norm(call: Call) -> Label:
    """Sum, mean or norm along axes: summands may scale differently as long as that cancels later."""
    if 0 in (call.get("p"), call.get("ord")):  # the number of entries that are not zero
        return Label()
    label = call.exponents.sum(call.label_of(call.first), call.axes(), has_many_entries=call.out.numel() > 1)
    return _squeeze(call, label)


def _squeeze(call: Call, label: Label) -> Label:
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return label if out.ndim == call.first.ndim else label.map(lambda array: array.squeeze(call.axes()))


def aminmax(call: Call) -> Labels:
    """aminmax returns two results of the same scale."""
    return [reduce(call)] * 2


def variance(degree: int | Fraction) -> Rule:
    """Variance (degree 2) or standard deviation (degree 1) along axes; some operations also return the mean."""

    def rule(call: Call) -> Labels:
        label = reduce(call)
        return [label * degree, label]

    return rule


def scan(call: Call) -> Label:
    """Running sums, sorting, Fourier transforms: the axis stays, with one exponent along it."""
    return call.exponents.require_uniform(call.label_of(call.first), call.axes())


def argmax(call: Call) -> Labels:
    """argmax, argsort: the result has no scale, but the compared entries must scale alike."""
    scan(call)
    return Label()


def prod(call: Call) -> Label:
    """prod: the exponents of the factors add up."""
    label = call.label_of(call.first)
    for axis in call.axes():
        label = call.exponents.resolve(sum_exponents(label, axis, call.first.shape[axis]))
    return _squeeze(call, label)


def sum_exponents(label: Label, axis: int, length: int) -> Label:
    """Sum the exponents along an axis, which is kept with length one."""
    terms: list[tuple[Fraction, Tensor]] = []
    for coefficient, ids in label.terms:
        if ids.shape[axis] == 1:
            terms.append((coefficient * length, ids))
        else:
            terms += [(coefficient, piece) for piece in ids.split(1, axis)]
    return Label(tuple(terms), None if label.zeros is None else label.zeros.any(axis, keepdim=True))


def coarse_linear(call: Call) -> Label:
    """Operations linear in the first tensor that are not modeled in detail: all of its entries must scale alike."""
    return call.coarsen(call.label_of(call.first), range(call.first.ndim)).map(lambda array: array.reshape(()))


def pool(call: Call) -> Label:
    """Pooling over the spatial axes; batch and channels keep their exponents."""
    return call.coarsen(call.label_of(call.first), call.spatial_axes())


def grid_sample(call: Call) -> Label:
    """grid_sampler: interpolation at places that must keep their scale."""
    call.fix_scale("grid")
    return pool(call)


def col2im(call: Call) -> Label:
    """col2im: windows are summed where they overlap; all entries of a channel must scale alike."""
    tensor, kernel = call["self"], call["kernel_size"]
    label = call.coarsen(call.label("self"), [tensor.ndim - 1])
    label = label.rearrange(
        torch.Size((*tensor.shape[:-1], 1)), lambda array: array.reshape(*array.shape[:-2], -1, math.prod(kernel))
    )
    return call.coarsen(label, [tensor.ndim - 1]).map(lambda array: array.unsqueeze(-1))


def order(call: Call) -> Label:
    """searchsorted, bucketize, isin: all numbers that are compared must scale alike."""
    tensors = call.tensors()[:2]
    if len(tensors) < 2:  # with a number
        return call.fix_scale()
    left, right = (
        call.exponents.require_uniform(call.label_of(tensor), range(tensor.ndim)).map(lambda array: array.reshape(()))
        for tensor in tensors
    )
    call.exponents.require_equal(left, right)
    return Label()


def squared_error(call: Call) -> Label:
    """mse_loss: squared differences, one by one or summed or averaged."""
    label = call.exponents.require_equal(call.label("self"), call.label("target")) * 2
    if not call["reduction"]:
        return label
    return call.exponents.require_uniform(label, range(label.ndim)).map(lambda array: array.reshape(()))


def pdist(call: Call) -> Label:
    """pdist: distances between all rows."""
    if call["p"] == 0:
        return call.fix_scale()
    return call.exponents.require_uniform(call.label("self"), [0, 1]).map(lambda array: array.reshape(1))


def cdist(call: Call) -> Label:
    """cdist: ||x_i - y_j|| over the last axis."""
    if call.get("p") == 0:  # the number of entries that differ
        return call.fix_scale()
    left, right = (call.exponents.require_uniform(call.label(name), [call[name].ndim - 1]) for name in ("x1", "x2"))
    return call.exponents.require_equal(left, right.map(lambda array: array.transpose(-1, -2)))


def softmax_backward(call: Call) -> Label:
    """Backward pass of softmax and log_softmax: the incoming gradient is mixed along the axis."""
    call.fix_scale("output")
    return scan(call)
