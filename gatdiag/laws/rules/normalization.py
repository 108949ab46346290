"""Rules of fused normalization layers, which are scale invariant up to their epsilon."""

from collections.abc import Sequence

import torch

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, neglect_epsilon


def _affine(call: Call, trailing: int) -> Label:
    """The label of normalized * weight + bias; both begin at the first of the last `trailing` axes of the result."""
    result = Label()
    if call.get("weight") is not None:
        result = result + _append_axes(call.label("weight"), trailing)
    if call.get("bias") is not None:
        result = call.exponents.require_equal(result, _append_axes(call.label("bias"), trailing))
    return result


def _append_axes(label: Label, trailing: int) -> Label:
    return label.map(lambda array: array.reshape(*array.shape, *(1,) * (trailing - array.ndim)))


def batch_norm(call: Call) -> Label:
    """Batch norm: a channel may have any scale, but not with running statistics."""
    ndim = call["input"].ndim
    training = call.get("training", "with_update" in call.name)
    channel = call.exponents.require_uniform(call.label("input"), [axis for axis in range(ndim) if axis != 1])
    if not training:
        call.exponents.require_zero(channel)
    neglect_epsilon(call, channel, call.get("eps", call.get("epsilon")))
    return _affine(call, ndim - 1)


def layer_norm(call: Call) -> Label:
    """Layer and RMS norm: any scale, the same along the last axes."""
    inputs = call["input"]
    shape: Sequence[int] = call["normalized_shape"]
    label = call.exponents.require_uniform(call.label("input"), range(inputs.ndim - len(shape), inputs.ndim))
    epsilon = call.get("eps")
    neglect_epsilon(call, label, torch.finfo(inputs.dtype).eps if epsilon is None else epsilon)
    return _affine(call, len(shape))


def group_norm(call: Call) -> Label:
    """Group norm: any scale, the same within each group of channels of a sample."""
    inputs, groups = call["input"], call.get("group", call.get("num_groups"))
    batch, channels = inputs.shape[:2]
    label = call.exponents.require_uniform(call.label("input"), range(2, inputs.ndim))
    label = label.map(lambda array: array.reshape(array.shape[:2]))
    label = label.rearrange(
        torch.Size((batch, channels)), lambda array: array.reshape(batch, groups, channels // groups)
    )
    label = call.exponents.require_uniform(label, [2])
    neglect_epsilon(call, label, call["eps"])
    return _affine(call, inputs.ndim - 1)


def weight_norm(call: Call) -> Label:
    """Weight norm: g * v / ||v|| with the norm over all axes but one."""
    ndim = call["v"].ndim
    call.exponents.require_uniform(call.label("v"), [other for other in range(ndim) if other != call["dim"] % ndim])
    return call.label("g")


def layer_norm_backward(call: Call) -> Label:
    """Backward pass of layer norm: gradient * weight / deviation, with one scale along the last axes.

    The forward pass, which ran before, has taken the epsilon into account.
    """
    inputs = call["input"]
    axes = range(inputs.ndim - len(call["normalized_shape"]), inputs.ndim)
    if any(call["output_mask"][1:]):
        return call.fix_scale()
    gradient = call.label("grad_out")
    if call["weight"] is not None:
        gradient = gradient + call.label("weight")
    return call.exponents.require_uniform(gradient, axes) - call.exponents.require_uniform(call.label("input"), axes)
