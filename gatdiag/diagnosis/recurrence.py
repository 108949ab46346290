"""Depth in time: gradients that vanish or explode, and outputs that grow, over many runs of one layer."""

import math
from typing import Any, Final

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.wording import number
from gatdiag.names import short

declare_limits(
    {
        "vanish-time": Limit(1e-3, "gradient of the first time step over that of the last; short delays 0.02 to 5"),
        "explode-time": Limit(1e3, "the same; orthogonal recurrent weights 0.1 to 10"),
        "deaf": Limit(
            1e-5, "spread of the rows of the output over its size: rounding alone; healthy runs 0.01 and more"
        ),
        "each-run": Limit(0.8, "share of the runs of a layer in which its output grows, where it runs many times"),
    }
)

_GATES: Final = Remedy(
    "torch.nn.init.orthogonal_(weight_hh)  # recurrent weights, before training: they keep the norm of gradients\n"
    "# or a forget gate that starts open (nn.LSTM: 1 or more in bias_ih and bias_hh), attention over the time steps,\n"
    "# or a shorter sequence (every k-th time step)"
)
_AT_THE_END: Final = Remedy(
    "lengths = (tokens != padding).sum(1).cpu()  # if sequences are padded behind: the state where each one ends\n"
    "packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)\n"
    "_, (state, _) = lstm(packed)  # state[-1], instead of out[:, -1]\n"
    "# or the mean of the outputs over all time steps that are no padding"
)
_CLIP: Final = Remedy(
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # between loss.backward() and optimizer.step()\n"
    "torch.nn.init.orthogonal_(weight_hh)  # recurrent weights, before training"
)

_BOUNDED: Final = Remedy(
    "torch.nn.init.orthogonal_(cell.weight)  # of the weights that are applied again and again, before training\n"
    "# or a gated cell, torch.nn.GRUCell or torch.nn.LSTMCell"
)


def vanishing_in_time(facts: Facts) -> Finding | None:
    """The gradient of the first time step is orders of magnitude below that of the last, in a training that fails."""
    found = facts.signals.get("recurrence") or {}
    ratios = {name: float(one["first"]) for name, one in found.items() if one["first"] is not None}
    is_deaf = _is_deaf(facts)
    if not ratios or facts.state != "failing" or (facts.path < limit("path") and not is_deaf):
        return None  # a network learns from what is near, too; without steps it learns nothing
    layer = min(ratios, key=ratios.__getitem__)
    ratio, runs = ratios[layer], int(found[layer]["runs"])
    if not ratio < limit("vanish-time"):
        return None
    step = f" ({number(ratio ** (1 / (runs - 1)))} times per time step)" if ratio > 0 else ""
    return facts.finding(
        "depth-vanishing-gradient",
        f"On its way back over {runs:,} time steps of {short(layer)} the gradient shrinks to {number(ratio)} of its "
        f"size{step}: what happened in the first of them cannot be learned."
        + (" The outputs of all rows are the same, as if the last time steps were padding." if is_deaf else ""),
        Evidence("gradient of the first over that of the last time step's output", ratio),
        title="Gradients vanish over time",
        threshold=f"Flagged below {threshold_text('vanish-time')}.",
        layers=(layer,),
        column="",
        steps=(0,),
        severity="error" if is_deaf else "warning",
        remedy=_AT_THE_END if is_deaf else _GATES,
        falsified_by="With what matters in the last time steps the learning curve is the same.",
    )


def _is_deaf(facts: Facts) -> bool:
    """From the start to the end, all rows of the output are the same, whatever the input is."""
    size = max(abs(float(facts.output.get(name, 0.0))) for name in ("min", "max"))
    spreads = [(facts.output.get(name) or {}).get("size", math.inf) for name in ("first_rows", "last_rows")]
    return bool(max(spreads) < limit("deaf") * size)


def exploding_in_time(facts: Facts, *, has_usual_weights: bool) -> Finding | None:
    """Over the runs of a layer in a pass, gradients on their way back grow, or outputs if weights have a usual size."""
    if facts.is_learning:
        return None
    gradients = facts.signals.get("recurrence") or {}
    back = {name: math.inf if one["largest"] is None else float(one["largest"]) for name, one in gradients.items()}
    layer, growth = _most(back)
    if growth > limit("explode-time"):
        return _explosion(
            facts,
            layer,
            f"On its way back over {int(gradients[layer]['runs']):,} time steps of {short(layer)} the gradient grows "
            f"{number(growth)} times: steps of a usual learning rate are too long.",
            Evidence("gradient of the first over that of the last time step's output", growth),
            threshold=f"Flagged above {threshold_text('explode-time')}.",
            remedy=_CLIP,
            falsified_by="With clipped gradients and orthogonal recurrent weights the learning curve is the same.",
        )
    outputs: dict[str, dict[str, float]] = facts.signals.get("repeats", {})
    layer, growth = _most({name: one["growth"] for name, one in outputs.items() if one["rising"] >= limit("each-run")})
    if not growth > limit("explode") or not has_usual_weights:
        return None
    return _explosion(
        facts,
        layer,
        f"Layer {short(layer)} runs {outputs[layer]['runs']:g} times in a forward pass, and its output grows "
        f"{number(growth)} times from the first run to the last: the same weights are applied again and again.",
        Evidence(f"norm of the last output of layer {short(layer)} over that of the first", growth),
        threshold=f"Flagged above {threshold_text('explode', 'each-run')}.",
        remedy=_BOUNDED,
        falsified_by="With a gated cell, such as torch.nn.GRUCell, the learning curve is the same.",
    )


def _most(growth: dict[str, float]) -> tuple[str, float]:
    layer = max(growth, key=growth.__getitem__, default="")
    return layer, growth.get(layer, 0.0)


def _explosion(facts: Facts, layer: str, text: str, evidence: Evidence, **given: Any) -> Finding:
    return facts.finding(
        "depth-exploding-gradient",
        text,
        evidence,
        title="Gradients explode over time",
        layers=(layer,),
        column="",
        steps=(0,),
        **given,
    )
