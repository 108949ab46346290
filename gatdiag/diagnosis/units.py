"""Units that are dead, in training or as weights of a checkpoint, and attention that looks at one neighbor."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.depth import layers_of_rank_one
from gatdiag.diagnosis.facts import Facts, at_one_step
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit, said
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, short
from gatdiag.roles import FEATURE
from gatdiag.summary import is_recorded

_DIVIDE = "divide the scores: gatdiag.remedies.lipschitz_normalize_(model)"


def dead_units(facts: Facts) -> Finding | str | None:
    """Units that are zero at every node: inputs of a layer behind an activation, outputs, or without any gradient."""
    if layers_of_rank_one(facts):
        return None  # of neurons that are all alike, or of one, all are dead or none
    fed: dict[str, Any] = facts.signals.get("zero_inputs", {})
    columns = ("dead_fraction", "gradient_dead_fraction")
    if not fed and not any(is_recorded(facts.run, "layers", column) for column in columns):
        return "neither outputs nor inputs of layers were recorded"
    if facts.state == "trained":
        return None
    shares = {name: float(one["last"] or 0.0) for name, one in fed.items()}
    since = {name: int(one["since"] or 0) for name, one in fed.items()}
    return (
        _finding(facts, shares, since, "units that feed the layer are zero at every node")
        or _recorded(facts, "dead_fraction", "units of a layer's output are zero at every node")
        or _recorded(facts, "gradient_dead_fraction", "units get no gradient from any node")
    )


def _recorded(facts: Facts, column: str, what: str) -> Finding | None:
    frame = facts.run.layers
    frame = frame[~frame.reindex(columns=["non_finite", "gradient_non_finite"]).gt(0).any(axis=1)]
    shares = at_one_step(frame, "layer", column, last=True)
    is_of_gradients = column == "gradient_dead_fraction"
    if not shares or (is_of_gradients and (min(shares.values()) == 1 or not _is_telling(facts))):
        return None  # no gradient anywhere says nothing of units
    if is_of_gradients:  # the last such layer comes first: dead units keep the gradient from all layers before them
        shares = dict(reversed(shares.items()))
    flagged = frame[frame[column] >= limit("dead")]
    return _finding(facts, shares, flagged.groupby("layer", observed=True)["step"].min().to_dict(), what)


def _finding(facts: Facts, shares: dict[str, float], first: dict[Any, int], what: str) -> Finding | None:
    dead = tuple(name for name in shares if shares[name] >= limit("dead"))
    if not dead:
        return None
    worst = max(dead, key=shares.__getitem__)
    since = int(first[worst])
    start = "from the start" if since == 0 else f"since step {since:,}"
    return facts.found(
        "dead-units",
        f"{percent(shares[worst])} of the {what}, {start}, in layer {join_names(map(short, dead[:3]))}: behind a ReLU "
        "they stay dead.",
        Evidence(f"share of dead units, in layer {short(worst)}", shares[worst]),
        threshold=f"Flagged from {said('dead')}.",
        layers=dead,
        steps=(since,),
    )


def _is_telling(facts: Facts) -> bool:
    """Hidden units without a gradient say something where the network gets a gradient and fails to learn."""
    return facts.state in ("failing", "partly") and bool(((facts.gradients > 0) & (facts.gradients < math.inf)).any())


def dead_weights(facts: Facts, weights: pd.DataFrame) -> Iterator[Finding]:
    """Layers with neurons that nothing leads into, or inputs that are not read. Flagged from the first one.

    Args:
        facts: Of the run that was made of the checkpoints.
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
            anew = f"torch.nn.init.xavier_uniform_(model.get_submodule({str(layer)!r}).weight)  # and train again"
            yield facts.found(
                "dead-weights",
                f"Layer {short(str(layer))} has {', '.join(what)}.",
                Evidence("rows that are zero", rows, "neurons"),
                Evidence("columns that are zero", columns, "inputs"),
                threshold="Flagged from the first one.",
                severity="warning" if rows else "note",
                layers=(str(layer),),
                remedy=Remedy(anew),
            )


def attention_saturated(facts: Facts) -> Finding | str | None:
    """Most nodes give one neighbor nearly all of their attention, at the start or while the network fails."""
    peaks, entropies = facts.profile("attention_peak"), facts.profile("relative_attention_entropy")
    if not peaks and not entropies:
        return "attention coefficients were not recorded, or there are none"
    if facts.state != "trained":
        peaks = peaks | facts.profile("attention_peak", last=True)
        entropies = entropies | facts.profile("relative_attention_entropy", last=True)
    hot = _hot(peaks, entropies)
    if not hot:
        return None
    is_first = bool({*hot} & {*saturated_at_start(facts)})
    worst = max(hot, key=peaks.__getitem__) if peaks else min(hot, key=entropies.__getitem__)
    value = (peaks or entropies)[worst]
    anew = remedy.attention_anew(facts, hot)
    text = f"{percent(value)} of the nodes give" if peaks else "Nodes give"
    return facts.found(
        "attention-saturated",
        f"{text} one neighbor nearly all of their attention in layer {short(worst)}: the softmax is flat there, so "
        f"that attention cannot learn.",
        Evidence("share of nodes with a coefficient above 0.99" if peaks else "relative attention entropy", value),
        threshold=f"Flagged at {said('one-hot' if peaks else 'entropy')}; here {number(value)}.",
        layers=hot,
        steps=(0 if is_first else facts.count - 1,),
        remedy=Remedy(f"{anew.code}\n# or {_DIVIDE}", anew.actions) if anew else Remedy(f"# {_DIVIDE}"),
    )


def saturated_at_start(facts: Facts) -> tuple[str, ...]:
    """Layers whose attention looks at one neighbor before the first step."""
    return _hot(facts.profile("attention_peak"), facts.profile("relative_attention_entropy"))


def _hot(peaks: dict[str, float], entropies: dict[str, float]) -> tuple[str, ...]:
    """By the largest coefficients; where these were not recorded, by the entropy."""
    if peaks:
        return tuple(name for name, value in peaks.items() if value >= limit("one-hot"))
    return tuple(name for name, value in entropies.items() if value < limit("entropy"))
