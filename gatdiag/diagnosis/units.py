"""Units that are dead, in training or as weights of a checkpoint, and attention that looks at one neighbor."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.depth import layers_of_rank_one
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import listed, short
from gatdiag.roles import FEATURE
from gatdiag.summary import recorded


def dead_units(facts: Facts) -> Finding | str | None:
    """Units that are zero at every node: inputs of a layer behind an activation, outputs, or without any gradient."""
    if layers_of_rank_one(facts):
        return None  # of neurons that are all alike, or of one, all are dead or none
    fed: dict[str, Any] = facts.signals.get("zero_inputs", {})
    shares = {name: float(one["last"] or 0.0) for name, one in fed.items()}
    dead = tuple(name for name in shares if shares[name] >= limit("dead"))
    if dead and facts.state != "trained":
        what = "units that feed the layer are zero at every node"
        return _finding(facts, shares, dead, what, int(fed[max(dead, key=shares.__getitem__)]["since"] or 0))
    columns = ["dead_fraction", "gradient_dead_fraction"]
    known = [column for column in columns if recorded(facts.run, "layers", column)]
    if not known and not fed:
        return "neither outputs nor inputs of layers were recorded"
    return next((found for column in known if (found := _dead(facts, column)) is not None), None)


def _dead(facts: Facts, column: str) -> Finding | None:
    frame = facts.run.layers
    if column == "gradient_dead_fraction" and not _is_telling(facts):
        return None
    sound = frame[column].notna()
    for other in ("non_finite", "gradient_non_finite"):
        sound &= ~(frame[other] > 0) if other in frame else True
    frame = frame[sound]
    late = frame[frame["step"] == frame["step"].max()] if len(frame) else frame
    shares = {str(name): float(value) for name, value in zip(late["layer"], late[column], strict=True)}
    if column == "gradient_dead_fraction" and (not shares or min(shares.values()) == 1):
        return None  # no gradient anywhere says nothing of units
    dead = tuple(name for name in shares if shares[name] >= limit("dead"))
    if not dead or facts.state == "trained":
        return None
    worst = max(dead, key=shares.__getitem__)
    flagged = frame[(frame["layer"] == worst) & (frame[column] >= limit("dead"))]
    since = int(flagged["step"].min())
    what = {
        "dead_fraction": "units of a layer's output are zero at every node",
        "gradient_dead_fraction": "units get no gradient from any node",
    }[column]
    return _finding(facts, shares, dead, what, since)


def _finding(facts: Facts, shares: dict[str, float], dead: tuple[str, ...], what: str, since: int) -> Finding:
    worst = max(dead, key=shares.__getitem__)
    start = "from the start" if since <= 1 else f"since step {since:,}"
    return Finding(
        "dead-units",
        facts.severity,
        "Dead units",
        f"{percent(shares[worst])} of the {what}, {start}, in layer {listed(map(short, dead[:3]))}: behind a ReLU "
        f"they stay dead.",
        (Evidence(f"share of dead units, in layer {short(worst)}", shares[worst]),),
        f"Flagged from {said('dead')}.",
        dead,
        steps=(since,),
        figure="overview",
        remedy=f"{remedy.GLOROT}; biases are zero then\n"
        "gatdiag.remedies.leaky_relu_(model, 0.1)  # or leaky_relu in place of relu in forward",
        actions=(*remedy.FRESH, Action("leaky_relu", {"slope": 0.1})),
        falsified_by="(x > 0).any(0).sum() behind the activation counts live units.",
    )


def _is_telling(facts: Facts) -> bool:
    """Hidden units without a gradient say something where the network gets a gradient and fails to learn."""
    known = facts.gradients[np.isfinite(facts.gradients)]
    return bool(facts.state in ("failing", "partly") and len(known) and (known > 0).any())


def dead_weights(weights: pd.DataFrame) -> Iterator[Finding]:
    """Layers with neurons that nothing leads into, or inputs that are not read. Flagged from the first one.

    Args:
        weights: One row a parameter: layer, parameter, role, norm, dead_rows, dead_columns (rows and columns that are
            zero; NaN where they are no neurons).
    """
    matrices = weights[weights["role"] == FEATURE]
    for layer, table in matrices.groupby("layer", sort=False):
        living = table[table["norm"] > 0]
        rows, columns = (int(living[name].sum()) for name in ("dead_rows", "dead_columns"))
        zero = bool((table["norm"] == 0).any())
        what = [f"{rows} neurons that nothing leads into"] * (rows > 0)
        what += [f"{columns} inputs that are not read"] * (columns > 0)
        what += ["a weight matrix that is zero"] * zero
        if what:
            yield Finding(
                "dead-weights",
                "warning" if rows else "note",
                "Dead weights",
                f"Layer {short(str(layer))} has {', '.join(what)}.",
                (Evidence("rows that are zero", rows, "neurons"), Evidence("columns that are zero", columns, "inputs")),
                "Flagged from the first one.",
                (str(layer),),
                remedy=f"torch.nn.init.xavier_uniform_(model.get_submodule({str(layer)!r}).weight)  # and train again",
                falsified_by="The rows were pruned, or the inputs are padding, on purpose.",
            )


def attention_saturated(facts: Facts) -> Finding | str | None:
    """Most nodes give one neighbor nearly all of their attention, at the start or while the network fails."""
    peaks, entropies = facts.profile("attention_peak"), facts.profile("relative_attention_entropy")
    if not peaks and not entropies:
        return "attention coefficients were not recorded, or there are none"
    if facts.state != "trained":
        peaks = {**peaks, **_last(facts, "attention_peak")} if peaks else {}
        entropies = {**entropies, **_last(facts, "relative_attention_entropy")} if entropies else {}
    hot = _hot(peaks, entropies)
    if not hot:
        return None
    is_first = bool({*hot} & {*saturated_at_start(facts)})
    worst = max(hot, key=peaks.__getitem__) if peaks else min(hot, key=entropies.__getitem__)
    value = peaks.get(worst, entropies.get(worst, math.nan))
    lines, actions = remedy.attention_anew(facts, hot)
    text = f"{percent(value)} of the nodes give" if peaks else "Nodes give"
    return Finding(
        "attention-saturated",
        facts.severity,
        "Attention is saturated",
        f"{text} one neighbor nearly all of their attention in layer {short(worst)}: the softmax is flat there, so "
        f"that attention cannot learn.",
        (
            Evidence("share of nodes with a coefficient above 0.99", value)
            if peaks
            else Evidence("relative attention entropy", value),
        ),
        f"Flagged at {said('one-hot' if peaks else 'entropy')}; here {number(value)}.",
        hot,
        steps=(0 if is_first else facts.count - 1,),
        figure="overview",
        remedy=f"{lines}\n# or divide the scores: gatdiag.remedies.lipschitz_normalize_(model)".strip(),
        actions=actions,
        falsified_by="With scores divided by ten the loss takes the same course.",
    )


def saturated_at_start(facts: Facts) -> tuple[str, ...]:
    """Layers whose attention looks at one neighbor before the first step."""
    return _hot(facts.profile("attention_peak"), facts.profile("relative_attention_entropy"))


def _hot(peaks: dict[str, float], entropies: dict[str, float]) -> tuple[str, ...]:
    """By the largest coefficients; where these were not recorded, by the entropy."""
    if peaks:
        return tuple(name for name, value in peaks.items() if value >= limit("one-hot"))
    return tuple(name for name, value in entropies.items() if value < limit("entropy"))


def _last(facts: Facts, column: str) -> dict[str, float]:
    frame = facts.run.layers
    known = frame[frame[column].notna()]
    return facts.profile(column, int(known["step"].iloc[-1]))
