"""Dead units, in training or among the weights of a checkpoint, no activation, dropout, and saturated attention."""

import math
from collections.abc import Iterator
from typing import Any, Final

from gatdiag.diagnosis import remedy
from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.depth import is_rounded_away, layers_of_rank_one
from gatdiag.diagnosis.facts import Facts, values_at_step
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.fixes import GLOROT
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.diagnosis.wording import percent
from gatdiag.names import short
from gatdiag.roles import FEATURE
from gatdiag.summary import is_recorded, last_values, matrices, series_of

_CALL: Final = "x = torch.nn.functional.dropout(x, 0.5, self.training)  # in forward, where the rate is larger"

_LEAKY = Remedy(*GLOROT.fixes, Action("leaky_relu", {"slope": 0.1}))

_DIVIDE = "scale the scores down: gatdiag.remedies.lipschitz_normalize_(model)"
_SCALE = Remedy("scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # in forward: over the root of the width")


@cause(
    "dead-units",
    "Dead units",
    rank=180,
    why="no gradient passes a dead unit",
    figure="overview",
    column="layers.zero_inputs",
    falsified_by="(x > 0).any(0) after the activation is True for most units.",
    remedy=_LEAKY,
    below_if_late="rank-collapse",
    limits={"dead": Limit(0.9, "share of units that are zero at every node; of few healthy layers 0.72, faulty 1")},
)
def check_dead_units(facts: Facts) -> Finding | str | None:
    """Units that are zero at every node: inputs of a layer after an activation, or outputs; or without any gradient."""
    if layers_of_rank_one(facts) or zero_layers(facts):
        return None  # with identical neurons, or one, either all are dead or none
    fed: dict[str, Any] = facts.signals.get("zero_inputs", {})
    columns = ("dead_fraction", "gradient_dead_fraction")
    if not fed and not any(is_recorded(facts.run, "layers", column) for column in columns):
        return "neither outputs nor inputs of layers were recorded"
    if facts.state == "trained":
        return None
    shares = last_values(series_of(facts.run, "layers.zero_inputs"))
    since = {name: int(fed[name]["since"] or 0) for name in shares}
    return (
        _finding(facts, shares, since, "zero_inputs", "inputs", "are zero at every node")
        or _from_column(facts, "dead_fraction", "outputs", "are zero at every node")
        or _from_column(facts, "gradient_dead_fraction", "outputs", "get no gradient at any node")
    )


def zero_layers(facts: Facts) -> tuple[str, ...]:
    """Hidden layers whose weights are zero at first, if all inputs of a layer are zero then."""
    fed = facts.signals.get("zero_inputs") or {}
    if not any(one["first"] == 1 for one in fed.values()) or not is_recorded(facts.run, "parameters", "norm"):
        return ()
    norms = values_at_step(facts.run.parameters, "parameter", "norm")
    own = {layer["name"]: [norms.get(key) for key in matrices(layer)] for layer in facts.layers[:-1]}
    return tuple(name for name, found in own.items() if found and not any(found) and None not in found)


def _from_column(facts: Facts, column: str, units: str, how: str) -> Finding | None:
    frame = facts.run.layers
    frame = frame[~frame[["non_finite", "gradient_non_finite"]].gt(0).any(axis=1)]
    shares = values_at_step(frame, "layer", column, last=True)
    is_of_gradients = column == "gradient_dead_fraction"
    if is_of_gradients:  # one unit may have a constant effect on purpose, as where all nodes form one cluster
        shares = {name: share for name, share in shares.items() if name not in facts.single_units}
    if not shares or (is_of_gradients and (min(shares.values()) == 1 or not _has_partial_gradients(facts))):
        return None  # without any gradient, nothing can be said about units
    first = values_at_step(frame, "layer", column)
    if is_of_gradients and (is_rounded_away(facts) or _is_cut_off(first, shares)):
        return None
    # the last such layer comes first: dead units cut off all layers before them; a layer that never got any gradient is
    # multiplied by zero, see `gatdiag.diagnosis.wiring`
    if is_of_gradients:
        shares = {name: share for name, share in reversed(shares.items()) if min(share, first.get(name, 0.0)) < 1}
    flagged = frame[frame[column] >= limit("dead")]
    return _finding(facts, shares, flagged.groupby("layer", observed=True)["step"].min().to_dict(), column, units, how)


