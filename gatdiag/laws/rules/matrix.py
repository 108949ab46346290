"""Rules of products that sum over an index: matrix products, convolutions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from gatdiag.laws.label import Label, Rearrange
from gatdiag.laws.rules.arrangement import concatenate
from gatdiag.laws.rules.call import Call, Labels, Rule


def contract(call: Call, left: Tensor, right: Tensor) -> Label:
    """left @ right, summed over the last axis of `left`; either may be a vector."""
    has_rows, has_columns = left.ndim > 1, right.ndim > 1
    first = call.factor(left, -1, call.label_of(right))
    second = call.factor(right, -2 if has_columns else -1, first)
    first = first if has_rows else first.map(lambda array: array.unsqueeze(0))
    second = second if has_columns else second.map(lambda array: array.unsqueeze(-1))
    ndim = max(left.ndim, right.ndim, 2)
    both = first.map(lambda array: array.unsqueeze(-1)) + second.map(lambda array: array.unsqueeze(-3))
    label = call.exponents.require_uniform(both.with_ndim(ndim + 1), [ndim - 1])
    squeezed = [ndim - 1, *([] if has_columns else [ndim]), *([] if has_rows else [ndim - 2])]
    return label.map(lambda array: array.squeeze(squeezed))


def matmul(call: Call) -> Label:
    """mm, bmm, mv and dot, dense or sparse."""
    return contract(call, *call.tensors()[:2])


def addmm(call: Call) -> Label:
    """addmm, baddbmm and addmv: beta * self + alpha * product."""
    shift, left, right = call.tensors()[:3]
    result = contract(call, left, right)
    if call.get("beta") == 0:
        return result
    return call.exponents.require_equal(result, call.label_of(shift))


def linear(call: Call) -> Label:
    """input @ weight^T + bias."""
    features = call.factor(call["input"], -1, call.label("weight"))
    both = features.map(lambda array: array.unsqueeze(-2)) + call.label("weight")
    axis = call["input"].ndim
    result = call.exponents.require_uniform(both, [axis]).map(lambda array: array.squeeze(axis))
    if call.get("bias") is None:
        return result
    return call.exponents.require_equal(result, call.label("bias"))


def attention(call: Call) -> Label:
    """Fused attention, softmax(query @ key^T + mask) @ value: scores must keep their scale."""
    query, key, value = call["query"], call["key"], call["value"]
    left = call.factor(query, -1, call.label_of(key))
    right = call.factor(key, -1, left)
    both = left.map(lambda array: array.unsqueeze(-2)) + right.map(lambda array: array.unsqueeze(-3))
    scores = call.exponents.require_uniform(both, [query.ndim]).map(lambda array: array.squeeze(-1))
    call.exponents.require_zero(scores)
    for name in ("attn_mask", "attn_bias"):
        if isinstance(call.get(name), Tensor):
            call.fix_scale(name)
    return call.exponents.require_uniform(call.label_of(value), [value.ndim - 2])


def mkldnn_recurrent(call: Call) -> Labels:
    """A recurrent layer in one direction as one operation."""
    weights = [call[f"weight{number}"] for number in range(4 if call["has_biases"] else 2)]
    return _recurrent(call, [[weights]], "hx_", "cx_")


def cudnn_recurrent(call: Call) -> Labels:
    """A recurrent network as one operation: stacked layers, in one or both directions."""
    width, directions = call["weight_stride0"], 1 + int(call["bidirectional"])
    single = [call["weight"][start : start + width] for start in range(0, len(call["weight"]), width)]
    layers = [single[start : start + directions] for start in range(0, len(single), directions)]
    return _recurrent(call, layers, "hx", "cx")


def _recurrent(call: Call, layers: Sequence[Sequence[Sequence[Tensor]]], state: str, cell: str) -> Labels:
    """Labels of the results and of the last states.

    What a step returns is the state of the next, so the first state scales as the results do, even if there is one step
    only. Gates and tanh fix what they are applied to; so only a ReLU network, or a projection, has states of any scale.

    Args:
        call: The operation.
        layers: The weights of each layer and direction: of inputs, of states, biases, projection.
        state: The name of the first states.
        cell: The name of the first states of the cells of an LSTM.
    """
    if call.get(cell) is not None:
        call.fix_scale(cell)
    label, ndim, states = call.label("input"), call["input"].ndim, list[Label]()
    for weights in layers:
        found = [_recur(call, ndim, label, of_direction) for of_direction in weights]
        width = call.out[0].shape[-1] // len(weights)
        shape = torch.Size((*(1,) * (ndim - 1), width))
        label = found[0] if len(found) == 1 else concatenate(call, [(one, shape) for one in found], ndim - 1)
        states += [one.map(lambda array: array.reshape(1, 1, array.shape[-1])) for one in found]
    last = concatenate(call, [(one, torch.Size((1, 1, width))) for one in states], 0)
    last = last.map(lambda array: array.reshape(array.shape[3 - call[state].ndim :]))
    return [label, call.exponents.require_equal(call.label(state), last)]


def _recur(call: Call, ndim: int, inputs: Label, weights: Sequence[Tensor]) -> Label:
    """The label of a layer's results in one direction, given its weights: of inputs, of states, biases, projection."""
    of_inputs, of_states, *rest = map(call.label_of, weights)
    before = _multiply_transposed(call, inputs, of_inputs)
    if call["mode"]:  # not ReLU
        call.exponents.require_zero(before)
    steps = call.exponents.require_uniform(before.with_ndim(ndim), range(ndim - 1))
    state = steps if not call["mode"] else Label()
    projections = [label for label, weight in zip(rest, weights[2:], strict=True) if weight.ndim == 2]
    for label in projections:
        state = _multiply_transposed(call, state, label)
    for label in [*(label for label in rest if label not in projections), _multiply_transposed(call, state, of_states)]:
        call.exponents.require_equal(steps, label)
    return state


