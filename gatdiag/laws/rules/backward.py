"""Rules of backward passes, which a forward pass runs when it differentiates (forces from an energy)."""

from gatdiag.laws.label import Label
from gatdiag.laws.rules.call import Call, Labels


def passed(call: Call) -> Label:
    """ReLU, leaky ReLU, dropout: what comes back times a slope that does not see a positive scale."""
    if call.get("threshold", 0) != 0:
        return call.vanish()
    return call.label_of(call.first)


def leaky(call: Call) -> Labels:
    """PReLU: to its input, and to its slope, which must keep its scale."""
    call.vanish("weight")
    return [call.label("grad_output"), call.label("grad_output") + call.label("self")]


def curved(call: Call) -> Label:
    """Sigmoid, ELU ...: their inputs and outputs must keep their scales, what comes back may have any."""
    call.vanish(*[name for name in call.arguments if not name.startswith("grad")])
    return call.label_of(call.first)


def softmax(call: Call) -> Label:
    """Softmax and its logarithm: what comes back is mixed along the axis."""
    call.vanish("output")
    first = call.first
    return call.exponents.uniform(call.label_of(first).aligned(first.ndim), call.axes())


def layer_norm(call: Call) -> Labels:
    """Layer norm: (what comes back, times the gain) / (standard deviation), one scale over the last axes.

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
