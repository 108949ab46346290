"""Rules of fused normalization layers. Their epsilon makes the scale invariance of what they normalize approximate."""

from collections.abc import Sequence

import torch

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, guard


def _affine(call: Call, trailing: int) -> Label:
    """normalized * weight + bias, both with their first axis where the last `trailing` ones of the result begin."""
    result = Label()
    if call.get("weight") is not None:
        result = result + _placed(call.label("weight"), trailing)
    if call.get("bias") is not None:
        result = call.exponents.equal(result, _placed(call.label("bias"), trailing))
    return result


def _placed(label: Label, trailing: int) -> Label:
    return label.map(lambda array: array.reshape(*array.shape, *(1,) * (trailing - array.ndim)))


def batch_norm(call: Call) -> Label:
    """Batch norm: with batch statistics each channel may have any scale; with running statistics it may not."""
    ndim = call["input"].ndim
    training = call.get("training", "with_update" in call.name)
    channel = call.exponents.uniform(call.label("input"), [axis for axis in range(ndim) if axis != 1])
    if not training:
        call.exponents.vanish(channel)
    guard(call, channel, call.get("eps", call.get("epsilon")))
    return _affine(call, ndim - 1)


def layer_norm(call: Call) -> Label:
    """Layer and RMS norm over the last axes: there one scale, any scale."""
    inputs = call["input"]
    shape: Sequence[int] = call["normalized_shape"]
    label = call.exponents.uniform(call.label("input"), range(inputs.ndim - len(shape), inputs.ndim))
    epsilon = call.get("eps")
    guard(call, label, torch.finfo(inputs.dtype).eps if epsilon is None else epsilon)
    return _affine(call, len(shape))


def group_norm(call: Call) -> Label:
    """Group norm: one scale, any scale, for each group of channels of each sample."""
    inputs, groups = call["input"], call.get("group", call.get("num_groups"))
    batch, channels = inputs.shape[:2]
    label = call.exponents.uniform(call.label("input"), range(2, inputs.ndim))
    label = label.map(lambda array: array.reshape(array.shape[:2]))
    label = label.arranged(
        torch.Size((batch, channels)), lambda array: array.reshape(batch, groups, channels // groups)
    )
    label = call.exponents.uniform(label, [2])
    guard(call, label, call["eps"])
    return _affine(call, inputs.ndim - 1)


def weight_norm(call: Call) -> Label:
    """g * v / ||v|| with the norm over all axes but one."""
    ndim = call["v"].ndim
    call.exponents.uniform(call.label("v"), [other for other in range(ndim) if other != call["dim"] % ndim])
    return call.label("g")


def layer_norm_backward(call: Call) -> Label:
    """Backward pass of layer norm: (what comes back, times the gain) / (deviation), one scale over the last axes.

    The forward pass, which ran before, has seen the epsilon.
    """
    inputs = call["input"]
    axes = range(inputs.ndim - len(call["normalized_shape"]), inputs.ndim)
    if any(call["output_mask"][1:]):
        return call.vanish()
    coming = call.label("grad_out")
    if call["weight"] is not None:
        coming = coming + call.label("weight")
    return call.exponents.uniform(coming, axes) - call.exponents.uniform(call.label("input"), axes)