def _multiply_transposed(call: Call, inputs: Label, weight: Label) -> Label:
    both = inputs.map(lambda array: array.unsqueeze(-2)) + weight
    return call.exponents.require_uniform(both, [both.ndim - 1]).map(lambda array: array.squeeze(-1))


def convolution(call: Call) -> Label:
    """Plain, grouped or transposed convolution: (batch, groups, out, in, kernel ...), summed over in and kernel.

    Without a bias, exponents that grow along a spatial axis as those of the kernel fall would do, too.
    """
    inputs, weight, groups = call["input"], call["weight"], call["groups"]
    spatial = inputs.ndim - 2
    batch, channels = inputs.shape[:2]
    features = call.coarsen(call.factor(inputs, 1, call.label("weight")), range(2, inputs.ndim))
    features = features.rearrange(
        torch.Size((batch, channels, *(1,) * spatial)),
        lambda array: array.reshape(batch, groups, 1, channels // groups, *(1,) * spatial),
    )
    filters = call.label("weight").rearrange(weight.shape, _split_groups(call))
    both = call.exponents.require_uniform((features + filters).with_ndim(4 + spatial), range(3, 4 + spatial))
    width = call.out.shape[1]
    result = both.rearrange(
        torch.Size((batch, groups, width // groups, *(1,) * (1 + spatial))),
        lambda array: array.reshape(batch, width, *(1,) * spatial),
    )
    if call.get("bias") is None:
        return result
    bias = call.label("bias").map(lambda array: array.reshape(-1, *(1,) * spatial))
    return call.exponents.require_equal(result, bias)


def _split_groups(call: Call) -> Rearrange:
    """Reshape a convolution's weight to (groups, out, in, kernel ...)."""
    weight, groups = call["weight"], call["groups"]
    outer, inner, *kernel = weight.shape
    if call["transposed"]:
        return lambda array: array.reshape(groups, outer // groups, inner, *kernel).transpose(1, 2)
    return lambda array: array.reshape(groups, outer // groups, inner, *kernel)


def trilinear(call: Call) -> Label:
    """The product in nn.Bilinear: three factors, each with its own expanded axes, summed over some axes."""
    whole, axes = Label(), sorted(call["sumdim"])
    for position in (1, 2, 3):
        label = call.label(f"i{position}")
        for axis in sorted(call[f"expand{position}"]):
            label = label.map(partial(torch.unsqueeze, dim=axis))
        whole = whole + label
    return call.exponents.require_uniform(whole, axes).map(lambda array: array.squeeze(axes))


def outer(call: Call) -> Label:
    """ger: x_i y_j."""
    return _outer(call, *call.tensors()[:2])


def _outer(call: Call, first: Tensor, second: Tensor) -> Label:
    return call.label_of(first).map(lambda array: array.unsqueeze(-1)) + call.label_of(second)


def addr(call: Call) -> Label:
    """addr: self + x_i y_j."""
    result = _outer(call, call["vec1"], call["vec2"])
    return result if call.get("beta") == 0 else call.exponents.require_equal(result, call.label("self"))


def addbmm(call: Call) -> Label:
    """addbmm: self + the sum of a batch of products."""
    product = call.exponents.require_uniform(contract(call, call["batch1"], call["batch2"]), [0])
    product = product.map(lambda array: array.squeeze(0))
    return product if call.get("beta") == 0 else call.exponents.require_equal(product, call.label("self"))


def cross(call: Call) -> Label:
    """Cross product along an axis: x_1 y_2 - x_2 y_1 and so on."""
    ndim = call.out.ndim
    axis = call["dim"] % ndim
    left, right = (call.label(name).with_ndim(ndim) for name in ("self", "other"))

    def turn(label: Label, steps: int) -> Label:
        return label.map(lambda array: array.roll(-steps, axis))

    return call.exponents.require_equal(turn(left, 1) + turn(right, 2), turn(left, 2) + turn(right, 1))


def of_matrix(*degrees: int | Fraction) -> Rule:
    """Functions of a whole matrix that are homogeneous, with the degree of each result: inverse, decompositions."""

    def rule(call: Call) -> Labels:
        ndim = call.first.ndim
        label = call.coarsen(call.label_of(call.first), [ndim - 2, ndim - 1])

        def fit(result: Tensor) -> Label:
            return label.map(lambda array: array.reshape(array.shape[: ndim - 2] + (1,) * (result.ndim - ndim + 2)))

        return [fit(result) * degree for result, degree in zip(call.results, degrees, strict=False)]

    return rule
