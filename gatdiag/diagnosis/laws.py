"""What the conservation laws say: laws that the training disproves, and c that the optimizer moves."""

import math
from typing import Any

import numpy as np
import pandas as pd

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number
from gatdiag.names import join_names, short
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series

_DISPROVED = "delta is up to"  # how the recorder begins the reason for a law that it dropped


def law_broken(facts: Facts) -> Finding | str | None:
    """Laws that the gradients of training disobey: dropped by the recorder at the first step, or broken later."""
    laws, flagged = facts.run.meta.get("laws") or {}, f"Flagged above {said('law')}."
    dropped = [one for one in laws.get("excluded") or [] if str(one.get("reason", "")).startswith(_DISPROVED)]
    if dropped:
        return facts.found(
            "law-broken",
            f"The gradients of {len(dropped)} neurons disobey the conservation laws of the forward pass: "
            f"{dropped[0]['reason']}.",
            Evidence("laws that the first gradients disobey", len(dropped), "laws"),
            threshold=flagged,
            steps=(0,),
        )
    if not len(facts.run.neurons):
        return "no conservation laws were recorded"
    if (dtype := facts.run.meta["dtype"]) in ("bfloat16", "float16"):
        return f"weights of {dtype} are rounded at each step, which moves c further than is predicted"
    if facts.signals.get("is_rough"):
        return "gradients are of mixed precision, and rounding them moves c further than is predicted"
    step = int(facts.run.neurons["step"].iloc[-1])
    rows = facts.run.neurons[facts.run.neurons["step"] == step]
    error = relative_to_weights(facts.run, rows, rows["c"] - rows["predicted_c"])
    if not error:
        return "c was not predicted for this optimizer"
    worst = max(error, key=error.__getitem__)
    if not error[worst] > limit("law"):
        return None
    return facts.found(
        "law-broken",
        f"In layer {short(worst)} the balance c of the weights into and out of a neuron is, at step {step:,}, "
        f"{number(error[worst])} of their squared norms away from where the optimizer's steps must have put it: the "
        "loss depends on these weights in another way than by the forward pass (a penalty, a second use), its "
        "gradients are of other weights than those that moved (SAM), or something else than the optimizer changed "
        "them.",
        Evidence("|c - predicted c| over the squared norms that make it up", error[worst]),
        threshold=flagged,
        layers=tuple(layer for layer in error if error[layer] > limit("law")),
        steps=(step,),
    )


def conservation(facts: Facts) -> Finding | str | None:
    """How far c drifted, and how much of it the optimizer's steps predict: gradient flow would not move it at all."""
    neurons = facts.run.neurons
    if not len(neurons):
        return "no conservation laws were recorded"
    found = facts.first_and_last("neurons", "c")
    if isinstance(found, str):
        return found
    first, last = found
    if len(first) != len(last):
        return "c was not recorded of the same laws first and last"
    with np.errstate(invalid="ignore"):  # infinity less infinity
        moved = pd.Series(last["c"].to_numpy() - first["c"].to_numpy(), last.index)
    drift = relative_to_weights(facts.run, last, moved, first=True)
    if not drift:
        return "norms of the weights were not recorded"
    worst = max(drift, key=drift.__getitem__)
    reason = _why(facts)
    if not drift[worst] > limit("drift") or not reason:
        return None
    return facts.found(
        "optimizer-breaks-conservation",
        f"Plain gradient descent would keep c, the balance of the weights into and out of each neuron. Here {reason} "
        f"moved it by {number(drift[worst])} times their squared norms in layer {short(worst)}: balance at the start "
        "does not last, and imbalance may heal.",
        Evidence("change of c over the squared norms that make it up", drift[worst]),
        Evidence("share of the drift that the optimizer's steps predict", _predicted_share(neurons)),
        threshold=f"Flagged above {said('drift')}.",
        layers=tuple(layer for layer in drift if drift[layer] > limit("drift")),
        steps=(int(first["step"].iloc[0]), int(last["step"].iloc[0])),
    )


def _why(facts: Facts) -> str:
    """Parts of the optimizer that move c; "" for none."""
    parts = []
    if facts.is_adam:
        parts.append("Adam's step size per weight")
    if facts.setting("momentum"):
        parts.append("momentum")
    if facts.setting("weight_decay"):
        parts.append("weight decay")
    return join_names(parts) or ("the size of the steps" if facts.groups else "")


def _predicted_share(neurons: pd.DataFrame) -> float:
    """Predicted changes of c projected on the measured ones, over all steps; NaN without a prediction."""
    count = int((neurons["step"] == neurons["step"].iloc[0]).sum())
    if "predicted_c" not in neurons or len(neurons) % count or len(neurons) < 2 * count:
        return math.nan
    c, predicted = (neurons[name].to_numpy(float).reshape(-1, count) for name in ("c", "predicted_c"))
    with np.errstate(invalid="ignore"):
        measured, expected = np.diff(c, axis=0), predicted[1:] - c[:-1]
    known = np.isfinite(measured) & np.isfinite(expected)
    total = float((measured[known] ** 2).sum())
    return float((measured[known] * expected[known]).sum()) / total if total and known.any() else math.nan


def relative_to_weights(
    run: Run, rows: pd.DataFrame, values: "pd.Series[float]", *, first: bool = False
) -> dict[str, float]:
    """Layer -> largest magnitude over the mean squared norm of a neuron's incoming feature weights."""
    own = rows["neuron"].notna().to_numpy()
    by = values[own].abs().groupby(rows["layer"][own].astype(str), sort=False)
    largest, neurons = by.max().dropna(), by.size()
    norms = role_series(run, "norm", FEATURE)
    if not len(norms):
        return {}
    at = norms["step"].min() if first else norms["step"][norms["step"] <= rows["step"].max()].max()
    norm: dict[str, Any] = dict(norms[norms["step"] == at][["layer", "value"]].astype({"layer": str}).to_numpy())
    known = [layer for layer in largest.index if norm.get(layer)]
    return {str(layer): float(largest[layer]) / norm[layer] * int(neurons[layer]) / norm[layer] for layer in known}
