"""Rules of what was a logarithm: where x scales by s^e, log x is shifted by e log s.

The label of a shift says by how many log s each entry is shifted. A softmax does not see a shift that is the same all
along its axis, and `exp` makes a scale of it again. An operation without a rule here holds the shift at zero.
"""

from fractions import Fraction

from gatdiag.laws.label import Label
from gatdiag.laws.rules import arrangement, elementwise
from gatdiag.laws.rules.call import HUGE, Call, Labels, Rule, each, fraction
from gatdiag.laws.rules.reduction import added_along, along_axis, reduced


def total(call: Call) -> Label:
    """add and sub: shifts add up as their tensors do."""
    sign = -1 if call.function._schema.name.removeprefix("aten::").startswith("sub") else 1
    factor = fraction(sign * (call.get("alpha") or 1))
    if factor is None:
        return call.vanish()
    return call.label("self").present() + call.label("other").present().scaled(factor)


def multiple(power: int) -> Rule:
    """A shift times a number, or divided by it."""

    def rule(call: Call) -> Label:
        number = call["other"]
        factor = fraction(number) if isinstance(number, int | float) and number else None
        if factor is None or call.get("rounding_mode") is not None:
            return call.vanish()
        return call.label("self").scaled(factor**power)

    return rule


def summed(call: Call) -> Label:
    """sum and mean: shifts along the axes add up."""
    label = call.label("self").aligned(call.first.ndim)
    count = 1
    for axis in call.axes():
        label = added_along(label, axis, call.first.shape[axis])
        count *= call.first.shape[axis]
    if "mean" in call.function._schema.name:
        label = label.scaled(Fraction(1, count))
    return label if call.out.ndim == call.first.ndim else label.map(lambda array: array.squeeze(call.axes()))


def blind(call: Call) -> Labels:
    """Softmax: a common shift along the axis is not seen."""
    along_axis(call)
    return Label()


def batch_norm(call: Call) -> Labels:
    """Batch norm with batch statistics: a common shift of a channel is not seen."""
    inputs = call["input"]
    if not call.get("training", "with_update" in call.function._schema.name):
        return call.vanish()
    call.exponents.uniform(call.label("input").aligned(inputs.ndim), [axis for axis in range(inputs.ndim) if axis != 1])
    return Label()


def layer_norm(call: Call) -> Labels:
    """Layer norm: a common shift along the last axes is not seen."""
    ndim = call["input"].ndim
    axes = range(ndim - len(call["normalized_shape"]), ndim)
    call.exponents.uniform(call.label("input").aligned(ndim), axes)
    return Label()


def masked(call: Call) -> Label:
    """masked_fill with what stands for minus infinity."""
    number = call.number("value")
    return call.label("self") if number is not None and number <= -HUGE else call.vanish()


SHIFTS: dict[str, Rule] = {
    **each(elementwise.same, "alias clone contiguous positive exp"),
    **each(elementwise.stopped, "detach detach_copy"),
    **each(elementwise.converted, "_to_copy to"),
    "neg": elementwise.power_of(-1),
    **each(total, "add sub subtract"),
    **each(multiple(1), "mul multiply"),
    **each(multiple(-1), "div divide true_divide"),
    **each(summed, "sum mean"),
    **each(reduced, "amax amin logsumexp"),
    **each(blind, "_softmax _safe_softmax _log_softmax"),
    **each(
        batch_norm, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm"
    ),
    "native_layer_norm": layer_norm,
    "masked_fill": masked,
    **each(
        arrangement.arranged,
        "expand permute transpose t squeeze unsqueeze slice select split split_with_sizes unbind chunk diagonal flip "
        "roll unfold repeat movedim narrow repeat_interleave",
    ),
    **each(arrangement.reshaped, "view _unsafe_view reshape flatten unflatten"),
    "index_select": arrangement.selected,
    "gather": arrangement.gathered,
    "index": arrangement.indexed,
    "cat": arrangement.joined,
    "stack": arrangement.stacked,
}
"""Operation name -> rule for shifts."""