def _finding(
    facts: Facts, shares: dict[str, float], first: dict[Any, int], column: str, units: str, how: str
) -> Finding | None:
    dead = tuple(name for name in shares if shares[name] >= limit("dead"))
    if not dead:
        return None
    worst = max(dead, key=shares.__getitem__)
    since = int(first[worst])
    start = "from the start" if since == 0 else f"from step {since:,} on"
    also = f" ({percent(limit('dead'))} or more in {len(dead)} layers)" if len(dead) > 1 else ""
    return facts.finding(
        "dead-units",
        f"{percent(shares[worst])} of the {units} of layer {short(worst)} {how} {start}{also}: a unit that is dead "
        "behind a ReLU stays dead.",
        Evidence(f"share of dead units, in layer {short(worst)}", shares[worst]),
        threshold=f"Flagged from {threshold_text('dead')}.",
        column=f"layers.{column}",
        line=limit("dead"),
        layers=dead,
        steps=(since,),
    )


def _is_cut_off(first: dict[str, float], last: dict[str, float]) -> bool:
    """From the start, exactly the layers up to one get no gradient at all.

    So something behind that layer passes none, like rounding: dead units there would be zero inputs of the next layer.
    """
    cut = [share == 1 for share in last.values()]
    return cut[0] and cut == sorted(cut, reverse=True) and cut == [share == 1 for share in first.values()]


def _has_partial_gradients(facts: Facts) -> bool:
    """The network gets gradients but does not learn, so units without one are worth reporting."""
    norms = facts.gradient_norms
    return facts.state in ("failing", "partly") and bool(((norms > 0) & (norms < math.inf)).any())


@cause(
    "network-linear",
    "No activation between layers",
    rank=292,
    why="a linear network may be what was meant, and fail for another reason",
    figure="training_curves",
    falsified_by="With a ReLU between the layers the learning curve is the same.",
    severity="warning",
    needs_training=True,
)
def check_linear(facts: Facts) -> Finding | None:
    """Layers in a row without an activation: the network is a linear function of its inputs, and does not train."""
    if facts.state != "failing" or facts.is_non_finite or not facts.signals.get("is_linear_chain"):
        return None
    layers = tuple(layer["name"] for layer in facts.layers if layer["parameters"])
    first = short(layers[0])
    return facts.finding(
        "network-linear",
        f"There is no activation between the {len(layers)} layers: their weights could be multiplied, and the network "
        "does no better than a single layer.",
        Evidence("operations that are not linear, before the last", 0.0),
        threshold="Exact: all operations from the output back to the inputs are sums and products with weights.",
        layers=layers,
        remedy=Remedy(f"x = torch.relu(x)  # in forward, behind {first} and each further layer but the last"),
    )


