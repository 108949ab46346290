"""Rules of elementwise operations."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import EPSILON, HUGE, Call, Labels, Rule, neglect_epsilon

# PyG compares a standard deviation with the square root of its epsilon.
_SQRT_EPSILON = EPSILON**0.5


def homogeneous(call: Call) -> Label:
    """Positively homogeneous of degree one: f(s x) = s f(x) for s > 0, as for ReLU."""
    return call.label_of(call.first)


def inhomogeneous(call: Call) -> Label:
    """Not homogeneous (exp, tanh, ELU ...): every argument must keep its scale."""
    return call.fix_scale()


def scale_invariant(call: Call) -> Label:
    """The result does not depend on a positive scale (isnan, shapes)."""
    return Label()


def sign(call: Call) -> Label:
    """The sign does not depend on a positive scale, but that of a sum does if its summands scale differently."""
    call.exponents.resolve_mixtures(call.label_of(call.first))
    return Label()


def copysign(call: Call) -> Label:
    """copysign: the magnitude of one tensor with the sign of another."""
    call.exponents.resolve_mixtures(call.label("other"))
    return call.label("self")


def angle_of_pair(call: Call) -> Label:
    """atan2: does not depend on a common positive scale."""
    call.exponents.require_equal(call.label("self"), call.label("other"))
    return Label()


def ldexp(call: Call) -> Label:
    """ldexp: self * 2^other; the power must keep its scale."""
    call.fix_scale("other")
    return call.label("self")


def detach(call: Call) -> Label:
    """detach: a constant for the gradient, however its value scales."""
    label = call.label_of(call.first)
    return label if label.is_all_zeros else Label()


def homogeneous_of_degree(degree: Fraction | int) -> Rule:
    """Positively homogeneous: f(s x) = s^degree f(x) for s > 0."""
    return lambda call: call.label_of(call.first) * degree


def mul(call: Call) -> Label:
    """The exponents of two factors add up."""
    if call.number("other") is not None:
        return call.label("self") if call.number("other") else call.label("self").drop_zero_mask()
    return call.label("self") + call.label("other")


def div(call: Call) -> Label:
    """The exponents are subtracted; rounding fixes the scale."""
    result = call.label("self") - call.label("other") if call.number("other") is None else call.label("self")
    if call.get("rounding_mode") is not None:
        call.exponents.require_zero(result)
        return Label()
    return result


def power(call: Call) -> Label:
    """pow: the exponent is multiplied by the power, which must be a constant."""
    degree = call.number("exponent")
    fraction = Fraction(degree or 0).limit_denominator(64)
    if degree is None or abs(float(fraction) - degree) > 1e-12 or not isinstance(call["self"], Tensor):
        return call.fix_scale()
    return call.label("self") * fraction


def add(call: Call) -> Label:
    """Summands must scale alike. A tiny constant is an epsilon, which only makes laws approximate."""
    constant = call.number("other")
    if constant is None and call.number("self") is not None:
        return _add_constant(call, "other", call.number("self") or 0.0)
    if constant is not None:
        return _add_constant(call, "self", constant * (call.get("alpha") or 1))
    return call.exponents.require_equal(call.label("self"), call.label("other"))


def _add_constant(call: Call, name: str, constant: float) -> Label:
    label = call.label(name)
    if label.is_all_zeros:
        return label if constant == 0 else Label()
    return label if neglect_epsilon(call, label, constant) else Label()


def addcmul(call: Call) -> Label:
    """self + value * tensor1 * tensor2."""
    return call.exponents.require_equal(call.label("self"), call.label("tensor1") + call.label("tensor2"))


def addcdiv(call: Call) -> Label:
    """self + value * tensor1 / tensor2."""
    return call.exponents.require_equal(call.label("self"), call.label("tensor1") - call.label("tensor2"))


def lerp(call: Call) -> Label:
    """self + weight * (end - self)."""
    call.fix_scale("weight")
    return call.exponents.require_equal(call.label("self"), call.label("end"))


def maximum(call: Call) -> Label:
    """maximum, minimum or hypot of two tensors: both must scale alike."""
    return call.exponents.require_equal(call.label("self"), call.label("other"))


def where(call: Call) -> Label:
    """where(condition, self, other): both must scale alike, unless the condition tests for a zero that never occurs."""
    is_zero = call.zero_tests.get(call["condition"])
    return maximum(call) if is_zero is None else call.label("self" if is_zero else "other").drop_zero_mask()


def clamp(call: Call) -> Label:
    """A bound of zero or infinity commutes with scaling; a tiny lower bound is taken to be inactive."""
    label = call.label_of(call.first)
    for name in ("min", "max"):
        bound = call.number(name)
        if isinstance(call.get(name), Tensor) and bound is None:
            label = call.exponents.require_equal(label, call.label(name))
        elif bound is not None and not (
            bound == 0 or abs(bound) == math.inf or (name == "min" and 0 < bound <= EPSILON)
        ):
            return call.fix_scale()
    return label


def threshold(call: Call) -> Label:
    """threshold at zero, as in ReLU; any other threshold fixes the scale."""
    return homogeneous(call) if call["threshold"] == 0 and call["value"] == 0 else call.fix_scale()


def prelu(call: Call) -> Label:
    """PReLU: homogeneous in its input; the slope must keep its scale."""
    call.fix_scale("weight")
    return call.label("self")


def glu(call: Call) -> Label:
    """glu: the first half of an axis times the sigmoid of the second, which must keep its scale."""
    tensor, axis = call["self"], call["dim"] % call["self"].ndim
    half = tensor.shape[axis] // 2
    gate = call.label("self").rearrange(tensor.shape, lambda array: array.narrow(axis, half, half))
    call.exponents.require_zero(gate)
    return call.label("self").rearrange(tensor.shape, lambda array: array.narrow(axis, 0, half))


def compare(call: Call) -> Label:
    """A comparison does not depend on a common positive scale: both sides must scale alike.

    Zero and a tiny bound fit every scale. A scaled quantity is assumed never to equal another constant.
    """
    constant, name = call.number("other"), call.name.rstrip("_")
    is_equality = name in ("eq", "ne")
    if constant is None:
        call.exponents.require_equal(call.label("self"), call.label("other"))
    elif is_equality and constant == 0 and bool((call["self"] != 0).all()):
        call.zero_tests[call.out] = name == "ne"
    elif not is_equality and abs(constant) <= _SQRT_EPSILON:
        return sign(call)
    elif not is_equality and abs(constant) != float("inf"):
        call.fix_scale("self")
    return Label()


def masked_fill(call: Call) -> Label:
    """masked_fill: the value must scale as the tensor does. A hugely negative number stands for minus infinity."""
    number = call.number("value")
    if (number is not None and number <= -HUGE) or call.zero_tests.get(call["mask"]) is False:
        return call.label("self")
    return call.exponents.require_equal(call.label("self"), call.label("value"))


def cast(call: Call) -> Label:
    """A cast keeps the scale between floating types; truncation to integers does not."""
    if call.out.is_floating_point() or call.out.is_complex() or call.out.dtype == torch.bool:
        return homogeneous(call)
    return call.fix_scale()


def copy(call: Call) -> Label:
    """copy_: the label of the source."""
    return call.label("src")


def polar(call: Call) -> Label:
    """polar: the result scales as the radius; the angle must keep its scale."""
    call.fix_scale("angle")
    return call.label("abs")


def fill(call: Call) -> Label:
    """fill_ with a number or a one-entry tensor."""
    return call.label("value")


# Backward passes of operations, for models that differentiate in their forward pass (forces from an energy).


def piecewise_linear_backward(call: Call) -> Label:
    """ReLU, leaky ReLU, dropout: the incoming gradient times a slope that does not depend on a positive scale."""
    if call.get("threshold", 0) != 0:
        return call.fix_scale()
    return call.label_of(call.first)


def prelu_backward(call: Call) -> Labels:
    """PReLU: gradients of its input and of its slope, which must keep its scale."""
    call.fix_scale("weight")
    return [call.label("grad_output"), call.label("grad_output") + call.label("self")]


def inhomogeneous_backward(call: Call) -> Label:
    """Sigmoid, ELU ...: inputs and outputs must keep their scale; the incoming gradient may have any."""
    call.fix_scale(*[name for name in call.arguments if not name.startswith("grad")])
    return call.label_of(call.first)
