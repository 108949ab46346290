"""Rules of operations that treat every entry by itself."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import EPSILON, HUGE, Call, Labels, Rule, guard

# PyG's standard deviation is compared with the square root of its guard.
_SQRT_EPSILON = EPSILON**0.5


def same(call: Call) -> Label:
    """Positively homogeneous of degree one: f(s x) = s f(x) for s > 0, as for ReLU."""
    return call.label_of(call.first)


def fixed(call: Call) -> Label:
    """Not homogeneous (exp, tanh, ELU ...): every argument must keep its scale."""
    return call.vanish()


def unscaled(call: Call) -> Label:
    """Does not see a positive scale at all: sign, is it nan, which shape."""
    return Label()


def stopped(call: Call) -> Label:
    """detach: for the gradient it is a constant, whatever the value scales like."""
    label = call.label_of(call.first)
    return label if label.is_zero else Label()


def power_of(exponent: Fraction | int) -> Rule:
    """Homogeneous of the given degree."""
    return lambda call: call.label_of(call.first).scaled(exponent)


def product(call: Call) -> Label:
    """Exponents of factors add."""
    if call.number("other") is not None:
        return call.label("self") if call.number("other") else call.label("self").present()
    return call.label("self") + call.label("other")


def quotient(call: Call) -> Label:
    """Exponents of a quotient subtract; rounding it fixes the scale."""
    result = call.label("self") - call.label("other") if call.number("other") is None else call.label("self")
    if call.get("rounding_mode") is not None:
        call.exponents.vanish(result)
        return Label()
    return result


def power(call: Call) -> Label:
    """A power multiplies the exponent by the power, which must itself be a constant."""
    degree = call.number("exponent")
    simple = Fraction(degree or 0).limit_denominator(64)
    if degree is None or abs(float(simple) - degree) > 1e-12 or not isinstance(call["self"], Tensor):
        return call.vanish()
    return call.label("self").scaled(simple)


def total(call: Call) -> Label:
    """Summands must scale alike. A tiny constant is a guard: it makes the law approximate instead of removing it."""
    constant = call.number("other")
    if constant is None and call.number("self") is not None:
        return _guarded(call, "other", call.number("self") or 0.0)
    if constant is not None:
        return _guarded(call, "self", constant * (call.get("alpha") or 1))
    return call.exponents.equal(call.label("self"), call.label("other"))


def _guarded(call: Call, name: str, constant: float) -> Label:
    label = call.label(name)
    if label.is_zero:
        return label if constant == 0 else Label()
    return label if guard(call, label, constant) else Label()


def fused_product(call: Call) -> Label:
    """self + value * tensor1 * tensor2."""
    return call.exponents.equal(call.label("self"), call.label("tensor1") + call.label("tensor2"))


def fused_quotient(call: Call) -> Label:
    """self + value * tensor1 / tensor2."""
    return call.exponents.equal(call.label("self"), call.label("tensor1") - call.label("tensor2"))


def interpolation(call: Call) -> Label:
    """self + weight * (end - self)."""
    call.vanish("weight")
    return call.exponents.equal(call.label("self"), call.label("end"))


def either(call: Call) -> Label:
    """Maximum or minimum of two tensors: both must scale alike."""
    return call.exponents.equal(call.label("self"), call.label("other"))


def chosen(call: Call) -> Label:
    """where(condition, self, other): both must scale alike, unless the condition is a guard that is not active."""
    is_zero = call.zero_tests.get(call["condition"])
    return either(call) if is_zero is None else call.label("self" if is_zero else "other").present()


def clamped(call: Call) -> Label:
    """A bound of zero or infinity commutes with scaling, and so does a tiny lower guard where it is not active."""
    label = call.label_of(call.first)
    for name in ("min", "max"):
        bound = call.number(name)
        if isinstance(call.get(name), Tensor) and bound is None:
            label = call.exponents.equal(label, call.label(name))
        elif bound is not None and not (
            bound == 0 or abs(bound) == math.inf or (name == "min" and 0 < bound <= EPSILON)
        ):
            return call.vanish()
    return label


def hinge(call: Call) -> Label:
    """Threshold at zero, as ReLU's; any other threshold fixes the scale."""
    return same(call) if call["threshold"] == 0 and call["value"] == 0 else call.vanish()


def leaky(call: Call) -> Label:
    """PReLU: homogeneous in x, while the slope must keep its scale."""
    call.vanish("weight")
    return call.label("self")


def gated(call: Call) -> Label:
    """glu: the first half of an axis times the sigmoid of the second, which must keep its scale."""
    tensor, axis = call["self"], call["dim"] % call["self"].ndim
    half = tensor.shape[axis] // 2
    call.exponents.vanish(call.label("self").arranged(tensor.shape, lambda array: array.narrow(axis, half, half)))
    return call.label("self").arranged(tensor.shape, lambda array: array.narrow(axis, 0, half))


def compared(call: Call) -> Label:
    """A comparison sees no common positive scale: both sides must scale alike. Zero and tiny guards fit all.

    What has a scale is never equal to a number but zero, before and after.
    """
    constant, name = call.number("other"), call.name.rstrip("_")
    equality = name in ("eq", "ne")
    if constant is None:
        call.exponents.equal(call.label("self"), call.label("other"))
    elif equality and constant == 0 and bool((call["self"] != 0).all()):
        call.zero_tests[call.out] = name == "ne"
    elif not equality and abs(constant) > _SQRT_EPSILON and abs(constant) != float("inf"):
        call.vanish("self")
    return Label()


def masked(call: Call) -> Label:
    """masked_fill: the filling must scale like what stays. A hugely negative number stands for minus infinity."""
    number = call.number("value")
    if (number is not None and number <= -HUGE) or call.zero_tests.get(call["mask"]) is False:
        return call.label("self")
    return call.exponents.equal(call.label("self"), call.label("value"))


def converted(call: Call) -> Label:
    """A cast keeps the scale between floating types; truncation to integers does not."""
    if call.out.is_floating_point() or call.out.is_complex() or call.out.dtype == torch.bool:
        return same(call)
    return call.vanish()


def written(call: Call) -> Label:
    """copy_: the target takes the label of the source."""
    return call.label("src")


def polar(call: Call) -> Label:
    """polar: the radius scales, the angle must not."""
    call.vanish("angle")
    return call.label("abs")


def filled(call: Call) -> Label:
    """fill_ with a number or a one-entry tensor."""
    return call.label("value")


# Backward passes, which a forward pass runs when it differentiates (forces from an energy).


def passed_back(call: Call) -> Label:
    """ReLU, leaky ReLU, dropout: what comes back times a slope that does not see a positive scale."""
    if call.get("threshold", 0) != 0:
        return call.vanish()
    return call.label_of(call.first)


def leaky_backward(call: Call) -> Labels:
    """PReLU: to its input, and to its slope, which must keep its scale."""
    call.vanish("weight")
    return [call.label("grad_output"), call.label("grad_output") + call.label("self")]


def curved_backward(call: Call) -> Label:
    """Sigmoid, ELU ...: their inputs and outputs must keep their scales, what comes back may have any."""
    call.vanish(*[name for name in call.arguments if not name.startswith("grad")])
    return call.label_of(call.first)
