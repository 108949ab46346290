"""Rules of fused normalization layers. Their epsilon makes the scale invariance of what they normalize approximate."""

from collections.abc import Sequence

import torch

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import EPSILON, Call, Labels


def _guarded(call: Call, label: Label, epsilon: float) -> None:
    if epsilon > EPSILON:
        call.exponents.vanish(label)
    elif epsilon > 0:
        call.exponents.approximate(label)


def _affine(call: Call, normalized: Label, ndim: int, lead: int) -> Label:
    """normalized * weight + bias, both with their first axis at axis `lead` of the result."""
    result = normalized
    trailing = ndim - lead
    if call.get("weight") is not None:
        result = result + _placed(call.label("weight"), call["weight"].ndim, trailing)
    if call.get("bias") is not None:
        result = call.exponents.equal(result, _placed(call.label("bias"), call["bias"].ndim, trailing))
    return result


def _placed(label: Label, ndim: int, trailing: int) -> Label:
    return label.aligned(ndim).map(lambda array: array.reshape(*array.shape, *(1,) * (trailing - ndim)))


def batch_norm(call: Call) -> Labels:
    """Batch norm: with batch statistics each channel may have any scale; with running statistics it may not."""
    inputs = call["input"]
    label = call.label("input").aligned(inputs.ndim)
    training = call.get("training", "with_update" in call.function._schema.name)
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    channel = call.exponents.uniform(label, axes)
    if not training:
        call.exponents.vanish(channel)
    _guarded(call, channel, call.get("eps", call.get("epsilon")))
    result = _affine(call, Label(), inputs.ndim, 1)
    return _with_statistics(call, result)


def _with_statistics(call: Call, result: Label) -> Labels:
    return [result] + [None] * (len(call.results) - 1)


def layer_norm(call: Call) -> Labels:
    """Layer and RMS norm over the last axes: there one scale, any scale."""
    inputs = call["input"]
    shape: Sequence[int] = call["normalized_shape"]
    lead = inputs.ndim - len(shape)
    label = call.exponents.uniform(call.label("input").aligned(inputs.ndim), range(lead, inputs.ndim))
    epsilon = call.get("eps")
    _guarded(call, label, torch.finfo(inputs.dtype).eps if epsilon is None else epsilon)
    return _with_statistics(call, _affine(call, Label(), inputs.ndim, lead))


def group_norm(call: Call) -> Labels:
    """Group norm: one scale, any scale, for each group of channels of each sample."""
    inputs, groups = call["input"], call.get("group", call.get("num_groups"))
    batch, channels = inputs.shape[:2]
    label = call.exponents.uniform(call.label("input").aligned(inputs.ndim), range(2, inputs.ndim))
    label = label.map(lambda array: array.reshape(array.shape[:2]))
    label = label.arranged(
        torch.Size((batch, channels)), lambda array: array.reshape(batch, groups, channels // groups)
    )
    label = call.exponents.uniform(label, [2])
    _guarded(call, label, call["eps"])
    return _with_statistics(call, _affine(call, Label(), inputs.ndim, 1))


def weight_norm(call: Call) -> Labels:
    """g * v / ||v|| with the norm over all axes but one."""
    direction, axis = call["v"], call["dim"] % call["v"].ndim
    axes = [other for other in range(direction.ndim) if other != axis]
    call.exponents.uniform(call.label("v").aligned(direction.ndim), axes)
    return [call.label("g"), None]


def layer_norm_backward(call: Call) -> Labels:
    """Backward pass of layer norm: (what comes back, times the gain) / (deviation), one scale over the last axes.

    The forward pass, which ran before, has seen the epsilon.
    """
    inputs = call["input"]
    axes = range(inputs.ndim - len(call["normalized_shape"]), inputs.ndim)
    if any(wanted for wanted in call["output_mask"][1:]):
        return [call.vanish(), None, None]
    coming = call.label("grad_out").aligned(inputs.ndim)
    if call["weight"] is not None:
        coming = coming + call.label("weight")
    size = call.exponents.uniform(call.label("input").aligned(inputs.ndim), axes)
    return [call.exponents.uniform(coming, axes) - size, None, None]
