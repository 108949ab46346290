"""Depth in time: gradients that vanish or explode over many runs of one layer, as of a recurrent cell."""

import math
from typing import Final

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.wording import number
from gatdiag.names import short

declare_limits(
    {
        "vanish-time": Limit(1e-3, "gradient of the first time step over that of the last; short delays 0.02 to 5"),
        "explode-time": Limit(1e3, "the same; orthogonal recurrent weights 0.1 to 10"),
    }
)

_GATES: Final = Remedy(
    "torch.nn.init.orthogonal_(weight_hh)  # recurrent weights, before training: they keep the norm of gradients\n"
    "# or a forget gate that starts open (nn.LSTM: 1 or more in bias_ih and bias_hh), attention over the time steps,\n"
    "# or a shorter sequence (every k-th time step)"
)
_CLIP: Final = Remedy(
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # between loss.backward() and optimizer.step()\n"
    "torch.nn.init.orthogonal_(weight_hh)  # recurrent weights, before training"
)


def vanishing_in_time(facts: Facts) -> Finding | None:
    """The gradient of the first time step is orders of magnitude below that of the last, in a training that fails."""
    found = facts.signals.get("recurrence") or {}
    ratios = {name: float(one["first"]) for name, one in found.items() if one["first"] is not None}
    if not ratios or facts.state != "failing" or facts.path < limit("path"):
        return None  # a network learns from what is near, too; without steps it learns nothing
    layer = min(ratios, key=ratios.__getitem__)
    ratio, runs = ratios[layer], int(found[layer]["runs"])
    if not ratio < limit("vanish-time"):
        return None
    step = f" ({number(ratio ** (1 / (runs - 1)))} times per time step)" if ratio > 0 else ""
    return facts.finding(
        "depth-vanishing-gradient",
        f"On its way back over {runs:,} time steps of {short(layer)} the gradient shrinks to {number(ratio)} of its "
        f"size{step}: what happened in the first of them cannot be learned.",
        Evidence("gradient of the first over that of the last time step's output", ratio),
        title="Gradients vanish over time",
        threshold=f"Flagged below {threshold_text('vanish-time')}.",
        layers=(layer,),
        steps=(0,),
        severity="warning",
        remedy=_GATES,
        falsified_by="With what matters in the last time steps the learning curve is the same.",
    )


def exploding_in_time(facts: Facts) -> Finding | None:
    """The gradient grows by orders of magnitude on its way back to the first time step."""
    found = facts.signals.get("recurrence") or {}
    ratios = {name: math.inf if one["largest"] is None else float(one["largest"]) for name, one in found.items()}
    layer = max(ratios, key=ratios.__getitem__, default="")
    if not layer or facts.is_learning or not ratios[layer] > limit("explode-time"):
        return None
    return facts.finding(
        "depth-exploding-gradient",
        f"On its way back over {int(found[layer]['runs']):,} time steps of {short(layer)} the gradient grows "
        f"{number(ratios[layer])} times: steps of a usual learning rate are too long.",
        Evidence("gradient of the first over that of the last time step's output", ratios[layer]),
        title="Gradients explode over time",
        threshold=f"Flagged above {threshold_text('explode-time')}.",
        layers=(layer,),
        steps=(0,),
        remedy=_CLIP,
        falsified_by="With clipped gradients and orthogonal recurrent weights the learning curve is the same.",
    )
