"""Conservation laws: laws that the gradients violate, and how far the optimizer moved c."""

import math
from typing import Any

import numpy as np
import pandas as pd

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, declare_limits, limit, threshold_text
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import role_series

declare_limits(
    {
        "drift": Limit(0.1, "change of c over the squared norms that make it up"),
    }
)

STOPPED = "the search was stopped"  # part of the reason that the recorder gives if it took too long
_ROUNDING = 1e-6  # of a norm
_DISPROVED = "delta is up to"  # start of the reason that the recorder gives for dropping a law


def reason_without_laws(facts: Facts) -> str:
    """Why a check that needs conservation laws cannot be made."""
    error = facts.run.meta["laws"]["error"]
    return "no conservation laws were recorded" + (f": {error}" if error else "")


@cause(
    "law-broken",
    "Conservation laws do not hold",
    rank=370,
    why="a remark on the loss, not on training",
    figure="conservation",
    falsified_by="Without weight penalties and gradient hooks, delta is still not zero.",
    remedy=Remedy("print(gatdiag.find_laws(model, x, edge_index).delta())  # after loss.backward(), without penalties"),
    severity="note",
    is_independent=True,
    is_remark=True,
    gives_way_to=("gradients-not-cleared",),  # which are not of the step that is predicted
    limits={
        "law": Limit(
            1e-5, "|c - predicted c| over the squared norms that make c up; healthy runs 2e-7, faulty runs 9e-4"
        )
    },
)
def check_laws(facts: Facts) -> Finding | str | None:
    """Laws that the gradients of training violate: dropped by the recorder at the first step, or violated later."""
    dropped = [one for one in facts.run.meta["laws"]["excluded"] if one["reason"].startswith(_DISPROVED)]
    if dropped:
        return facts.finding(
            "law-broken",
            f"The gradients of {len(dropped)} neurons violate the conservation laws of the forward pass: "
            f"{dropped[0]['reason']}.",
            Evidence("laws that the first gradients violate", len(dropped), "laws"),
            threshold=f"Flagged above {threshold_text('law')}.",
            steps=(0,),
        )
    if violated := facts.run.meta["laws"].get("violated"):
        return _violated_later(facts, violated)
    if not len(facts.run.neurons):
        return reason_without_laws(facts)
    return _why_c_is_not_predictable(facts) or _check_predicted_c(facts)


def _violated_later(facts: Facts, violated: list[dict[str, int]]) -> Finding:
    step = min(one["step"] for one in violated)
    return facts.finding(
        "law-broken",
        f"The gradients violate the conservation laws of {len(violated)} neurons from step {step:,} on: the model "
        "computes something else there than in its first step (another branch, a part that was not used), or its "
        "gradients are not those of its forward pass.",
        Evidence("laws that gradients violate", len(violated), "laws"),
        threshold=f"Flagged above {threshold_text('law')}.",
        steps=(step,),
    )


def _why_c_is_not_predictable(facts: Facts) -> str:
    """Why c moves otherwise than predicted though the laws hold; "" if it does not."""
    if (dtype := facts.run.meta["dtype"]) in ("bfloat16", "float16"):
        return f"weights of {dtype} are rounded at each step, which moves c further than predicted"
    if facts.signals.get("is_rough"):
        return "gradients are rounded in mixed precision, which moves c further than predicted"
    of_laws = {term["parameter"] for law in facts.laws for term in law.get("terms") or ()}
    if facts.groups and not of_laws.isdisjoint(facts.not_in_optimizer):
        return "parameters of laws are in no optimizer, which may leave old gradients in them"
    return ""


def _check_predicted_c(facts: Facts) -> Finding | str | None:
    step = int(facts.run.neurons["step"].iloc[-1])
    rows = facts.run.neurons[facts.run.neurons["step"] == step]
    error = relative_to_weights(facts.run, rows, rows["c"] - rows["predicted_c"])
    if not error:
        return "c was not predicted for this optimizer"
    # biases and outgoing weights make up c, too, and are rounded where they outweigh the incoming weights
    size = relative_to_weights(facts.run, rows, rows["c"])
    error = {layer: value / max(1.0, size.get(layer, 1.0)) for layer, value in error.items()}
    worst = max(error, key=error.__getitem__)
    if not error[worst] > limit("law"):
        return None
    if (facts.clipped_shares < 1 - _ROUNDING).any():
        return "gradients were clipped, which violates the laws unless all are scaled by the same factor"
    return facts.finding(
        "law-broken",
        f"In layer {short(worst)}, c (the balance of a neuron's incoming and outgoing weights) differs at step "
        f"{step:,} from the c predicted from the optimizer's steps by {number(error[worst])} of their squared norms. "
        "Either the loss uses these weights outside of the recorded forward pass (a penalty, a second use), or the "
        "gradients were taken at other weights (SAM), or something else than the optimizer changed the weights.",
        Evidence("|c - predicted c| over the squared norms that make it up", error[worst]),
        threshold=f"Flagged above {threshold_text('law')}.",
        layers=tuple(layer for layer in error if error[layer] > limit("law")),
        steps=(step,),
    )


def drift_of_c(facts: Facts) -> str:
    """A remark on how far the optimizer moved c, which gradient flow would conserve; "" where it hardly did."""
    found = facts.first_and_last("neurons", "c")
    if isinstance(found, str) or len(found[0]) != len(found[1]):
        return ""
    first, last = found
    with np.errstate(invalid="ignore"):  # infinity less infinity
        moved = pd.Series(last["c"].to_numpy() - first["c"].to_numpy(), last.index)
    drift = relative_to_weights(facts.run, last, moved, first=True)
    worst = max(drift, key=drift.__getitem__, default="")
    reason = _drift_sources(facts)
    if not worst or not drift[worst] > limit("drift") or not reason:
        return ""
    share = _predicted_share(facts.run.neurons)
    predicted = f", of which the optimizer's steps predict {percent(share)}" if math.isfinite(share) else ""
    return (
        "Gradient descent with small steps conserves c, the balance of each neuron's incoming and outgoing weights. "
        f"Here {reason} moved it by {number(drift[worst])} times their squared norms in layer {short(worst)}"
        f"{predicted}: an initial balance does not last, and an initial imbalance may disappear."
    )


def _drift_sources(facts: Facts) -> str:
    """The properties of the optimizer that move c; "" if it is unknown."""
    parts = []
    if facts.is_adam:
        parts.append("Adam's per-weight step size")
    if facts.setting("momentum"):
        parts.append("momentum")
    if facts.setting("weight_decay"):
        parts.append("weight decay")
    return join_names(parts) or ("the finite step size" if facts.groups else "")


def _predicted_share(neurons: pd.DataFrame) -> float:
    """Projection of predicted on measured changes of c, over all steps; NaN without a prediction."""
    count = int((neurons["step"] == neurons["step"].iloc[0]).sum())
    if len(neurons) % count or len(neurons) < 2 * count:
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
    """Layer -> largest absolute value over the mean squared norm of a neuron's incoming feature weights."""
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