@cause(
    "dropout-too-large",
    "The dropout rate is too large",
    rank=170,
    why="units that dropout sets to zero are not dead",
    figure="training_curves",
    falsified_by="With a dropout rate of 0.5 the learning curve is the same.",
    needs_training=True,
    limits={
        "dropout": Limit(
            0.9, "share of entries that are dropped; healthy runs up to 0.8; at 0.98 32 units did not train"
        ),
        "kept-units": Limit(8, "units that are left in the widest layer: enough to learn from, though slowly"),
    },
)
def check_dropout(facts: Facts) -> Finding | None:
    """Dropout that leaves so little of its input that the network does not train."""
    rates: dict[str, float] = facts.signals.get("dropout") or {}
    own = {name: rate for name, rate in rates.items() if rate >= limit("dropout")}
    called: dict[str, float] = facts.signals.get("dropped") or {}
    large = own or {name: rate for name, rate in called.items() if rate >= limit("dropout")}
    is_off = facts.signals.get("evaluation_from") is not None
    if not large or is_off or facts.state not in ("failing", "partly"):
        return None
    worst = max(large, key=large.__getitem__)
    kept = (1 - large[worst]) * max((rows for layer in facts.layers for rows, _ in matrices(layer).values()), default=0)
    return facts.finding(
        "dropout-too-large",
        f"Dropout sets {percent(large[worst])} of its input to zero: what is left is mostly noise. The rate is the "
        "share that is dropped, not the share that is kept.",
        Evidence(f"dropout rate, {short(worst)}", large[worst]),
        threshold=f"Flagged from {threshold_text('dropout')}; as an error below {threshold_text('kept-units')}.",
        severity=facts.mild_severity if kept >= limit("kept-units") else None,
        remedy=Remedy(Action("dropout", {"attributes": tuple(own), "rate": 0.5}) if own else _CALL),
    )


@cause(
    "depth-dropout",
    "Dropout in every layer leaves mostly noise",
    rank=298,
    why="a cause of which more is known explains it better",
    figure="training_curves",
    falsified_by="With a dropout rate of 0 in all layers the training loss stays as it is.",
    severity="warning",
    needs_training=True,
    limits={
        "dropout-left": Limit(1e-3, "share of a path through all layers that their dropouts leave, as ten of 0.5 do")
    },
)
def check_dropout_in_depth(facts: Facts) -> Finding | None:
    """Dropout in many layers in a row, of usual rates, in a network that does not train and shows no other fault."""
    rates: dict[str, float] = facts.signals.get("dropout") or {}
    used = {name: rate for name, rate in rates.items() if 0 < rate < 1}
    left = math.prod(1 - rate for rate in used.values())
    is_off = facts.signals.get("evaluation_from") is not None
    if not used or left > limit("dropout-left") or is_off or facts.state != "failing":
        return None
    return facts.finding(
        "depth-dropout",
        f"{len(used)} layers have a dropout of up to {max(used.values()):g} each: of a path through all of them "
        f"{percent(left)} is left, so that the output of a training step is mostly noise. Deep networks train with a "
        "rate of 0 to 0.1, or with dropout before the last layer alone.",
        Evidence("share of a path through all layers that dropout leaves", left),
        Evidence("layers with dropout", len(used), "layers"),
        threshold=f"Flagged below {threshold_text('dropout-left')}.",
        remedy=Remedy(
            Action("dropout", {"attributes": tuple(used), "rate": 0.0}),
            "# and in forward: x = torch.nn.functional.dropout(x, 0.0, self.training)  # where it is called, too"
            if facts.signals.get("dropped", {}).keys() - {name.rpartition(".")[0] for name in used}
            else "",
        ),
    )


@cause(
    "dead-weights",
    "Dead weights",
    rank=300,
    why="of checkpoints: rows of zeros",
    figure="balance",
    falsified_by="The rows were pruned on purpose, or the inputs are padding.",
    is_independent=True,
)
def check_dead_weights(facts: Facts) -> Iterator[Finding]:
    """Layers with rows or columns of zeros in their weights in the last checkpoint."""
    weights = facts.last_checkpoint
    empty = [name for name, one in facts.parameters.items() if 0 in one["shape"]]
    matrices = weights[(weights["role"] == FEATURE) & ~weights["parameter"].isin(empty)]
    for layer, table in matrices.groupby("layer", sort=False, observed=True):
        living = table[table["norm"] > 0]
        rows, columns = (int(living[name].sum()) for name in ("dead_rows", "dead_columns"))
        zero = bool((table["norm"] == 0).any())
        what = [f"{rows} neurons whose incoming weights are all zero"] * (rows > 0)
        what += [f"{columns} inputs whose weights are all zero"] * (columns > 0)
        what += ["a weight matrix that is zero"] * zero
        if what:
            dead = table[(table["norm"] == 0) | (table[["dead_rows", "dead_columns"]] > 0).any(axis=1)]
            fresh = remedy.draw([facts.parameters[name] for name in map(str, dead["parameter"])])
            yield facts.finding(
                "dead-weights",
                f"Layer {short(str(layer))} has {', '.join(what)}.",
                Evidence("rows of zeros", rows, "neurons"),
                Evidence("columns of zeros", columns, "inputs"),
                threshold="Flagged from the first row or column on.",
                severity="warning" if rows else "note",
                layers=(str(layer),),
                remedy=Remedy(fresh or "", "# and train again"),
            )


