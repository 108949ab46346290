"""Rules of operations that combine entries along axes: all of them must scale alike there."""

import re
from fractions import Fraction

from torch import Tensor

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, Labels, Rule


def reduced(call: Call) -> Label:
    """Maximum, median ... along axes."""
    return _squeezed(call, call.exponents.uniform(call.label_of(call.first), call.axes()))


def summed(call: Call) -> Label:
    """Sum, mean or norm along axes: summands that scale differently are allowed as long as that cancels later."""
    if 0 in (call.get("p"), call.get("ord")):  # the number of entries that are not zero
        return Label()
    return _squeezed(call, call.exponents.total(call.label_of(call.first), call.axes(), is_spread=call.out.numel() > 1))


def _squeezed(call: Call, label: Label) -> Label:
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    return label if out.ndim == call.first.ndim else label.map(lambda array: array.squeeze(call.axes()))


def extremes(call: Call) -> Labels:
    """aminmax: smallest and largest."""
    return [reduced(call)] * 2


def spread(degree: int | Fraction) -> Rule:
    """Variance (degree two) and standard deviation along axes, and the mean where that is returned with them."""

    def rule(call: Call) -> Labels:
        label = reduced(call)
        return [label.scaled(degree), label]

    return rule


def along_axis(call: Call) -> Label:
    """Running sums, softmax-like scans, sorting: the axis stays, with one exponent along it."""
    return call.exponents.uniform(call.label_of(call.first), call.axes())


def positions(call: Call) -> Labels:
    """argmax, argsort: the result has no scale, but the entries compared must scale alike."""
    along_axis(call)
    return Label()


def multiplied(call: Call) -> Label:
    """prod: the exponents of the factors add up."""
    label = call.label_of(call.first)
    for axis in call.axes():
        label = call.exponents.resolve(added_along(label, axis, call.first.shape[axis]))
    return _squeezed(call, label)


def added_along(label: Label, axis: int, length: int) -> Label:
    """The sum of the exponents along an axis, which is left with length one."""
    terms: list[tuple[Fraction, Tensor]] = []
    for coefficient, ids in label.terms:
        if ids.shape[axis] == 1:
            terms.append((coefficient * length, ids))
        else:
            terms += [(coefficient, piece) for piece in ids.split(1, axis)]
    return Label(tuple(terms), None if label.zeros is None else label.zeros.any(axis, keepdim=True))


def lumped_first(call: Call) -> Label:
    """Linear in the first tensor, but not followed in detail: all of its entries must scale alike."""
    return call.lumped(call.label_of(call.first), range(call.first.ndim)).map(lambda array: array.reshape(()))


def pooled(call: Call) -> Label:
    """Pooling over the spatial axes of an image or a sequence: batch and channel axes keep their exponents."""
    dimensions = re.search(r"(\d)d", call.name)
    count = int(dimensions[1]) if dimensions else call.first.ndim
    return call.lumped(call.label_of(call.first), range(call.first.ndim)[-count:])


def distance(call: Call) -> Label:
    """cdist: |x_i - y_j| over the last axis."""
    left, right = (call.exponents.uniform(call.label(name), [call[name].ndim - 1]) for name in ("x1", "x2"))
    return call.exponents.equal(left, right.map(lambda array: array.transpose(-1, -2)))


def softmax_backward(call: Call) -> Label:
    """Backward pass of softmax and its logarithm: what comes back is mixed along the axis."""
    call.vanish("output")
    return along_axis(call)
