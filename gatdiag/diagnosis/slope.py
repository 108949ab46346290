"""Where the slope ends: the operation behind which every gradient is zero."""

from typing import Final

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Remedy

_FLAT: Final = {  # operation -> why its slope is zero
    "Round": "the slope of round() is zero everywhere",
    "Floor": "the slope of floor() is zero everywhere",
    "Ceil": "the slope of ceil() is zero everywhere",
    "Trunc": "the slope of trunc() is zero everywhere",
    "Sign": "the slope of sign() is zero everywhere",
    "Clamp": "all values are outside of the bounds of clamp(), where its slope is zero",
    "Hardtanh": "all values are outside of the bounds of hardtanh(), where its slope is zero",
    "Relu": "no value is positive, and the slope of relu() is zero below",
    "Threshold": "all values are below the threshold, where the slope is zero",
    "Sigmoid": "all values are so large that sigmoid() is exactly 0 or 1, where its slope is zero",
    "Tanh": "all values are so large that tanh() is exactly -1 or 1, where its slope is zero",
    "Softmax": "softmax() is exactly 0 or 1, where its slope is zero",
    "LogSoftmax": "log_softmax() is exactly 0 for the labels, where its slope is zero",
    "Mul": "it is multiplied by zero",
}
_EVERYWHERE: Final = ("Round", "Floor", "Ceil", "Trunc", "Sign")


def where_slope_ends(facts: Facts) -> str:
    """Why every gradient is zero, as far as the graph of the loss shows it; else ""."""
    found = facts.signals.get("slope_end") or {}
    if name := found.get("operation"):
        if found["length"] == 1:
            return f"The slope ends in {name} over a dimension of size 1, which is constant whatever its input is."
        why = _FLAT.get(name, "what it is given has no effect on what it returns")
        return f"The slope ends in the model, in the operation {name}: {why}."
    loss = facts.loss_graph
    if empty := loss.get("empty"):
        return f"The loss ({empty}) is computed of a selection without rows (a mask without a true entry)."
    operations = loss.get("operations", [])
    if flat := _flat_in_loss(facts):
        return f"The slope ends between the output and the loss, in the operation {flat}: {_FLAT[flat]}."
    if not operations:
        return ""
    return f"The slope ends between the output and the loss, in one of: {', '.join(reversed(operations))}."


def fix_slope(facts: Facts) -> Remedy | None:
    """What to change where the slope ends; None if it is not known."""
    found = facts.signals.get("slope_end") or {}
    if found.get("length") == 1:
        return Remedy(
            "return x.squeeze(-1)  # in forward, instead of a softmax over one column; the loss is\n"
            "# torch.nn.functional.binary_cross_entropy_with_logits(out, y.float())"
        )
    name = found.get("operation") or _flat_in_loss(facts)
    if name in _EVERYWHERE:
        return Remedy(f"# remove {name.lower()}() from what the loss is computed of: it is for predictions alone")
    return None


def _flat_in_loss(facts: Facts) -> str:
    """The operation between output and loss whose slope is zero everywhere; "" without one, or without rows."""
    operations = [] if facts.loss_graph.get("empty") else facts.loss_graph.get("operations", [])
    return next((name for name in operations if name in _EVERYWHERE), "")