@cause(
    "attention-saturated",
    "Attention is saturated",
    rank=190,
    why="the slope of a saturated softmax is zero",
    figure="overview",
    column="layers.attention_peak",
    falsified_by="With attention scores divided by 10 the learning curve is the same.",
    below_if_late="rank-collapse",
    limits={
        "one-hot": Limit(0.5, "share of nodes whose largest coefficient is above 0.99; faulty runs 0.68"),
        "entropy": Limit(0.02, "relative entropy of the attention: the slope of the softmax, 4a(1-a), is nearly zero"),
    },
)
def check_attention(facts: Facts) -> Finding | str | None:
    """Most nodes give one neighbor nearly all of their attention."""
    peaks, entropies = _peaks_at_start(facts), facts.profile("relative_attention_entropy")
    if not peaks and not entropies:
        return "attention coefficients were not recorded, or there are none"
    if facts.state != "trained":
        peaks = peaks | facts.profile("attention_peak", last=True)
        entropies = entropies | facts.profile("relative_attention_entropy", last=True)
    saturated = _saturated(peaks, entropies)
    if not saturated:
        return None
    is_first = bool({*saturated} & {*saturated_at_start(facts)})
    worst = max(saturated, key=peaks.__getitem__) if peaks else min(saturated, key=entropies.__getitem__)
    value = (peaks or entropies)[worst]
    # of all layers: scores that are as large may saturate less where a node has few neighbors, or rows few columns
    fresh = remedy.reinitialize_attention(facts, [layer["name"] for layer in facts.layers])
    is_by_hand = worst in facts.signals.get("attention_peaks", {})
    rows, entry = ("rows", "entry") if is_by_hand else ("nodes", "neighbor")
    text = f"{percent(value)} of the {rows} give" if peaks else "Nodes give"
    return facts.finding(
        "attention-saturated",
        f"{text} one {entry} nearly all of their attention in layer {short(worst)}: the softmax is flat there, so "
        "attention cannot learn.",
        Evidence("share of nodes with a coefficient above 0.99" if peaks else "relative attention entropy", value),
        threshold=f"Flagged {'from' if peaks else 'below'} {threshold_text('one-hot' if peaks else 'entropy')}.",
        column="" if is_by_hand else f"layers.{'attention_peak' if peaks else 'relative_attention_entropy'}",
        line=limit("one-hot" if peaks else "entropy"),
        beyond="above" if peaks else "below",
        layers=saturated,
        steps=(0 if is_first else facts.step_count - 1,),
        remedy=_SCALE if is_by_hand else Remedy(fresh, f"# or {_DIVIDE}") if fresh else Remedy(f"# {_DIVIDE}"),
    )


def saturated_at_start(facts: Facts) -> tuple[str, ...]:
    """Layers whose attention is saturated before the first step."""
    return _saturated(_peaks_at_start(facts), facts.profile("relative_attention_entropy"))


def _peaks_at_start(facts: Facts) -> dict[str, float]:
    """Of layers of PyG, and of modules that compute attention themselves."""
    return {**facts.profile("attention_peak"), **facts.signals.get("attention_peaks", {})}


def _saturated(peaks: dict[str, float], entropies: dict[str, float]) -> tuple[str, ...]:
    """By the largest coefficients or, if these were not recorded, by the entropy."""
    if peaks:
        return tuple(name for name, value in peaks.items() if value >= limit("one-hot"))
    return tuple(name for name, value in entropies.items() if value < limit("entropy"))
